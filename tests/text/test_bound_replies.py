"""Replies under a grammar that hold the tags of other parts: what is a tag for the reader is one for the grammar."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from imp_server.core import (
    ChatRequest,
    GrammarPlan,
    GrammarTooCostly,
    Message,
    OutputEvent,
    ReasoningDelta,
    ReasoningIntent,
    ResponseFormat,
    TextDelta,
    TextPart,
    Tool,
    ToolChoice,
    Usage,
    pack_ids,
    special,
    unpack_ids,
)
from imp_server.grammar.engine import GrammarSpace, Matcher, State
from imp_server.grammar.proving import PROVES_HERE
from imp_server.grammar.values.schema.closing import KEYWORD
from imp_server.text.model import TextModel

from tests.asked import made
from tests.text.tools.spelled import HARMONY_TOKENS, calls_in, ids_of, text_in
from tests.text.tools.spelled import model_of as model_of_form
from tests.toy import CHATML, CONTROL_TOKENS, OPEN_THINKING_CHATML, THINKING_CHATML, byte_model

SCHEMA = {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"], "additionalProperties": False}
FORMAT = ResponseFormat("json_schema", schema=SCHEMA)
TOOL = Tool("first", parameters=SCHEMA)
HARMONY = "{% for tool in tools or [] %}{{ tool | tojson }}{{ 'functions.' }}{% endfor %}" + CHATML.replace(
    "assistant\n{% endif %}", "assistant<|channel|>analysis<|message|>{% endif %}"
)


def chat(**more: Any) -> ChatRequest:
    return made(ChatRequest, (Message("user", (TextPart("hi"),)),), **more)


def matcher(model: TextModel, request: ChatRequest) -> Matcher:
    plan = model.prepare_chat(request, 1).request.plan
    assert plan.grammar is not None
    return GrammarSpace(model.vocabulary).matcher(plan.grammar)


def takes(m: Matcher, ids: list[int]) -> bool:
    state = m.start
    for token_id in ids:
        mask = m.mask(state)
        after = m.advance(state, token_id)
        assert (after is not None) == bool(mask[token_id // 32] >> np.uint32(token_id % 32) & np.uint32(1))
        if after is None:
            return False
        state = after
    return m.is_done(state)


def said(model: TextModel, request: ChatRequest, text: bytes) -> list[OutputEvent]:
    """Byte by byte."""
    session = model.prepare_chat(request, 1).session
    events = [e for i in ids_of(model, text) for e in session.push(0, pack_ids([i]))]
    return events + session.finish(0, "stop", Usage())


def thought(events: list[OutputEvent]) -> str:
    return "".join(e.text for e in events if isinstance(e, ReasoningDelta))


@pytest.mark.parametrize("text", ["<think>", "<think>x</think>", "</think>", "<tool_call>", "a\n<tool_call>\n"])
@pytest.mark.parametrize("tools", [(), (TOOL,)])
def test_an_answer_that_is_bound_may_spell_any_tag(tools: tuple[Tool, ...], text: str) -> None:
    model = byte_model(THINKING_CHATML)
    for asked in (None, True):
        request = chat(response_format=FORMAT, tools=tools, reasoning=ReasoningIntent(enabled=asked))
        answer = b'{"t":"' + text.encode().replace(b"\n", b"\\n") + b'"}'
        assert takes(matcher(model, request), list(answer))
        events = said(model, request, answer)
        assert text_in(events) == answer.decode() and thought(events) == "" and calls_in(events) == []
        if asked:
            events = said(model, request, b"<think>hm</think>\n\n" + answer)
            assert text_in(events) == answer.decode() and thought(events) == "hm"


@pytest.mark.parametrize("control", [(), ("<think>", "</think>")])
def test_a_schema_binds_behind_either_spelling_of_the_closer(control: tuple[str, ...]) -> None:
    model = byte_model(OPEN_THINKING_CHATML, control=CONTROL_TOKENS + control)
    request = chat(response_format=FORMAT, reasoning=ReasoningIntent(enabled=True))
    m = matcher(model, request)
    for closer in (b"</think>", special("</think>")) if control else (b"</think>",):
        assert takes(m, ids_of(model, b"so" + closer + b'\n\n{"t":"x"}'))
        assert not takes(m, ids_of(model, b"so" + closer + b"\n\nfree text"))
        assert text_in(said(model, request, b"so" + closer + b"\n\nfree text")) == "free text"


FINAL = special("<|start|>") + b"assistant" + special("<|channel|>") + b"final" + special("<|message|>")
COMMENTARY = FINAL.replace(b"final", b"commentary")


def test_harmony_leaves_its_thinking_by_a_token_that_ends_turns_elsewhere() -> None:
    model = byte_model(HARMONY, control=CONTROL_TOKENS + HARMONY_TOKENS)
    request = chat(response_format=FORMAT, reasoning=ReasoningIntent(enabled=True))
    m = matcher(model, request)
    text = b"so" + special("<|end|>") + FINAL + b'{"t":"<|end|>"}'
    assert takes(m, ids_of(model, text))
    assert not takes(m, ids_of(model, text.replace(b'"t"', b'"u"')))
    assert (thought(said(model, request, text)), text_in(said(model, request, text))) == ("so", '{"t":"<|end|>"}')
    way = m.route(m.start)
    assert way and takes(m, way), "length steering finds the token, too"


ASKED: list[dict[str, Any]] = [
    {"tools": (TOOL,)},
    {"tools": (TOOL,), "tool_choice": ToolChoice("required")},
    {"tools": (TOOL,), "tool_choice": ToolChoice("required", ("first",), named=True)},
    {"tools": (TOOL,), "response_format": FORMAT},
    {"response_format": FORMAT},
    {"response_format": ResponseFormat("regex", text="a+")},
]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("template", [OPEN_THINKING_CHATML, HARMONY])
def test_thinking_can_be_closed_by_force_whatever_binds_the_rest(template: str, asked: dict[str, Any]) -> None:
    model = byte_model(template, control=CONTROL_TOKENS + HARMONY_TOKENS)
    request = chat(reasoning=ReasoningIntent(enabled=True, budget_tokens=3, budget_message="Enough."), **asked)
    plan = model.prepare_chat(request, 1).request.plan
    m = matcher(model, request)
    state: State | None = m.start
    for token_id in (*b"hm ", *unpack_ids(plan.think_closer)):
        state = m.advance(state, token_id) if state is not None else None
    assert state is not None
    state = m.after_closing or state
    rest = m.route(state)
    for token_id in rest:
        state = m.advance(state, token_id) if state is not None else None
    assert state is not None and m.is_done(state)
    session = model.prepare_chat(request, 1).session
    events = session.push(0, pack_ids([*b"hm ", *unpack_ids(plan.think_closer), *rest]))
    events += session.finish(0, "stop", Usage())
    assert thought(events) == "hm Enough."
    names = [name for name, _ in calls_in(events)]
    assert names == ["first"] if "tool_choice" in asked else names in ([], ["first"] if "tools" in asked else [])


def test_behind_an_exhausted_budget_harmony_answers_or_calls_and_thinks_no_more() -> None:
    model = byte_model(HARMONY, control=CONTROL_TOKENS + HARMONY_TOKENS)
    request = chat(tools=(TOOL,), reasoning=ReasoningIntent(enabled=True, budget_tokens=3))
    plan = model.prepare_chat(request, 1).request.plan
    assert [model.vocabulary.special_texts.get(i) for i in unpack_ids(plan.think_closer)] == ["<|end|>"]
    m = matcher(model, request)
    after_closing = m.after_closing
    assert after_closing is not None
    turn = special("<|start|>") + b"assistant"
    head = b" to=functions.first" + special("<|channel|>") + b"commentary"
    body = b" " + special("<|constrain|>") + b"json" + special("<|message|>") + b'{"t":"x"}'
    call = special("<|channel|>") + b"commentary to=functions.first" + body
    text = special("<|channel|>") + b"final" + special("<|message|>") + b"Hello."
    told = text.replace(b"final", b"commentary")

    def allowed(rest: bytes) -> bool:
        state = m.advance_bytes(after_closing, rest)
        return state is not None and m.is_done(state)

    begun = b"so" + special("<|end|>") + turn
    for rest, said_text in ((call, ""), (head + body, ""), (told + special("<|end|>") + turn + call, "Hello.")):
        assert allowed(turn + rest) and not allowed(turn + rest.replace(b'"t"', b'"u"'))
        events = said(model, request, begun + rest + special("<|call|>"))
        assert (thought(events), text_in(events), calls_in(events)) == ("so", said_text, [("first", '{"t":"x"}')])
    assert allowed(turn + text)
    assert (thought(said(model, request, begun + text)), text_in(said(model, request, begun + text))) == (
        "so",
        "Hello.",
    )
    again = special("<|channel|>") + b"analysis"
    for refused in (turn + again + special("<|message|>"), again, b"Hello.", text, turn + b"Hello."):
        assert not allowed(refused) and not allowed(refused + turn + text)
    assert not allowed(b""), "something has to be said"
    assert m.advance_bytes(after_closing, turn + again + special("<|message|>")) is None


def test_harmony_with_tools_may_think_talk_and_call() -> None:
    model = byte_model(HARMONY, control=CONTROL_TOKENS + HARMONY_TOKENS)
    request = chat(tools=(TOOL,), reasoning=ReasoningIntent(enabled=True))
    m = matcher(model, request)
    end = special("<|end|>")
    call = (
        special("<|start|>") + b"assistant" + special("<|channel|>") + b"commentary to=functions.first "
        + special("<|constrain|>") + b"json" + special("<|message|>") + b'{"t":"x"}'
    )  # fmt: skip
    assert takes(m, ids_of(model, b"so" + end + FINAL + b"Hello."))
    text = b"so" + end + COMMENTARY + b"I look." + end + call
    assert takes(m, ids_of(model, text))
    assert not takes(m, ids_of(model, text.replace(b'"t"', b'"u"')))
    events = said(model, request, text + special("<|call|>"))
    assert (thought(events), text_in(events), calls_in(events)) == ("so", "I look.", [("first", '{"t":"x"}')])


def test_llama3_json_within_a_text_is_an_example_and_at_its_start_a_call() -> None:
    model = model_of_form("llama3_json")
    request = chat(tools=(TOOL,))
    m = matcher(model, request)
    example = b'A call looks like {"name": "first", "parameters": {"u": 1}} or so.'
    assert takes(m, list(example))
    events = said(model, request, example)
    assert calls_in(events) == [] and text_in(events) == example.decode()
    for lead in (b"", b"\n", b"Text, then <|python_tag|>"):
        call = lead + b'{"name": "first", "parameters": {"t": "x"}}'
        assert takes(m, list(call)) and not takes(m, list(call.replace(b'"t"', b'"u"')))
        assert calls_in(said(model, request, call)) == [("first", '{"t": "x"}')]


def test_thinking_that_nobody_asked_for_may_speak_of_calls() -> None:
    model = byte_model(THINKING_CHATML.replace("{% for message", "{{ '<tool_call>' if tools }}{% for message", 1))
    request = chat(tools=(TOOL,))
    m = matcher(model, request)
    call = b'<tool_call>\n{"name": "first", "arguments": {"t": "x"}}\n</tool_call>'
    text = b"<think>I might write <tool_call> here.</think>\n\nSo: " + call
    assert takes(m, list(text))
    assert not takes(m, list(text.replace(b'"t"', b'"u"')))
    events = said(model, request, text)
    assert thought(events) == "I might write <tool_call> here." and calls_in(events) == [("first", '{"t": "x"}')]
    assert [e.text.strip() for e in events if isinstance(e, TextDelta) and e.text.strip()] != []


class DearTogether:
    """A prover by whom each schema is served, and none that is closed inside something larger."""

    def prove(self, plan: GrammarPlan) -> None:
        if plan.kind == "envelope" and KEYWORD.encode() in plan.payload:
            raise GrammarTooCostly("too much")
        PROVES_HERE.prove(plan)

    def settle(self) -> None:
        pass


def test_schemas_that_are_too_dear_together_when_closed_are_served_by_their_letter() -> None:
    model = byte_model()
    open_ = {"type": "object", "properties": {"t": {"type": "string"}}}
    tools = (Tool("first", parameters=open_), TOOL, Tool("third", parameters=open_))
    finish = model.begin_chat(chat(tools=tools, tool_choice=ToolChoice("required")), 1)
    assert not finish(PROVES_HERE).opened
    prepared = finish(DearTogether())
    assert prepared.opened == ("tools[0].function.parameters", "tools[2].function.parameters")
    assert prepared.request.plan.grammar is not None and KEYWORD.encode() not in prepared.request.plan.grammar.payload
