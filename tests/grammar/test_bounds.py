"""The operator's bounds: work of a check, states kept. Their defaults are what the code does without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from imp_server.config import Config
from imp_server.core import (
    GrammarTooCostly,
)
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.generations import MEMORY, N_GENERATIONS
from imp_server.vocab.table import Vocabulary

from tests.grammar.judging import accepts

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"enum": [{"b": [1, 2]}]}, "minItems": 2}},
    "required": ["a"],
}


def test_the_default() -> None:
    assert Config().grammar.memory_mib << 20 == MEMORY


def test_beyond_the_memory_allowed_a_generation_is_begun() -> None:
    """Rows under way keep their own; what is made anew is the same."""
    vocabulary = Vocabulary([bytes([i]) for i in range(256)], {})
    plan, other = check_schema(NESTED), check_schema({"enum": [1, 2]})
    one = GrammarSpace(vocabulary).n_bytes
    for bound, kept in ((MEMORY, True), (N_GENERATIONS * one, False)):
        shared = GrammarSpace(vocabulary, n_bytes=bound)
        first = shared.matcher(plan)
        state = first.advance_bytes(first.start, b'{"a')
        assert state is not None
        before = first.mask(state).copy()
        space = shared.space
        again = shared.matcher(other)
        assert (shared.space is space) == kept
        fresh = GrammarSpace(vocabulary).matcher(other)
        assert np.array_equal(again.mask(again.start), fresh.mask(fresh.start))
        assert np.array_equal(first.mask(state), before)
        assert first.advance_bytes(state, b'":[') is not None


def test_names_told_apart_by_large_machines_are_found_step_by_step() -> None:
    """Where a product of name patterns is too large to be explored as a whole: in mid-answer nothing may be refused."""
    some = {"type": "object", "minProperties": 1, "patternProperties": {"^.{1,256}$": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"f": {**some, "additionalProperties": False}}}
    assert accepts(schema, '{"f": {"key": 1, "other": 2}}') and accepts(schema, "{}")
    assert not accepts(schema, '{"f": {"": 1}}') and not accepts(schema, '{"f": {}}')
    strange = {"type": "object", "minProperties": 2, "propertyNames": {"pattern": "^.{2,300}$"}, "required": ["ff"]}
    strange |= {"patternProperties": {"^x.{1,290}$": False, "^.{1,280}y$": False}}
    with pytest.raises(GrammarTooCostly):  # a mask of it takes more than a question may
        check_schema(strange)
