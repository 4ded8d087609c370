"""What a client may ask of tools, on every format: choices, one call or many, beside a schema, a hundred tools."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarUnsatisfiable, ResponseFormat, Tool, ToolChoice, special
from imp_server.grammar.engine import Matcher
from imp_server.text.tools.formats import all_formats

from tests.text.tools.spelled import (
    FORMATS,
    TEACHING,
    call_text,
    calls_in,
    chat,
    events_of,
    grammar,
    ids_of,
    matcher,
    model_of,
    reason_in,
    replays,
    spelling,
    takes,
    text_in,
)
from tests.text.tools.test_formats import JSON_VALUES

NUMBER = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = [Tool(name, parameters=NUMBER) for name in ("first", "second", "third")]
FIRST, SECOND, THIRD = TOOLS
SINGLE = {"llama3_json", "harmony"}
"""Notations in which a call ends the reply."""


def test_there_is_a_template_for_every_format() -> None:
    assert {form.partition(",")[0] for form in TEACHING} == set(all_formats())


def may_go_on(m: Matcher, text: bytes) -> bool:
    """Whether anything but an end may follow `text`."""
    state = m.advance_bytes(m.start, text)
    assert state is not None
    return any(m.advance_bytes(state, bytes([byte])) is not None for byte in range(256))


@pytest.mark.parametrize("form", FORMATS)
def test_required_calls_a_tool_and_its_arguments_obey(form: str) -> None:
    m = matcher(form, chat(TOOLS, ToolChoice("required")))
    for tool in TOOLS:
        text = call_text(form, tool)
        assert takes(m, text)
        events = events_of(form, chat(TOOLS, ToolChoice("required")), text)
        [(name, arguments)] = calls_in(events)
        assert name == tool.name and isinstance(json.loads(arguments)["x"], int)
        assert text_in(events).strip() == "" and reason_in(events) == "tool_calls"
        assert m.advance_bytes(m.start, text.replace(tool.name.encode(), b"nobody")) is None
    assert not takes(m, b"") and not takes(m, b"Just text.")


@pytest.mark.parametrize("form", FORMATS)
def test_named_and_allowed_leave_the_others_out(form: str) -> None:
    named = matcher(form, chat(TOOLS, ToolChoice("required", ("second",), named=True)))
    allowed = matcher(form, chat(TOOLS, ToolChoice("required", ("first", "second"))))
    allowed_auto = matcher(form, chat(TOOLS, ToolChoice("auto", ("first", "second"))))
    texts = [call_text(form, tool) for tool in TOOLS]
    assert [takes(named, text) for text in texts] == [False, True, False]
    assert [takes(allowed, text) for text in texts] == [True, True, False]
    assert [takes(allowed_auto, text) for text in texts[:2]] == [True, True]
    assert not may_go_on(named, texts[1]), "a named function is called once"
    assert not takes(allowed, b"Just text.") and takes(allowed_auto, b"Just text.")
    # A name that isn't offered is no call: bound where a tag led to it, else text.
    assert not takes(allowed_auto, texts[2]) or not calls_in(
        events_of(form, chat(TOOLS, ToolChoice("auto", ("first", "second"))), texts[2])
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("mode", ["required", "auto"])
def test_without_parallel_calls_a_call_ends_the_reply(form: str, mode: str) -> None:
    request = chat(TOOLS, ToolChoice(mode, parallel=False))  # type: ignore[arg-type]
    m = matcher(form, request)
    text = call_text(form, FIRST)
    assert takes(m, text) and not may_go_on(m, text)


@pytest.mark.parametrize("form", sorted(set(FORMATS) - SINGLE))
def test_parallel_calls_are_read_one_by_one(form: str) -> None:
    """The shortest text that calls the first tool, made to go on with the second."""
    m = matcher(form, chat(TOOLS, ToolChoice("required")))
    text = two_calls(m, call_text(form, FIRST), call_text(form, SECOND))
    assert takes(m, text)
    places: Sequence[int]
    for places in ([], range(len(text))):
        calls = calls_in(events_of(form, chat(TOOLS, ToolChoice("required")), text, list(places)))
        assert [name for name, _ in calls] == ["first", "second"]


def two_calls(m: Matcher, one: bytes, other: bytes) -> bytes:
    """Two sections, or one section that both calls share: whichever the grammar takes."""
    for between in (b"", b"\n", b", "):
        for head in range(len(one), 0, -1):
            state = m.advance_bytes(m.start, one[:head] + between)
            for skip in range(len(other)) if state is not None else ():
                found = one[:head] + between + other[skip:]
                if b"first" in found and b"second" in found and takes(m, found):
                    return found
    raise AssertionError("no two calls")


@pytest.mark.parametrize("form", FORMATS)
def test_none_binds_nothing_and_reads_nothing(form: str) -> None:
    request = chat(TOOLS, ToolChoice("none"))
    assert grammar(form, request) is None
    if form != "harmony":  # there the channel itself is no text
        text = call_text(form, FIRST)
        events = events_of(form, request, text)
        assert calls_in(events) == [] and text_in(events) == text.decode()


@pytest.mark.parametrize("form", FORMATS)
def test_tools_beside_a_schema(form: str) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    request = chat(TOOLS, response_format=ResponseFormat("json_schema", schema=schema))
    m = matcher(form, request)
    lead = special("<|channel|>") + b"final" + special("<|message|>") if form == "harmony" else b""
    answer = lead + b'{"ok": true}'
    marker = b"<|python_tag|>" if form == "llama3_json" else b""
    call = marker + call_text(form, SECOND)
    assert takes(m, answer) and takes(m, call)
    assert not takes(m, lead + b"text") and not takes(m, lead + b'{"ok": 1}')
    events = events_of(form, request, answer)
    assert calls_in(events) == [] and text_in(events) == '{"ok": true}'
    assert [name for name, _ in calls_in(events_of(form, request, call))] == ["second"]


MANY = (
    ("hermes", 124),
    ("qwen_xml", 30),
    ("harmony", 30),
    *(pytest.param(form, 124, marks=pytest.mark.slow) for form in FORMATS if form != "hermes"),
)


@pytest.mark.parametrize(("form", "n_tools"), MANY)
def test_many_tools_and_a_bad_one(form: str, n_tools: int) -> None:
    """Tools are looked at when they are called; one whose schema can't be enforced takes any object."""
    nested = {
        "type": "object",
        "properties": {f"p{i}": {"type": "string", "pattern": f"^(a{i}|b)+$"} for i in range(9)},
    }
    bad = Tool("bad", parameters={"type": "object", "properties": {"x": {"$ref": "https://example.com/x"}}})
    tools = [bad, *TOOLS, *(Tool(f"tool_{i}", parameters={**nested, "title": str(i)}) for i in range(n_tools))]
    started = time.process_time()
    request = chat(tools)
    m = matcher(form, request)
    text = call_text(form, THIRD)
    assert takes(m, text)
    assert [name for name, _ in calls_in(events_of(form, request, text))] == ["third"]
    assert takes(matcher(form, chat([bad])), call_text(form, Tool("bad")))
    assert time.process_time() - started < 10


