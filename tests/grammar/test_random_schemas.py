"""Random schemas against `jsonschema`, both ways: same verdict on values, and whatever is generated is valid."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.engine import GrammarSpace
from jsonschema import Draft202012Validator

from tests.grammar.judging import byte_space, matcher, reads
from tests.grammar.schemas import schemas, values
from tests.grammar.test_masks import VOCABULARY, allowed

RELAXED = settings(deadline=None, max_examples=250, suppress_health_check=list(HealthCheck), database=None)
LONG = settings(RELAXED, max_examples=4000)
several = st.lists(values, min_size=6, max_size=10)


def agree(schema: Any, instances: list[Any], raw: bool) -> None:
    validator = Draft202012Validator(schema)
    try:
        m = matcher(schema)
    except GrammarUnsatisfiable:
        assert not any(validator.is_valid(v) for v in instances)
        return
    except GrammarRefused:
        return
    shortest = json.loads(m.way_out(m.start))
    assert validator.is_valid(shortest)
    for value in [*instances, shortest]:
        text = json.dumps(value, ensure_ascii=not raw)
        assert reads(m, text) == validator.is_valid(value), text


@RELAXED
@given(schemas, several, st.booleans())
def test_verdicts_agree(schema: Any, instances: list[Any], raw: bool) -> None:
    agree(schema, instances, raw)


@pytest.mark.slow
@pytest.mark.timeout(900)
@LONG
@given(schemas, several, st.booleans())
def test_verdicts_agree_at_length(schema: Any, instances: list[Any], raw: bool) -> None:
    agree(schema, instances, raw)


TOKENS = GrammarSpace(VOCABULARY)


def generate(schema: Any, seed: int) -> None:
    """A random walk by tokens under the mask, steered to its end after a while, is valid; no state is a dead end."""
    from imp_server.grammar.check import check_schema

    try:
        m = TOKENS.matcher(check_schema(schema))
    except GrammarRefused:
        return
    rng, state, out = random.Random(seed), m.start, bytearray()
    for _ in range(25):
        ids = allowed(m, state)
        assert ids, "a dead end"
        if ids & set(VOCABULARY.end_ids):
            assert m.is_done(state)
            if rng.random() < 0.5:
                break
        ids -= set(VOCABULARY.end_ids)
        if not ids:
            break
        # short tokens get a chance beside the crowd of plain text
        token = rng.choice(sorted(ids, key=lambda i: (len(VOCABULARY.token_bytes[i]), i))[: rng.choice([8, 400])])
        after = m.advance(state, token)
        assert after is not None
        byte_by_byte = state
        for byte in VOCABULARY.token_bytes[token]:
            step = m.advance_bytes(byte_by_byte, bytes([byte]))
            assert step is not None
            byte_by_byte = step
        assert byte_by_byte == after
        out += VOCABULARY.token_bytes[token]
        state = after
    rest = m.way_out(state)
    assert m.min_bytes(state) == len(rest)
    value = json.loads((bytes(out) + rest).decode())
    assert Draft202012Validator(schema).is_valid(value), bytes(out) + rest


@settings(RELAXED, max_examples=120)
@given(schemas, st.integers(0, 10**6))
def test_walks_under_the_mask_are_valid(schema: Any, seed: int) -> None:
    generate(schema, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(LONG, max_examples=1500)
@given(schemas, st.integers(0, 10**6))
def test_walks_under_the_mask_are_valid_at_length(schema: Any, seed: int) -> None:
    generate(schema, seed)


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        items = [(k, shuffled(v, rng)) for k, v in value.items()]
        rng.shuffle(items)
        return dict(items)
    return [shuffled(v, rng) for v in value] if isinstance(value, list) else value


@settings(RELAXED, max_examples=120)
@given(schemas, several, st.integers(0, 10**6))
def test_keys_may_come_in_any_order(schema: Any, instances: list[Any], seed: int) -> None:
    try:
        m = matcher(schema)
    except GrammarRefused:
        return
    validator = Draft202012Validator(schema)
    for value in instances:
        if validator.is_valid(value):
            assert reads(m, json.dumps(shuffled(value, random.Random(seed)), indent=2))


def test_the_space_is_shared_and_bounded() -> None:
    assert byte_space().space.tables.n_locals < 400_000
