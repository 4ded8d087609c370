"""What a proof gives up is refused, naming where, wherever it stands; in mid-reply it ends the row. Never narrowed."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.core import GrammarRefused, GrammarTooCostly
from imp_server.core.limits import QUESTION, bounded
from imp_server.grammar.check import check_schema, schema_plan
from imp_server.grammar.engine import GrammarSpace, Matcher
from imp_server.grammar.frames.stack import State

from tests.grammar.judging import BYTES, accepts

ITEMS: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 200}
"""More items than are told apart at once."""
PLACES: dict[str, Any] = {
    "": lambda s: s,
    "/properties/a": lambda s: {"type": "object", "properties": {"a": s, "b": True}},
    "/properties/a/items": lambda s: {"type": "object", "properties": {"a": {"type": "array", "items": s}}},
    "/$defs/x": lambda s: {"$defs": {"x": s}, "type": "object", "additionalProperties": {"$ref": "#/$defs/x"}},
    "/properties/a/anyOf/1": lambda s: {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, s]}}},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_refusal_names_the_place(place: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        check_schema(PLACES[place](ITEMS))
    assert caught.value.pointer.startswith(place), caught.value.pointer
    assert f"#{place}" in caught.value.message


def test_in_the_middle_of_a_reply_it_is_an_error_not_a_narrower_mask() -> None:
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, ITEMS]}}}
    m = GrammarSpace(BYTES).matcher(schema_plan(schema))
    state = m.advance_bytes(m.start, b'{"a')
    assert state is not None
    with pytest.raises(GrammarTooCostly, match="/properties/a/anyOf/1"):
        _masks(m, state, b'":[')


def _masks(m: Matcher, state: State, data: bytes) -> None:
    for byte in data:
        with bounded(QUESTION.budget(), "grammar"):
            m.mask(state)
            after = m.advance_bytes(state, bytes([byte]))
        assert after is not None
        state = after


def test_nesting_beyond_the_stack_names_the_deepest_place() -> None:
    schema: Any = {"type": "null"}
    for _ in range(900):
        schema = {"type": "array", "items": schema, "minItems": 1}
    with pytest.raises(GrammarRefused) as caught:
        check_schema(schema)
    assert caught.value.pointer.startswith("/items/items")


NEGATED: dict[str, tuple[Any, list[str], list[str]]] = {
    "a name unknown to all": (
        {"not": {"properties": {"a": {}}, "additionalProperties": False}, "maxProperties": 1},
        ['{"b":1}', '{"":0}'], ['{"a":1}', "{}"],
    ),
    "patterns that overlap": (
        {"not": {"patternProperties": {"^x": {"type": "null"}, "y$": {"type": "string"}}}, "maxProperties": 1},
        ['{"xy":""}', '{"xb":1}', '{"ay":2}'], ["{}", '{"b":1}', '{"xb":null}'],
    ),
    "a pattern that no name breaks": (
        {"anyOf": [{"type": "null"}, {"not": {"patternProperties": {"^q": {"type": ["null", "string"]}}}}],
         "propertyNames": {"pattern": "^[a-p]$"}, "type": ["null", "object"]},
        ["null"], ["{}", '{"a":1}'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEGATED)
def test_what_has_no_value_is_known_to_have_none(name: str) -> None:
    schema, good, bad = NEGATED[name]
    schema = {"type": "object", **schema} if "type" not in schema else schema
    assert [accepts(schema, text) for text in good] == [True] * len(good)
    assert [accepts(schema, text) for text in bad] == [False] * len(bad)
