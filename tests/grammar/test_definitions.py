"""A string of a schema bound by a regex, a lark grammar or GBNF: the keyword x-imp-grammar."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.vocab.table import Vocabulary

SUMS = {
    "regex": r"\d+(\+\d+)*",
    "lark": 'start: INT | start "+" INT\nINT: /[0-9]+/',
    "gbnf": 'root ::= [0-9]+ ("+" [0-9]+)*',
}
NESTED = {"syntax": "lark", "definition": 'start: "(" start ")" | /[a-z]+/ | "\\n"'}


@cache
def space() -> GrammarSpace:
    return GrammarSpace(Vocabulary([bytes([i]) for i in range(256)] + [None], {256: "<end>"}, end_ids=[256]))


def takes(schema: dict[str, Any], value: Any, **options: Any) -> bool:
    matcher = space().matcher(check_schema(schema))
    state = matcher.advance_bytes(matcher.start, json.dumps(value, **options).encode())
    return state is not None and matcher.is_done(state)


@pytest.mark.parametrize("syntax", SUMS)
def test_a_string_is_a_text_of_the_grammar(syntax: str) -> None:
    bound = {"type": "string", "x-imp-grammar": {"syntax": syntax, "definition": SUMS[syntax]}}
    schema = {"type": "object", "properties": {"sum": bound, "n": {"type": "integer"}}, "required": ["sum"]}
    assert takes(schema, {"sum": "1+23+4", "n": 1}) and takes(schema, {"sum": "7"})
    for text in ("", "1+", "+1", "1 + 1", "a"):
        assert not takes(schema, {"sum": text})


def test_beside_other_keywords() -> None:
    schema = {"x-imp-grammar": NESTED}
    assert takes(schema, "((a))") and takes(schema, "(\n)") and not takes(schema, "((a)")
    assert takes(schema, 3), "like every keyword it speaks of strings only"
    assert takes({"type": "string", **schema, "pattern": "^\\("}, "(a)")
    assert not takes({"type": "string", **schema, "pattern": "^\\("}, "a")
    either = {"anyOf": [{"type": "string", **schema}, {"const": "#"}]}
    assert takes(either, "#") and takes(either, "(b)") and not takes(either, "(#)")
    assert takes({"type": "string", **schema, "maxLength": 3}, "(a)")
    assert not takes({"type": "string", **schema, "maxLength": 3}, "((a))")


@pytest.mark.parametrize(
    "found",
    [None, "start: a", {}, {"syntax": "lark"}, {"syntax": 1, "definition": "x"}, {"syntax": "a", "definition": "x"}],
)
def test_another_form_is_refused(found: Any) -> None:
    with pytest.raises(GrammarRefused, match="x-imp-grammar") as caught:
        check_schema({"properties": {"a": {"x-imp-grammar": found}}})
    assert caught.value.pointer == "/properties/a/x-imp-grammar"


def test_a_string_that_nothing_can_be_is_no_value() -> None:
    with pytest.raises((GrammarUnsatisfiable, GrammarRefused)):
        check_schema({"type": "string", "x-imp-grammar": {"syntax": "regex", "definition": "[]"}})
