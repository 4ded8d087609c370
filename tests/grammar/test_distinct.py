"""Arrays whose items must differ, down to the last value there is: against all arrays of small values."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from jsonschema.validators import Draft202012Validator

from tests.grammar.judging import matcher, reads

BOOLEANS = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
GRID = {
    "type": "object",
    "properties": {name: {"type": "integer", "minimum": 0, "maximum": 2} for name in "xy"},
    "required": ["x", "y"],
    "additionalProperties": False,
}
PAIR = {"type": "array", "items": {"enum": [0, 1]}, "minItems": 2, "maxItems": 2}
TRIPLE = {"type": "array", "prefixItems": [{"enum": [0, 1]}] * 3, "minItems": 3, "items": False}
SHORT = {"type": "array", "maxItems": 2, "items": {"type": "boolean"}}
OPTIONAL = {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}
NESTED = {"type": "array", "items": PAIR, "minItems": 1, "maxItems": 1}
COUNTS: dict[str, tuple[Any, int]] = {
    "objects": (BOOLEANS, 4),
    "a grid": (GRID, 9),
    "pairs": (PAIR, 4),
    "triples": (TRIPLE, 8),
    "lengths": (SHORT, 7),
    "optional members": (OPTIONAL, 3),
    "kinds": ({"anyOf": [SHORT, OPTIONAL, {"type": "null"}]}, 11),
    "nested": (NESTED, 4),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_value_there_is_can_be_asked_for(name: str) -> None:
    item, most = COUNTS[name]
    schema = {"type": "array", "items": item, "uniqueItems": True, "minItems": most}
    m = matcher(schema)
    validator = Draft202012Validator(schema)
    state, text = m.start, b""
    for _ in range(6):  # wherever one stands
        whole = text + m.way_out(state)
        assert validator.is_valid(json.loads(whole)), whole
        step = m.way_out(state)[: max(1, len(m.way_out(state)) // 5)]
        after = m.advance_bytes(state, step)
        assert after is not None
        state, text = after, text + step
    with pytest.raises(GrammarRefused):
        matcher({**schema, "minItems": most + 1})


@pytest.mark.parametrize("order", itertools.permutations(range(4)))
def test_any_order_may_be_written(order: tuple[int, ...]) -> None:
    values = [[0, 0], [0, 1], [1, 0], [1, 1]]
    m = matcher({"type": "array", "items": PAIR, "uniqueItems": True, "minItems": 4})
    assert reads(m, json.dumps([values[i] for i in order]))
    assert not reads(m, json.dumps([values[i] for i in order[:3]]))


@pytest.mark.parametrize(
    ("prefix", "is_possible"),
    [
        ([{"enum": [1, 2]}, {"enum": [1]}], True),
        ([{"enum": [1, 2, 3]}, {"enum": [1, 2]}, {"enum": [1]}], True),
        ([{"enum": [1, 2]}, {"enum": [2, 1]}, {"enum": [1, 2]}], False),
        ([{"enum": [1, 2]}, {"enum": [3]}, {"enum": [1, 3]}], True),
        ([{}, {"const": 0}, {"type": "integer"}, {"const": None}], True),
        ([PAIR, {"const": [0, 0]}, {"enum": [[0, 1], [1, 0]]}, PAIR], True),
    ],
)
def test_places_that_want_the_same_value_give_way(prefix: list[Any], is_possible: bool) -> None:
    schema = {"type": "array", "prefixItems": prefix, "uniqueItems": True, "minItems": len(prefix)}
    if not is_possible:
        with pytest.raises(GrammarUnsatisfiable):
            matcher(schema)
        return
    m = matcher(schema)
    assert Draft202012Validator(schema).is_valid(json.loads(m.way_out(m.start)))


def test_several_arrays_at_once_are_avoided() -> None:
    """One item may be what all of them lack."""
    schema = {**PAIR, "allOf": [{"not": {"const": list(v)}} for v in ([0, 0], [1, 0], [1, 1])]}
    m = matcher(schema)
    assert json.loads(m.way_out(m.start)) == [0, 1]
    assert [v for v in itertools.product((0, 1), repeat=2) if reads(m, json.dumps(v))] == [(0, 1)]