ARGUMENTS = st.dictionaries(
    st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text(max_size=20) | JSON_VALUES, min_size=1, max_size=3
)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=8, deadline=None)
@given(arguments=ARGUMENTS, data=st.data())
def test_any_arguments_come_back_from_any_cut(form: str, arguments: dict[str, object], data: st.DataObject) -> None:
    """Spelled by the format's own grammar, forced to them; read whole, by single tokens and in random pieces."""
    tool = spelling("first", arguments)
    try:
        text = call_text(form, tool)
    except GrammarUnsatisfiable:
        assume(False)  # raw text that holds its own closer
    request = chat([tool])
    n_ids = len(ids_of(model_of(form), text))
    cuts = data.draw(st.sets(st.integers(1, n_ids), max_size=12))
    whole, *pieces = (calls_in(events) for events in replays(form, request, text, [(), range(n_ids), sorted(cuts)]))
    assert [(name, json.loads(given)) for name, given in whole] == [("first", arguments)]
    assert pieces == [whole, whole]


@pytest.mark.parametrize("form", FORMATS)
def test_every_single_cut_of_a_call_between_texts(form: str) -> None:
    request = chat(TOOLS)
    lead = b"" if form in SINGLE else "Grüße: ".encode()
    text = lead + call_text(form, FIRST)
    n_ids = len(ids_of(model_of(form), text))
    whole = events_of(form, request, text)
    assert [name for name, _ in calls_in(whole)] == ["first"] and text_in(whole).strip() == lead.decode().strip()
    for cut in replays(form, request, text, [[place] for place in range(1, n_ids)]):
        assert (calls_in(cut), text_in(cut), reason_in(cut)) == (calls_in(whole), text_in(whole), reason_in(whole))
