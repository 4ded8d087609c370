"""Work that is cut into turns at any place leads to the same masks and ways as work in one go."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
from imp_server.core.turns import OutOfTurn, n_kept, turn
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher

from tests.grammar.test_masks import VOCABULARY, allowed

T = TypeVar("T")

SCHEMAS: dict[str, Any] = {
    "names by patterns": {
        "type": "object",
        "patternProperties": {"a.{2}b": {"type": "integer"}, "b.c": {"type": "string"}, "^x": {}},
        "additionalProperties": False,
        "minProperties": 2,
    },
    "negations": {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer"} for i in range(4)},
        "additionalProperties": False,
        "allOf": [{"not": {"properties": {f"p{i}": {"minimum": i + j} for i in range(4)}}} for j in range(3)],
    },
    "a rule for names": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-d]{2,5}$"},
        "not": {"propertyNames": {"pattern": "^a"}},
        "additionalProperties": {"type": "integer", "not": {"multipleOf": 3}},
    },
    "one of many": {
        "oneOf": [
            {"type": "object", "properties": {f"p{j}": {"type": "integer", "minimum": i + j} for j in range(4)}}
            for i in range(4)
        ]
    },
    "unique items": {
        "type": "array",
        "uniqueItems": True,
        "minItems": 4,
        "items": {"type": "string", "pattern": "^[ab]{1,3}$"},
    },
    "contains": {
        "type": "array",
        "items": {"type": "integer", "minimum": 1},
        "allOf": [{"contains": {"multipleOf": k}, "minContains": 2} for k in (2, 3)],
    },
    "a password": {"type": "string", "pattern": "^(?=.*[A-Z])(?=.*[a-z])(?=.*\\d).{8,64}$", "minLength": 9},
    "conditions": {
        "type": "object",
        "properties": {"k": {"enum": ["a", "b", "c"]}},
        "required": ["k"],
        "allOf": [
            {
                "if": {"properties": {"k": {"const": name}}},
                "then": {"required": [f"r{name}"], "properties": {f"r{name}": {"type": "string", "format": "date"}}},
            }
            for name in "abc"
        ],
    },
}


def in_turns(answer: Callable[[], T], n_units: int) -> T:
    """As the mask thread asks, by very short turns."""
    while True:
        before = n_kept()
        try:
            with turn(n_units):
                return answer()
        except OutOfTurn:
            n_units *= 1 if n_kept() > before else 2


@pytest.mark.parametrize("name", SCHEMAS)
def test_turns_change_nothing(name: str) -> None:
    rng = random.Random(name)
    plan = check_schema(SCHEMAS[name])
    whole = GrammarSpace(VOCABULARY).matcher(plan)
    n_units = rng.choice([1, 7, 30])
    space = GrammarSpace(VOCABULARY)
    cut: Matcher = in_turns(lambda: space.matcher(plan), n_units)
    n_states = 0
    for _ in range(3):
        a, b = whole.start, cut.start
        for _ in range(25):
            mask = in_turns(lambda: cut.mask(b), n_units).copy()  # noqa: B023
            assert np.array_equal(mask, whole.mask(a))
            assert in_turns(lambda: cut.n_tokens_out(b), n_units) == whole.n_tokens_out(a)  # noqa: B023
            assert in_turns(lambda: cut.forced(b), n_units) == whole.forced(a)  # noqa: B023
            ids = sorted(allowed(whole, a) - set(VOCABULARY.end_ids))
            if not ids:
                break
            token = rng.choice(ids)
            after, after_cut = whole.advance(a, token), in_turns(lambda: cut.advance(b, token), n_units)  # noqa: B023
            assert after is not None and after_cut is not None
            a, b = after, after_cut
            n_states += 1
    assert n_states > 25
