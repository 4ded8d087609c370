"""Whitespace outside strings is bounded, by as much as the operator likes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher

from tests.grammar.judging import BYTES, reads

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "object"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
VALUE = {"a": [1, 22], "b": {"k": {"l": None}}}
COMPACT = json.dumps(VALUE, separators=(",", ":"))


def bounded(n_blanks: int, native: bool = True) -> Matcher:
    return GrammarSpace(BYTES, n_blanks=n_blanks, native=native).matcher(check_schema(SCHEMA))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("n_blanks", "indent", "good"),
    [(0, None, False), (1, None, True), (1, 2, False), (5, 2, False), (6, 2, True), (48, 12, True), (48, 13, True)],
)
def test_blanks_in_a_row(n_blanks: int, indent: int | None, good: bool, native: bool) -> None:
    m = bounded(n_blanks, native)
    assert reads(m, COMPACT)
    assert reads(m, json.dumps(VALUE, indent=indent)) == good


def test_never_two_newlines() -> None:
    assert reads(bounded(48), COMPACT.replace(":", ":\n"))
    assert not reads(bounded(48), COMPACT.replace(":", ":\n\n"))


def test_compact_text_is_forced() -> None:
    m = bounded(0)
    assert m.forced(m.start) == b'{"'
    state = m.advance_bytes(m.start, b'{"a')
    assert state is not None and m.forced(state) == b'":['
    state = m.advance_bytes(m.start, b'{"a":[1]')
    assert state is not None and m.forced(state) == b',"b":{'
