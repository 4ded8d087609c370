"""Any arguments, however full of tags, come back from a call written as its family writes it, however it is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarUnsatisfiable, OutputEvent, Tool, ToolChoice, Usage, pack_ids
from imp_server.text.model import TextModel
from imp_server.text.tools.formats import all_formats

from tests.text.tools.own_way import WAYS, can_be_told, own_way
from tests.text.tools.spelled import FORMATS, calls_in, chat, ids_of, text_in
from tests.text.tools.test_triggers import model_of as triggers_model_of
from tests.text.tools.test_triggers import space_of as triggers_space_of

SINGLE = {"llama3_json", "harmony"}
"""Notations in which a call ends the reply."""
NO_TEXT_BEHIND = SINGLE | {"mistral", "mistral, newer", "granite"}


def test_every_format_has_its_own_way() -> None:
    assert WAYS == FORMATS


def every_tag() -> list[str]:
    """Openers and closers of all notations, as text."""
    tools = (Tool("first"),)
    found = {'<|"|>', "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<parameter=k>", "</parameter>",
             "<function=first>", "</function>", "</invoke>", "[ARGS]", "<|tool_call_end|>", "<|message|>"}  # fmt: skip
    for form in all_formats().values():
        for segment in form.segments(tools, 0, 1):
            for marker in (*segment.openers, *segment.closers):
                found.add(marker.replace(b"\xff", b"").replace(b"\xfe", b"").decode())
    return sorted(found)


TAGS = every_tag()
OTHERS = ['"', '\\"', "\\", "\n", "{", "}", "[", "]", ",", ":", " ", "\u00fc", "\U0001f600", "\\u0041", "null"]
PIECES = st.sampled_from([*TAGS, *OTHERS])
STRINGS = st.lists(PIECES | st.text(max_size=3), max_size=6).map("".join)
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9)
NESTED = st.recursive(
    SCALARS | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), NESTED, max_size=4)
OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


def declared(value: Any) -> dict[str, Any]:
    """How a schema might declare it, strings as such: templates write all strings raw."""
    if isinstance(value, str):
        return OPTIONAL if len(value) % 2 and value != "null" else {"type": "string"}
    names = {bool: "boolean", int: "integer", list: "array", dict: "object", type(None): "null"}
    return {"type": names[type(value)]}


def tool_for(arguments: Mapping[str, Any]) -> Tool:
    return Tool("first", parameters={"type": "object", "properties": {k: declared(v) for k, v in arguments.items()}})


def replay(model: TextModel, tool: Tool, text: bytes, cuts: list[list[int]]) -> Iterator[list[OutputEvent]]:
    """Each way to cut it is a choice of its own."""
    session = model.prepare_chat(chat([tool]), 1).session
    ids = ids_of(model, text)
    for choice, places in enumerate(cuts):
        edges = [0, *(p for p in places if 0 < p < len(ids)), len(ids)]
        events = [e for a, b in itertools.pairwise(edges) for e in session.push(choice, pack_ids(ids[a:b]))]
        yield events + session.finish(choice, "stop", Usage())


def check(
    form: str, as_tokens: bool, tool: Tool, text: bytes, arguments: Mapping[str, Any], data: st.DataObject
) -> None:
    model = triggers_model_of(form, "none", as_tokens)
    behind = "" if form in NO_TEXT_BEHIND else data.draw(st.sampled_from(["", " Done.", "</x> {"]))
    before = "" if form in SINGLE else data.draw(st.sampled_from(["", "I will. "]))
    whole = before.encode() + text + behind.encode()
    n_ids = len(ids_of(model, whole))
    places = sorted(data.draw(st.sets(st.integers(1, n_ids), max_size=8)))
    for events in replay(model, tool, whole, [[], list(range(n_ids)), places]):
        [(name, told)] = calls_in(events)
        assert (name, json.loads(told)) == ("first", arguments)
        assert "".join(text_in(events).split()) == "".join((before + behind).split())


def check_own_way(form: str, arguments: dict[str, Any], data: st.DataObject) -> None:
    as_tokens, ascii_only = data.draw(st.booleans()), data.draw(st.booleans())
    told = {k: v for k, v in arguments.items() if not isinstance(v, str) or can_be_told(form, v, as_tokens)}
    if form == "gemma" and not as_tokens:
        told = {k: v for k, v in told.items() if '<|\\"|>' not in json.dumps(v)}
    model = triggers_model_of(form, "none", as_tokens)
    text = own_way(form, model.tokenizer.marked, "first", told, ascii_only)
    check(form, as_tokens, tool_for(told), text, told, data)


@pytest.mark.parametrize("form", WAYS)
@settings(max_examples=5, deadline=None)
@given(arguments=ARGUMENTS, data=st.data())
def test_any_arguments_come_back_from_the_familys_own_way(
    form: str, arguments: dict[str, Any], data: st.DataObject
) -> None:
    check_own_way(form, arguments, data)


@pytest.mark.slow
@pytest.mark.parametrize("form", WAYS)
@settings(max_examples=400, deadline=None)
@given(arguments=ARGUMENTS, data=st.data())
def test_many_arguments_come_back_from_the_familys_own_way(
    form: str, arguments: dict[str, Any], data: st.DataObject
) -> None:
    check_own_way(form, arguments, data)


ANY = ["string", "number", "object", "array", "boolean", "null"]


def check_grammars_way(form: str, arguments: dict[str, Any], data: st.DataObject) -> None:
    """Forced to these values, some of them as one of any type."""
    as_tokens = data.draw(st.booleans())
    properties = {}
    for key, value in arguments.items():
        properties[key] = {"const": value} | ({"type": ANY} if data.draw(st.booleans()) else {})
    schema = {"type": "object", "properties": properties, "required": list(arguments), "additionalProperties": False}
    tool = Tool("first", parameters=schema)
    model = triggers_model_of(form, "none", as_tokens)
    request = chat([tool], ToolChoice("required", ("first",), named=True))
    try:
        plan = model.prepare_chat(request, 1).request.plan
        assert plan.grammar is not None
        m = triggers_space_of(form, "none", as_tokens).matcher(plan.grammar)
        text = m.way_out(m.start)
    except GrammarUnsatisfiable:
        raw = [v for k, v in arguments.items() if isinstance(v, str) and "type" not in properties[k]]
        assert any("<" in value for value in raw), "only a raw text can't be told"
        return
    check(form, as_tokens, tool, text, arguments, data)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=3, deadline=None)
@given(arguments=ARGUMENTS, data=st.data())
def test_any_arguments_come_back_from_the_grammars_way(
    form: str, arguments: dict[str, Any], data: st.DataObject
) -> None:
    check_grammars_way(form, arguments, data)
