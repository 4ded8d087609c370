"""OutputSession: the same events for every cut of the same tokens, and nothing in them that mustn't be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import (
    CallArgs,
    CallEnd,
    CallStart,
    ChatRequest,
    Finish,
    ImpError,
    Logprobs,
    Message,
    OutputEvent,
    OutputPlan,
    ReasoningDelta,
    ResponseFormat,
    Segment,
    TextDelta,
    TextPart,
    TokenLogprob,
    Tool,
    Usage,
    pack_ids,
    special,
)
from imp_server.plan_walk import PlanWalker
from imp_server.text.session import OutputSession
from imp_server.text.tools.base import reader_text
from imp_server.text.tools.formats import all_formats

from tests.asked import made
from tests.toy import byte_model, byte_tokenizer

CONTROL = ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
VOCABULARY = byte_tokenizer(CONTROL).vocabulary
IDS = {text: 256 + i for i, text in enumerate(CONTROL)}
TOOLS = (Tool("f", parameters={"type": "object", "properties": {"x": {"type": "string"}}}),)
HERMES = all_formats()["hermes"]

ANSWER = Segment("answer")
THINK = Segment(
    "think",
    openers=(b"<think>", special("<think>")),
    closers=(b"</think>", special("</think>")),
    opens_from=(0,),
    closes_to=0,
    scan_tokens=20,
    max_visits=1,
)
CALLS = HERMES.segments(TOOLS, 0, 2)
FULL = OutputPlan(segments=(ANSWER, THINK, *CALLS), end_ids=(256, 258), stop=(b"STOP", b"abab"), max_tokens=10_000)


def tokens(*parts: str | int | bytes) -> list[int]:
    ids: list[int] = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        elif isinstance(part, str) and part in IDS:
            ids.append(IDS[part])
        else:
            ids += part.encode() if isinstance(part, str) else part
    return ids


def run(plan: OutputPlan, ids: Sequence[int], cuts: Sequence[int] = (), *, logprobs: bool = False) -> list[OutputEvent]:
    """All events, neighbours of one kind joined."""
    counter = iter(range(1000))
    session = OutputSession(
        plan,
        VOCABULARY,
        readers=lambda segment, opener: HERMES.reader(TOOLS, segment - 2, reader_text(opener)),
        new_call_id=lambda: f"call_{next(counter)}",
        logprobs=logprobs,
    )
    events: list[OutputEvent] = []
    bounds = [0, *sorted(cuts), len(ids)]
    ended = _n_until_end(plan, ids)
    for start, stop in pairwise(bounds):
        part = ids[start : min(stop, ended)]
        events += session.push(
            0, pack_ids(part), [TokenLogprob(i, -0.5, ((i, -0.5),)) for i in part] if logprobs else ()
        )
    events += session.finish(0, "stop", Usage())
    return joined(events)


def _n_until_end(plan: OutputPlan, ids: Sequence[int]) -> int:
    walker = PlanWalker(plan, VOCABULARY.token_bytes)
    for index, i in enumerate(ids):
        walker.push(i)
        if walker.end is not None:
            return index + 1
    return len(ids)


def joined(events: Sequence[OutputEvent]) -> list[OutputEvent]:
    # Logprobs travel behind the text of their hand-off: compare them apart from the order of the rest.
    out: list[OutputEvent] = []
    entries: dict[str, list[object]] = {"text": [], "reasoning": []}
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Logprobs):
            entries[event.kind] += event.entries
        elif isinstance(event, TextDelta) and isinstance(last, TextDelta):
            out[-1] = TextDelta(0, last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            out[-1] = ReasoningDelta(0, last.text + event.text)
        elif isinstance(event, CallArgs) and isinstance(last, CallArgs):
            out[-1] = CallArgs(0, last.index, last.text + event.text)
        else:
            out.append(event)
    out += [Logprobs(0, tuple(e), k) for k, e in entries.items() if e]  # type: ignore[arg-type]
    return out


def text_of(events: Sequence[OutputEvent]) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta))


def reasoning_of(events: Sequence[OutputEvent]) -> str:
    return "".join(e.text for e in events if isinstance(e, ReasoningDelta))


FRAGMENTS = st.sampled_from(
    ["Hello", " ", "\n\n", "ab", "a", "b", "ST", "STO", "OP", "STOP", "<think>", "</think>", "<thi", "</thin", "nk>",
     "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"x": "é"}}', "é", "😀", "<|im_start|>",
     "<|endoftext|>", "\ufffd", "1 < 2"]
).map(lambda t: tokens(t)) | st.sampled_from(
    [[0xF0, 0x9F], [0x98], [0x80], [0xC3], [0xA9], [0xFF], [0xE2, 0x82], tokens(b"<think>"), tokens(b"</think>"),
     tokens(b"<|im_end|>"), tokens(b"<tool_call>")]
)  # fmt: skip
STREAMS = st.lists(FRAGMENTS, max_size=14).map(lambda parts: [i for p in parts for i in p])
PLANS = st.sampled_from(
    [
        FULL,
        OutputPlan(segments=(ANSWER,), end_ids=(256,), stop=(b"STOP", b"abab"), max_tokens=10_000),
        OutputPlan(segments=(ANSWER, THINK), start=1, end_ids=(256,), stop=(b"b",), max_tokens=30),
        OutputPlan(
            segments=(ANSWER, Segment("think", THINK.openers, THINK.closers, (0,), 0, keep_markers=True)),
            end_ids=(256,),
            shown_ids=(IDS["<think>"], IDS["</think>"]),
            max_tokens=10_000,
        ),
    ]
)


@settings(max_examples=200, deadline=None)
@given(PLANS, STREAMS, st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_every_cut_gives_the_same_events(plan: OutputPlan, ids: list[int], cuts: list[int], logprobs: bool) -> None:
    cuts = [c for c in cuts if c <= len(ids)]
    whole = run(plan, ids, logprobs=logprobs)
    assert run(plan, ids, cuts, logprobs=logprobs) == whole
    assert run(plan, ids, range(1, len(ids)), logprobs=logprobs) == whole


@settings(max_examples=200, deadline=None)
@given(PLANS, STREAMS)
def test_laws_of_the_output(plan: OutputPlan, ids: list[int]) -> None:
    events = run(plan, ids, logprobs=True)
    plain = run(plan, ids)
    assert [e for e in events if not isinstance(e, Logprobs)] == plain
    text, reasoning = text_of(events), reasoning_of(events)
    for kind, shown in (("text", text), ("reasoning", reasoning)):
        entries = [e for ev in events if isinstance(ev, Logprobs) and ev.kind == kind for e in ev.entries]
        assert b"".join(e.data for e in entries) == shown.encode()
    if "\ufffd".encode() not in bytes(i for i in ids if i < 256):
        assert "\ufffd" not in text + reasoning
    for marker in ("<|im_start|>", "<|endoftext|>", "<|im_end|>"):
        if marker not in bytes(i for i in ids if i < 256).decode("utf-8", "ignore"):
            assert marker not in text + reasoning
    whole = not any(i >= 256 and i not in plan.end_ids for i in ids)
    if len(plan.segments) == 1 and whole and text.encode() == bytes(i for i in ids if i < 256)[: len(text.encode())]:
        # Not where dropped bytes or special tokens in the middle bring two halves of a stop string together.
        assert not any(stop in text.encode() for stop in plan.stop)
    if max([0, *(i for i in ids if i < 256)]) < 0x80:  # blanks before bytes that form no character stay
        assert reasoning == reasoning.strip(" \t\r\n")
    assert isinstance(plain[-1], Finish)


@pytest.mark.parametrize("n", range(1, 9))
def test_truncated_character_is_dropped(n: int) -> None:
    ids = tokens("né😀")
    events = run(OutputPlan(max_tokens=n), ids)
    assert text_of(events) == bytes(ids[:n]).decode("utf-8", "ignore")


def test_stop_string_holds_back_only_a_true_prefix() -> None:
    session = OutputSession(OutputPlan(stop=(b"STOP",), max_tokens=100), VOCABULARY)
    said = [text_of(session.push(0, pack_ids([i]))) for i in tokens("aSTxSTOP")]
    assert said == ["a", "", "", "STx", "", "", "", ""]
    finish = session.finish(0, "stop", Usage(), b"STOP")
    assert text_of(finish) == "" and finish[-1] == Finish(0, "stop", Usage(), "STOP")


def test_a_prefix_that_never_completes_is_flushed() -> None:
    events = run(OutputPlan(stop=(b"STOP",), max_tokens=5), tokens("aaSTO"))
    assert text_of(events) == "aaSTO"


@pytest.mark.parametrize("spelled", [True, False])
def test_thinking_is_cut_out_with_its_blanks(spelled: bool) -> None:
    open_, close = (b"<think>", b"</think>") if spelled else ("<think>", "</think>")
    events = run(FULL, tokens("\n", open_, "\n I wonder \n\n", close, "\n\n Hi\n", 256))
    assert reasoning_of(events) == "I wonder" and text_of(events) == "Hi\n"


def test_thinking_opened_by_the_prompt_and_cut_off_never_spills() -> None:
    plan = OutputPlan(segments=(ANSWER, THINK), start=1, max_tokens=9)
    events = run(plan, tokens("I wonder about"))
    assert reasoning_of(events) == "I wonder" and text_of(events) == ""
    assert events[-1] == Finish(0, "stop", Usage(), detail="reasoning_budget_exhausted")


def test_a_second_think_tag_is_text() -> None:
    events = run(FULL, tokens("<think>", "a", "</think>", "b", b"<think>", "c"))
    assert reasoning_of(events) == "a" and text_of(events) == "b<think>c"


def test_stop_strings_do_not_apply_to_thinking() -> None:
    events = run(FULL, tokens("<think>", "STOP abab", "</think>", "xSTOPy"))
    assert reasoning_of(events) == "STOP abab" and text_of(events) == "x"


def test_calls() -> None:
    call = '\n{"name": "f", "arguments": {"x": "é"}}\n'
    events = run(FULL, tokens("Well:\n\n", "<tool_call>", call, "</tool_call>", "\n", "<tool_call>", call, 256))
    assert events == [
        TextDelta(0, "Well:"),
        CallStart(0, 0, "call_0", "f"),
        CallArgs(0, 0, '{"x": "é"}'),
        CallEnd(0, 0),
        CallStart(0, 1, "call_1", "f"),
        CallArgs(0, 1, '{"x": "é"}'),
        CallEnd(0, 1),
        Finish(0, "tool_calls", Usage()),
    ]


def test_choices_do_not_mix() -> None:
    session = OutputSession(OutputPlan(max_tokens=10), VOCABULARY)
    assert session.push(0, pack_ids([0xC3])) == []
    assert session.push(1, pack_ids(tokens("x"))) == [TextDelta(1, "x")]
    assert session.push(0, pack_ids([0xA9])) == [TextDelta(0, "é")]


def test_model_makes_sessions_for_its_tools() -> None:
    model = byte_model(control=CONTROL)
    chat = ChatRequest((Message("user", (TextPart("hi"),)),), tools=TOOLS)
    prepared = model.prepare_chat(chat, 7)
    call = '{"name": "f", "arguments": {"x": "y"}}'
    events = prepared.session.push(0, pack_ids(tokens("<tool_call>", call, "</tool_call>")))
    assert [type(e) for e in events] == [CallStart, CallArgs, CallEnd]
    assert prepared.request.key == 7


def test_structured_answer_has_a_grammar() -> None:
    chat = made(ChatRequest, (Message("user", (TextPart("hi"),)),), response_format=ResponseFormat("json_object"))
    plan = byte_model().prepare_chat(chat, 1).request.plan
    assert plan.grammar is not None and plan.grammar.kind == "json_schema"


def test_a_schema_that_cant_be_enforced_is_refused_with_its_field() -> None:
    remote = ResponseFormat("json_schema", schema={"$ref": "https://example.com/schema"})
    chat = made(ChatRequest, (Message("user", (TextPart("hi"),)),), response_format=remote)
    with pytest.raises(ImpError) as caught:
        byte_model().prepare_chat(chat, 1)
    assert caught.value.param == "response_format"
