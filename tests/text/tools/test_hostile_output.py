"""Whatever a model writes: readers never raise, cut or whole they say the same, in time that grows with the text."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import (
    CallArgs,
    CallEnd,
    CallStart,
    FinishReason,
    OutputEvent,
    OutputPlan,
    ReasoningDelta,
    TextDelta,
    Tool,
    Usage,
    pack_ids,
)
from imp_server.plan_walk import PlanWalker
from imp_server.text.model import TextModel
from imp_server.text.tools.base import Args, CallBegins, Cut, mark
from imp_server.text.tools.formats import all_formats

from tests.text.tools.own_way import own_way
from tests.text.tools.spelled import FORMATS, chat, ids_of
from tests.text.tools.test_own_way import TAGS
from tests.text.tools.test_triggers import model_of

PROPERTIES = {
    "s": {"type": "string"},
    "n": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "j": {"type": "object"},
    "any": {},
}
TOOLS = (Tool("first", parameters={"type": "object", "properties": PROPERTIES}), Tool("second"))
PLAIN = ["first", "second", "call:", "functions.first:0", '{"name": "first", "arguments": ', '"', "\\", "\\u12", "{",
         "}", "[", "]", ",", ":", "\n", "null", "12", "s", "<arg_key>s</arg_key>", "ü", "<", "</", "<|"]  # fmt: skip


def merged(events: Sequence[OutputEvent]) -> list[tuple[tuple[str, int], str]]:
    """((kind, index of the call), text): neighbours of one kind as one, ids left out."""
    found: list[tuple[tuple[str, int], str]] = []
    for event in events:
        if isinstance(event, TextDelta | ReasoningDelta | CallArgs):
            where = (type(event).__name__, event.index if isinstance(event, CallArgs) else 0)
            if found and found[-1][0] == where:
                found[-1] = where, found[-1][1] + event.text
            else:
                found.append((where, event.text))
        elif isinstance(event, CallStart):
            found.append((("start", event.index), event.name))
        elif isinstance(event, CallEnd):
            found.append((("cut" if event.is_cut else "end", event.index), ""))
    return found


def until_the_end(plan: OutputPlan, model: TextModel, ids: list[int]) -> list[int]:
    """What an engine would hand over of these ids."""
    walker = PlanWalker(plan, model.vocabulary.token_bytes)
    for n_taken, token_id in enumerate(ids):
        if walker.end is not None:
            return ids[:n_taken]
        walker.push(token_id)
    return ids


def check(model: TextModel, text: bytes, cuts: Sequence[int]) -> None:
    prepared = model.prepare_chat(chat(TOOLS), 1)
    session, ids = prepared.session, until_the_end(prepared.request.plan, model, ids_of(model, text))
    told = []
    places: Sequence[int]
    for choice, places in enumerate(([], range(1, len(ids)), sorted(c for c in cuts if c < len(ids)))):
        edges = [0, *places, len(ids)]
        events = [e for a, b in itertools.pairwise(edges) for e in session.push(choice, pack_ids(ids[a:b]))]
        told.append(merged(events + session.finish(choice, "stop", Usage())))
    assert told[1] == told[0] and told[2] == told[0]
    open_call, arguments = -1, ""
    for (what, index), said in told[0]:
        said.encode()
        if what == "start":
            assert open_call < 0
            open_call, arguments = index, ""
        elif what == "CallArgs":
            assert index == open_call
            arguments = said
        elif what == "end":
            assert index == open_call and isinstance(json.loads(arguments), dict)
            open_call = -1
        elif what == "cut":
            open_call = -1
    assert open_call < 0


def pieces(model: TextModel, form: str) -> st.SearchStrategy[bytes]:
    specials = [b"\xff" + t.encode() + b"\xfe" for i, t in model.vocabulary.special_texts.items()]
    whole = own_way(form, model.tokenizer.marked, "first", {"s": "a", "n": None, "j": {"k": ["</x>"]}})
    cut = st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole))).map(lambda c: whole[min(c) : max(c)])
    no_half_tokens = cut.map(
        lambda b: b if b.count(b"\xff") == b.count(b"\xfe") and b.find(b"\xfe") >= b.find(b"\xff") else b""
    )
    return (
        st.sampled_from([t.encode() for t in [*PLAIN, *TAGS]])
        | st.sampled_from(specials)
        | st.just(whole)
        | no_half_tokens
    )


def check_hostile(form: str, data: st.DataObject) -> None:
    model = model_of(form, "none", data.draw(st.booleans()))
    text = b"".join(data.draw(st.lists(pieces(model, form), max_size=14)))
    check(model, text, data.draw(st.lists(st.integers(1, 120), max_size=6)))


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_hostile_output_never_raises_and_is_told_the_same_in_any_cut(form: str, data: st.DataObject) -> None:
    check_hostile(form, data)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_much_hostile_output(form: str, data: st.DataObject) -> None:
    check_hostile(form, data)


BEGINNINGS = {
    "hermes": ["", '{"', '{"name": "first", "arguments": [', '{"x": ', '{"name": "first", "arguments": "'],
    "qwen_xml": ["", "<function=", "<function=first><parameter=", "<function=first><parameter=j>"],
    "glm": ["", "first<arg_key>", "first<arg_key>j</arg_key><arg_value>", 'first<arg_key>j</arg_key><arg_value>["'],
    "gemma": ["", "call:first{", 'call:first{s:<|"|>', "call:first{s:["],
    "deepseek": ["", "<｜tool▁call▁begin｜>first<｜tool▁sep｜>", '<｜tool▁call▁begin｜>first<｜tool▁sep｜>{"a":"'],
    "kimi": ["<|tool_call_begin|>", "<|tool_call_begin|>functions.first:0<|tool_call_argument_begin|>"],
    "mistral": ["", "first[ARGS]", "[{"],
    "harmony": ["", "functions.first " + mark("<|message|>")],
}


def seconds(form: str, beginning: str, letter: str, size: int) -> float:
    reader = all_formats()[form].reader(TOOLS, 0, "<tool_call>")
    for char in beginning:
        reader.feed(char)
    started = time.process_time()
    for _ in range(size):
        reader.feed(letter)
    told = "".join(p.text for p in reader.close(closed=False) if isinstance(p, Args))
    told.encode("utf-8", "surrogatepass")
    return time.process_time() - started


@pytest.mark.parametrize("form", BEGINNINGS)
def test_one_character_over_and_over_takes_linear_time(form: str) -> None:
    for beginning in BEGINNINGS[form]:
        for letter in 'a{ "<\\[:':
            assert seconds(form, beginning, letter, 8_000) < 0.5, (beginning, letter)


@pytest.mark.slow
@pytest.mark.parametrize("form", BEGINNINGS)
def test_a_hundred_thousand_times_one_character(form: str) -> None:
    """What grew with the square of the text took minutes."""
    for beginning in BEGINNINGS[form]:
        for letter in 'a{ "<\\[:':
            assert seconds(form, beginning, letter, 100_000) < 4.0, (beginning, letter)


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "1" * 5000, '"' + "[" * 5000 + "]" * 5000 + '"'])
def test_deep_and_long_values_that_pythons_parser_refuses(value: str) -> None:
    text = f'{{"id": {value}, "name": "first", "arguments": {value}}}'
    for size in (1, len(text)):
        reader = all_formats()["hermes"].reader(TOOLS, 0, "<tool_call>")
        told = [p for at in range(0, len(text), size) for p in reader.feed(text[at : at + size])]
        assert told[0] == CallBegins("first", value[1:-1] if value[0] == '"' else None) and told[-1] == Cut()
        assert "".join(p.text for p in told if isinstance(p, Args)) == value, "no object: as it was written"


def told_text(model: TextModel, text: bytes, reason: FinishReason = "stop") -> tuple[str, int, str]:
    """What is told of the text, how many calls, and what of it an engine hands over, special tokens left out."""
    prepared = model.prepare_chat(chat(TOOLS), 1)
    ids = until_the_end(prepared.request.plan, model, ids_of(model, text))
    events = prepared.session.push(0, pack_ids(ids)) + prepared.session.finish(0, reason, Usage())
    written = bytes(i for i in ids if i < 256).decode(errors="ignore")
    told = "".join(e.text for e in events if isinstance(e, TextDelta | ReasoningDelta))
    return told, sum(isinstance(event, CallStart) for event in events), written


END = b"\xff<|im_end|>\xfe"


def check_nothing_is_lost(form: str, data: st.DataObject) -> None:
    model = model_of(form, "none", data.draw(st.booleans()))
    text = b"".join(data.draw(st.lists(pieces(model, form), max_size=8)))
    told, n_calls, written = told_text(model, text.replace(END, b"") + END)
    assert n_calls or "".join(told.split()) == "".join(written.split())


@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"harmony"}))
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_what_holds_no_call_is_text(form: str, data: st.DataObject) -> None:
    check_nothing_is_lost(form, data)


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"harmony"}))
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_much_that_holds_no_call_is_text(form: str, data: st.DataObject) -> None:
    check_nothing_is_lost(form, data)


def test_the_beginning_of_a_call_that_the_limit_cuts_is_no_text() -> None:
    model = model_of("hermes", "none", False)
    assert told_text(model, b"So: <tool_call>{")[:2] == ("So:", 0)
    assert told_text(model, b"So: <tool_call>{", "length")[:2] == ("So:", 0)
    assert told_text(model, b"So: <tool_call>hm</tool_call>!")[:2] == ("So:<tool_call>hm</tool_call>!", 0)
    assert told_text(model, b"So: <tool_call>hm" + END)[:2] == ("So:<tool_call>hm", 0)
