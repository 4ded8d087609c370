"""Keys in the order of the schema, for those who ask for it: the same values, fewer texts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarRefused
from imp_server.grammar.check import check_envelope
from imp_server.grammar.languages.envelope import Lit, Seq, Value
from jsonschema import Draft202012Validator

from tests.grammar.judging import accepts, matcher, plan_accepts, reads
from tests.grammar.schemas import schemas
from tests.grammar.test_random_schemas import RELAXED, several

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "at": {"type": "string"}},
    "required": ["age"],
}


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ('{"name": "x", "age": 3, "at": ""}', True),
        ('{"age": 3}', True),
        ('{"age": 3, "at": "", "more": 1, "and": 2}', True),
        ('{"age": 3, "name": "x"}', False),
        ('{"at": "", "age": 3}', False),
        ('{"more": 1, "age": 3}', False),
        ('{"age": 3, "more": 1, "at": ""}', False),
    ],
)
def test_declared_keys_come_as_listed_and_others_behind_them(text: str, good: bool) -> None:
    assert accepts(PERSON, text)
    assert reads(matcher(PERSON, key_order="schema"), text) == good


def test_the_order_is_that_of_each_schema() -> None:
    turned = {**PERSON, "properties": dict(reversed(PERSON["properties"].items()))}
    assert reads(matcher(turned, key_order="schema"), '{"age": 3, "name": "x"}')
    assert not reads(matcher(PERSON, key_order="schema"), '{"age": 3, "name": "x"}')


def test_a_required_key_is_never_passed() -> None:
    m = matcher(PERSON, key_order="schema")
    state = m.advance_bytes(m.start, b'{"na')
    assert state is not None
    assert json.loads(b'{"na' + m.way_out(state)) == {"name": "", "age": 0}
    assert m.advance_bytes(m.start, b'{"at') is None


def test_bases_come_before_what_extends_them() -> None:
    schema = {"allOf": [{"properties": {"id": {}}}, {"properties": {"kind": {}}}], "required": ["kind", "id"]}
    m = matcher({"type": "object"} | schema, key_order="schema")
    assert reads(m, '{"id": 1, "kind": 2}') and not reads(m, '{"kind": 2, "id": 1}')


def test_inside_an_envelope() -> None:
    plan = check_envelope(Seq((Lit(b"<a>"), Value(PERSON))), key_order="schema")
    assert plan_accepts(plan, '<a>{"name": "x", "age": 3}')
    assert not plan_accepts(plan, '<a>{"age": 3, "name": "x"}')


@settings(RELAXED, max_examples=80)
@given(schemas, several, st.integers(0, 10**6))
def test_every_valid_value_has_an_order(schema: Any, instances: list[Any], seed: int) -> None:
    """Walks stay valid, and what is accepted in order is accepted in any."""
    try:
        m = matcher(schema, key_order="schema")
    except GrammarRefused:
        return
    validator, rng = Draft202012Validator(schema), random.Random(seed)
    for value in instances:
        text = json.dumps(value)
        assert not reads(m, text) or validator.is_valid(value)
    state, out = m.start, bytearray()
    for _ in range(30):
        possible = [b for b in range(256) if m.advance_bytes(state, bytes([b])) is not None]
        if not possible:
            break
        byte = rng.choice(possible)
        after = m.advance_bytes(state, bytes([byte]))
        assert after is not None
        state = after
        out.append(byte)
        try:
            bytes(out).decode()
        except UnicodeDecodeError:
            continue
        assert validator.is_valid(json.loads(bytes(out) + m.way_out(state)))
