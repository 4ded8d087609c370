"""Reasoning in channels of special tokens (harmony, Gemma): the same matrix as for think tags, and after tool results.

The expectation is worked out from the tokens alone by a reader of whole texts.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.config import Config
from imp_server.dialects.anthropic.thinking import signature
from imp_server.text.model import TextModel

from tests.dialects.replies import DIALECTS, USER, run
from tests.dialects.test_reasoning_matrix import ANSWER, STOPPED, THOUGHT, body_of, detail_of, parts
from tests.dialects.test_tool_matrix import HERMES_SIDE, calls_in
from tests.dialects.test_tool_matrix import body_of as tool_body
from tests.text.tools.spelled import HARMONY_TOKENS
from tests.toy import CHATML, CONTROL_TOKENS, byte_model

FREE = Config.of({"reasoning.think_budget": 1.0})
GEMMA_TOKENS = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')
SHOWN_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"


class Style(NamedTuple):
    """How a family marks reasoning. Texts are written as people read them; tags are special tokens."""

    tokens: tuple[str, ...]
    taught: str
    opening: str
    closing: str
    """What the model writes between its thought and its answer, and what is written for it at the budget."""
    plain: str
    """Before an answer without thought."""
    read: Callable[[str], tuple[str, str]]
    """Whole text -> (reasoning, answer)."""


def read_harmony(text: str) -> tuple[str, str]:
    said = {"analysis": "", "final": ""}
    message = r"(?:<\|start\|>assistant)?<\|channel\|>(analysis|final)<\|message\|>(.*?)(?:<\|end\|>|$)"
    while found := re.match(message, text, re.DOTALL):
        said[found.group(1)] += found.group(2)
        text = text[found.end() :]
    return said["analysis"].strip(), said["final"]


def read_gemma(text: str) -> tuple[str, str]:
    if not text.startswith("<|channel>"):
        return "", text
    if not text.startswith("<|channel>thought"):
        return "", ""
    thought, _, answer = text.removeprefix("<|channel>thought").partition("<channel|>")
    return thought.strip(), answer.lstrip()


STYLES = {
    "harmony": Style(
        HARMONY_TOKENS,
        "<|channel|>analysis<|message|> to=functions.",
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>final<|message|>",
        read_harmony,
    ),
    "gemma": Style(GEMMA_TOKENS, "<|channel>thought<channel|><|tool_call>", "<|channel>thought\n", "\n<channel|>", "",
                   read_gemma),
}  # fmt: skip
BEGINNINGS = ("opened in the prompt", "opened by the model", "a closed pair", "none")


def model(style: Style, *, opens: bool = False) -> TextModel:
    generation = "<|im_start|>assistant\n" + (style.opening if opens else "")
    template = (
        CHATML.replace("{% for message", f"{SHOWN_TOOLS}{{# {style.taught} #}}{{% for message", 1)
        .replace("<|im_start|>assistant\n{% endif %}", generation + "{% endif %}")
        .replace("{{ message['content'] }}", "{{ message['content'] or '' }}{{ message.tool_calls }}")
    )
    return byte_model(template, control=(*CONTROL_TOKENS, *style.tokens), config=FREE, context_length=8192)


SIDES = {(name, opens): ModelTextSide(model(STYLES[name], opens=opens)) for name in STYLES for opens in (False, True)}


def ids_of(side: ModelTextSide, text: str) -> list[int]:
    """One id per tag and per byte."""
    ids = {text: i for i, text in side.vocabulary.special_texts.items()}
    pieces = re.split("(" + "|".join(map(re.escape, sorted(ids, key=len, reverse=True))) + ")", text)
    return [i for piece in pieces for i in ([ids[piece]] if piece in ids else piece.encode())]


def text_of(side: ModelTextSide, ids: list[int]) -> str:
    texts = side.vocabulary.special_texts
    return b"".join(texts[i].encode() if i in texts else bytes([i]) for i in ids).decode(errors="ignore")


def script(style: Style, side: ModelTextSide, beginning: str, budget: int | None) -> tuple[list[int], list[int], int]:
    """(what the model writes, all that comes out, tokens until the budget is spent)."""
    if beginning in ("a closed pair", "none"):
        between = style.closing.removeprefix("<|end|>") if beginning == "a closed pair" and style.plain else style.plain
        ids = ids_of(side, between + ANSWER)
        return ids, ids, 0
    opening = [] if beginning == "opened in the prompt" else ids_of(side, style.opening)
    newline = style.opening.endswith("\n") and bool(opening)  # counts as thought
    thought = ids_of(side, THOUGHT)
    closing, answer = ids_of(side, style.closing), ids_of(side, ANSWER)
    if budget is None or budget > len(thought) + newline + 2:
        ids = [*opening, *thought, *closing, *answer]
        return ids, ids, 0
    spent = [*opening, *(thought + [46] * budget)[: budget - newline]]
    return [*spent, *answer], [*spent, *closing, *answer], len(spent)


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("beginning", BEGINNINGS)
@pytest.mark.parametrize("style_name", list(STYLES))
def test_channels_keep_reasoning_and_answer_apart(name: str, beginning: str, style_name: str) -> None:
    style, side = STYLES[style_name], SIDES[style_name, beginning in ("opened in the prompt", "a closed pair")]
    randoms = random.Random(f"{name} {beginning} {style_name}")
    thinks = beginning != "a closed pair"
    for budget, max_tokens in itertools.product((None, 1, 6), (None, 1, 3, 5, 9, 14, 25, 33, 50)):
        if budget is not None and beginning in ("a closed pair", "none"):
            continue
        body = body_of(name, thinks=thinks, budget=budget, max_tokens=max_tokens)
        written, out, edge = script(style, side, beginning, budget)
        lead = style.opening if beginning == "opened in the prompt" else ""
        wanted_thought, wanted = style.read(lead + text_of(side, out[:max_tokens]))
        if DIALECTS[name].stops:
            wanted = wanted.partition("STOP")[0]
        replies = []
        for places in (set(), set(range(len(written))), {randoms.randrange(60) for _ in range(6)}):
            cuts = places | ({edge} if edge else set())
            reply = run(name, side, body, written, cuts)
            where = f"budget {budget}, max_tokens {max_tokens}, cuts {sorted(cuts)}"
            thought, answer = parts(name, reply)
            assert (thought, answer) == (wanted_thought, wanted), where
            replies.append((thought, answer, detail_of(name, reply)))
            never_began = bool(thought) and not answer
            assert (detail_of(name, reply) == "reasoning_budget_exhausted") == never_began, where
        assert len(set(replies)) == 1


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("style_name", list(STYLES))
def test_every_single_cut_of_the_same_tokens_says_the_same(name: str, style_name: str) -> None:
    style, side = STYLES[style_name], SIDES[style_name, False]
    body = body_of(name, thinks=True, budget=None, max_tokens=None)
    written, _, _ = script(style, side, "opened by the model", None)
    wanted = (THOUGHT, STOPPED if DIALECTS[name].stops else ANSWER)
    for place in range(1, len(written)):
        assert parts(name, run(name, side, body, written, {place})) == wanted, place


CALL = {"name": "clock", "arguments": "{}"}
AFTER_RESULTS: dict[str, tuple[str, str]] = {
    "tags": ("<think>\n", '\n</think>\n\n{said}<tool_call>\n{{"name": "clock", "arguments": {{}}}}\n</tool_call>'),
    "harmony": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>commentary<|message|>{said}<|end|><|start|>assistant<|channel|>commentary"
        " to=functions.clock <|constrain|>json<|message|>{{}}<|call|>",
    ),
    "gemma": ("<|channel>thought\n", "\n<channel|>{said}<|tool_call>call:clock{{}}<tool_call|>"),
}
"""What stands before a thought, and behind it with a text and a call."""


def history(name: str) -> dict[str, Any]:
    """A tool was called, after a thought, and has answered."""
    if name == "messages":
        thinking = {"type": "thinking", "thinking": "old", "signature": signature("old")}
        use = {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon"}
        turns = [{"role": "assistant", "content": [thinking, use]}, {"role": "user", "content": [result]}]
        return {"messages": [*USER, *turns], "thinking": {"type": "adaptive"}}
    if name == "responses":
        thought: dict[str, Any] = {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "old"}],
        }
        call: dict[str, Any] = {"type": "function_call", "call_id": "call_1", **CALL}
        result = {"type": "function_call_output", "call_id": "call_1", "output": "noon"}
        return {"input": [{"role": "user", "content": "hi"}, thought, call, result], "reasoning": {"effort": "high"}}
    call = {"id": "call_1", "type": "function", "function": CALL}
    turn = {"role": "assistant", "content": None, "reasoning_content": "old", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}
    return {"messages": [*USER, turn, result], "reasoning_effort": "high"}


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("marks", list(AFTER_RESULTS))
@pytest.mark.parametrize("budget", [None, 4])
def test_a_model_that_thinks_after_a_tool_result(name: str, marks: str, budget: int | None) -> None:
    """Thinks, says something, calls again: each in its own place, wherever the tokens are cut."""
    side = HERMES_SIDE if marks == "tags" else SIDES[marks, False]
    opening, rest = AFTER_RESULTS[marks]
    thought = "Now <b> STOP." if budget is None else "Now "
    body = tool_body(name, "auto") | history(name)
    if DIALECTS[name].stops:
        body[DIALECTS[name].stops or ""] = ["STOP"]
    if budget is not None:
        limit = {"thinking": {"type": "enabled", "budget_tokens": budget}}
        body |= limit if name == "messages" else {"reasoning_budget_tokens": budget}
    lead = ids_of(side, opening.rstrip("\n") if budget is not None else opening)
    written = [*lead, *ids_of(side, thought)]
    edge = {len(written)} if budget is not None else set()
    behind = rest.format(said="I look: ")
    if budget is not None:  # the engine writes the closer, and harmony's header of the answer
        behind = behind.removeprefix("\n</think>\n\n").removeprefix("\n<channel|>")
        behind = behind.removeprefix("<|end|><|start|>assistant<|channel|>commentary<|message|>")
    written += ids_of(side, behind)
    for places in (set(), set(range(len(written))), *({place} for place in range(1, len(written), 3))):
        reply = run(name, side, body, written, places | edge)
        said, answer = parts(name, reply)
        assert (said, answer.strip()) == (thought.strip(), "I look:"), places
        assert calls_in(name, reply) == [("clock", {})]
        assert "think" not in answer and "old" not in json.dumps(calls_in(name, reply))
