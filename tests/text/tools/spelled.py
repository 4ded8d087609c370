"""A template that teaches each format, and calls as the format spells them: the shortest text its grammar forces."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from imp_server.core import (
    CallArgs,
    CallStart,
    ChatRequest,
    Finish,
    GrammarPlan,
    Message,
    OutputEvent,
    TextDelta,
    TextPart,
    Tool,
    ToolChoice,
    Usage,
    pack_ids,
    special,
)
from imp_server.grammar.engine import GrammarSpace, Matcher
from imp_server.text.model import TextModel

from tests.asked import made
from tests.toy import CHATML, CONTROL_TOKENS, byte_model

HARMONY_TOKENS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")
TEACHING = {
    "hermes": "<tool_call>",
    "qwen_xml": "<tool_call><function=n><parameter=p>",
    "llama3_json": '"parameters" <|python_tag|>',
    "llama3_function": "<function=n>",
    "mistral": "[TOOL_CALLS]",
    "mistral, newer": "[TOOL_CALLS][ARGS]",
    "gemma": "<|tool_call>",
    "deepseek": "<｜tool▁call▁begin｜>",
    "deepseek, fenced": "<｜tool▁call▁begin｜>```json",
    "glm": "<tool_call><arg_key>",
    "cohere": "<|START_ACTION|>",
    "phi": "<|tool_call|><|/tool_call|>",
    "granite": "<|tool_call|>",
    "harmony": "<|channel|>analysis<|message|> to=functions.",
    "kimi": "<|tool_call_argument_begin|>",
    "seed": "<seed:tool_call>",
    "minimax": "<minimax:tool_call>",
    "minicpm": '<function name="n"><param name="p">',
    "jamba": "<tool_calls>",
}
"""What a template has to mention."""
FORMATS = sorted(TEACHING)


@lru_cache
def model_of(form: str) -> TextModel:
    """A model of one token per byte whose template teaches the format."""
    shown = "{% for tool in tools or [] %}{{ tool | tojson }}{{ '" + TEACHING[form] + "' }}{% endfor %}{% for message"
    control = CONTROL_TOKENS + (HARMONY_TOKENS if form == "harmony" else ())
    model = byte_model(CHATML.replace("{% for message", shown, 1), control=control, context_length=200_000)
    assert model.prompts.default.tool_format.name == form.partition(",")[0]
    return model


@lru_cache
def space_of(form: str) -> GrammarSpace:
    return GrammarSpace(model_of(form).vocabulary)


def chat(tools: Sequence[Tool], choice: ToolChoice = ToolChoice(), **more: Any) -> ChatRequest:  # noqa: B008
    return made(ChatRequest, (Message("user", (TextPart("hi"),)),), tools=tuple(tools), tool_choice=choice, **more)


def grammar(form: str, request: ChatRequest) -> GrammarPlan | None:
    return model_of(form).prepare_chat(request, 1).request.plan.grammar


def matcher(form: str, request: ChatRequest) -> Matcher:
    plan = grammar(form, request)
    assert plan is not None
    return space_of(form).matcher(plan)


def takes(m: Matcher, text: bytes) -> bool:
    state = m.advance_bytes(m.start, text)
    return state is not None and m.is_done(state)


def call_text(form: str, tool: Tool) -> bytes:
    """One call of the tool, as short as its schema allows."""
    m = matcher(form, chat([tool], ToolChoice("required", (tool.name,), named=True)))
    return m.way_out(m.start)


def spelling(name: str, arguments: dict[str, Any]) -> Tool:
    """A tool that takes these arguments only."""
    properties = {key: {"const": value} for key, value in arguments.items()}
    return Tool(name, parameters={"type": "object", "properties": properties, "required": list(arguments),
                                  "additionalProperties": False})  # fmt: skip


def events_of(form: str, request: ChatRequest, text: bytes, places: Sequence[int] = ()) -> list[OutputEvent]:
    """What the reply says when it is `text` (marked bytes), handed over in pieces that end at `places`."""
    return replays(form, request, text, [places])[0]


def replays(form: str, request: ChatRequest, text: bytes, cuts: Sequence[Sequence[int]]) -> list[list[OutputEvent]]:
    """The same for several ways to cut it: each is a choice of its own."""
    model = model_of(form)
    session = model.prepare_chat(request, 1).session
    ids = ids_of(model, text)
    replayed = []
    for choice, places in enumerate(cuts):
        edges = [0, *sorted({p for p in places if 0 < p < len(ids)}), len(ids)]
        events = [e for a, b in itertools.pairwise(edges) for e in session.push(choice, pack_ids(ids[a:b]))]
        replayed.append(events + session.finish(choice, "stop", Usage()))
    return replayed


def ids_of(model: TextModel, text: bytes) -> list[int]:
    """One id per byte, one per special token."""
    ids: list[int] = []
    at = 0
    specials = {special(t): i for i, t in model.vocabulary.special_texts.items()}
    while at < len(text):
        tag = next((tag for tag in specials if text.startswith(tag, at)), b"")
        ids.append(specials[tag] if tag else text[at])
        at += len(tag) or 1
    return ids


def calls_in(events: Sequence[OutputEvent]) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallStart):
            calls.append((event.name, ""))
        elif isinstance(event, CallArgs):
            calls[event.index] = (calls[event.index][0], calls[event.index][1] + event.text)
    return calls


def text_in(events: Sequence[OutputEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def reason_in(events: Sequence[OutputEvent]) -> str:
    return next(event.reason for event in events if isinstance(event, Finish))
