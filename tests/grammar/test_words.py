"""Regexes, GBNF grammars, choices, formats and numbers at work: masks against advance, and where random walks end."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from imp_server.core import GrammarPlan, GrammarRefused
from imp_server.grammar.check import check_choices, check_gbnf, check_regex, check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher
from jsonschema.validators import Draft202012Validator

from tests.grammar.test_gbnf import JSON
from tests.grammar.test_masks import VOCABULARY, allowed, walk_states

CHOICES = ["yes", "no", "yes, but", "ja é"]
PLANS: list[tuple[GrammarPlan, Callable[[str], bool]]] = [
    (check_regex(r"[a-z]+(@|é)[0-9]{2,4}"), lambda t: bool(re.fullmatch(r"[a-z]+(@|é)[0-9]{2,4}", t))),
    (check_regex(r"(?:[^\n]{0,30}\n){1,3}x?"), lambda t: bool(re.fullmatch(r"(?:[^\n]{0,30}\n){1,3}x?", t))),
    (check_regex(r"(?i)select (?:\*|\w+(?:, \w+)*) from \w+;"), lambda t: t.lower().startswith("select ")),
    (check_gbnf('root ::= "(" root ")" root | ""'), lambda t: _balanced(t)),
    (check_gbnf(JSON), lambda t: isinstance(json.loads(t), dict)),
    (check_gbnf('root ::= "a" root "b" | "a" "a" root "b" | "c"'), lambda t: bool(re.fullmatch("a*cb*", t))),
    (check_choices(CHOICES), CHOICES.__contains__),
]
STRINGS: list[dict[str, Any]] = [
    {"format": name}
    for name in ("date-time", "duration", "email", "hostname", "ipv6", "json-pointer", "regex", "uri", "uuid")
]
STRINGS += [
    {"pattern": "^[a-z]{2,}$", "maxLength": 6},
    {"pattern": "cat", "minLength": 5, "maxLength": 9},
    {"pattern": "^([0-9]{3}|[0-9]{5})$", "minLength": 4},
    {"format": "date", "pattern": "^20"},
    {"format": "email", "maxLength": 12},
    {"allOf": [{"pattern": "^a"}, {"pattern": "b$"}], "not": {"pattern": "cc"}, "maxLength": 8},
    {"oneOf": [{"pattern": "^a"}, {"pattern": "b$"}]},
    {"anyOf": [{"format": "ipv4"}, {"enum": ["localhost", "é"]}]},
]
NUMBERS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": -5, "exclusiveMaximum": 120},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    {"type": "number", "multipleOf": 0.25, "minimum": -1.5, "maximum": 2},
    {"type": "integer", "multipleOf": 7, "minimum": 100, "maximum": 10**12},
    {"type": "number", "minimum": 2, "not": {"multipleOf": 1}},
    {"type": "number", "oneOf": [{"minimum": 3}, {"maximum": 5}]},
]


def _balanced(text: str) -> bool:
    depth = 0
    for char in text:
        depth += 1 if char == "(" else -1
        if depth < 0:
            return False
    return depth == 0


def finished(m: Matcher, rng: random.Random, n_tokens: int) -> str:
    """A random walk under the mask, closed by the grammar's own way out."""
    state, out = m.start, b""
    for _ in range(rng.randrange(n_tokens)):
        ids = sorted(allowed(m, state) - set(VOCABULARY.end_ids))
        if not ids:
            break
        token = rng.choice(ids)
        after = m.advance(state, token)
        assert after is not None
        state, out = after, out + VOCABULARY.token_bytes[token]
    assert m.min_bytes(state) == len(m.way_out(state))
    end = m.advance_bytes(state, m.way_out(state))
    assert end is not None and m.is_done(end)
    return (out + m.way_out(state)).decode()


@pytest.mark.parametrize(("plan", "holds"), PLANS, ids=range(len(PLANS)))
def test_masks_and_walks_of_words(plan: GrammarPlan, holds: Callable[[str], bool]) -> None:
    m = GrammarSpace(VOCABULARY).matcher(plan)
    rng = random.Random(5)
    for state in [s for _ in range(3) for s in walk_states(m, rng, 10)]:
        exact = {i for i in range(VOCABULARY.size) if m.advance(state, i) is not None}
        assert allowed(m, state) == exact
        assert exact, "a dead end"
    for _ in range(25):
        text = finished(m, rng, 20)
        assert holds(text), text


@pytest.mark.parametrize("schema", [*STRINGS, *NUMBERS], ids=json.dumps)
def test_masks_and_walks_of_scalars(schema: dict[str, Any]) -> None:
    typed = schema if "type" in schema else {"type": "string", **schema}
    m = GrammarSpace(VOCABULARY).matcher(check_schema(typed))
    rng = random.Random(11)
    for state in walk_states(m, rng, 8):
        exact = {i for i in range(VOCABULARY.size) if m.advance(state, i) is not None}
        assert allowed(m, state) == exact
        assert exact, "a dead end"
    validator = Draft202012Validator(typed, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for _ in range(25):
        text = finished(m, rng, 16)
        assert validator.is_valid(json.loads(text)), text


def test_refusals_name_the_keyword_and_its_place() -> None:
    schema = {"properties": {"a": {"items": {"pattern": r"(a)\1"}}}}
    with pytest.raises(GrammarRefused, match="back-reference") as caught:
        check_schema(schema)
    assert caught.value.pointer == "/properties/a/items/pattern"
