"""Masks say exactly what advance does, for every token; the native walker equals the plain one."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher, State
from imp_server.grammar.masks.masks import Masks
from imp_server.grammar.masks.native_walk import available
from imp_server.vocab.table import Vocabulary

PIECES = [
    *(bytes([i]) for i in range(256)),
    *(p.encode() for p in (
        '":', '",', '", "', '"}', '{"', '{"a', '"a":', 'a":1,"a', '1,1', '1, 1', ',1', '12', '0.5', '],[', '[[', ']]',
        "}]", '","', '"a","', ' "', "\n  ", "\n    ", "true", "false,", "null}", "ab", "aab", "hello", "é", "😀",
        "\\n", "\\u00",        '\\"', "abc def", '"k":"a"', "x" * 40, '"b": "', "e", "tru",
    )),
    *(p.encode() for p in ("-" * 40, "-" * 50, "-" * 50 + '"', "é" * 20, "é" * 30, "\n" + " " * 40)),
    "é".encode()[:1] + b"", b"\xf0\x9f", b"\x98\x80\"",
]  # fmt: skip
VOCABULARY = Vocabulary([*PIECES, None, None], {len(PIECES): "<eos>"}, end_ids=(len(PIECES),))

SCHEMAS: list[Any] = [
    {},
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "integer"}, "ab": {}}, "additionalProperties": False},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "ab", 1]}, "minItems": 2},
    {"type": "string", "maxLength": 5},
    {"type": "string", "minLength": 3},
    {"type": "string", "maxLength": 100_000},
    {"type": "string", "minLength": 45, "maxLength": 64},
    {"type": "string", "pattern": "^[a-é-]{3,49}$"},
    {"type": "string", "pattern": "^[^a]+$", "maxLength": 47},
    {"type": "array", "items": {"type": "string", "pattern": "^a+b?$"}},
    {"enum": ["hello", "é", {"a": [1, True]}, None, 'q"']},
    {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["k"]},
            {"type": "object", "properties": {"k": {"const": "b"}, "x": {"type": "string"}}, "required": ["k"]},
        ]
    },
    {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {"type": "object", "propertyNames": {"maxLength": 2}, "maxProperties": 2},
]


def allowed(m: Matcher, state: State) -> set[int]:
    row = np.zeros((VOCABULARY.size + 31) // 32, dtype=np.uint32)
    m.fill_mask(state, row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return {int(i) for i in np.flatnonzero(bits)}


def walk_states(m: Matcher, rng: random.Random, n_tokens: int) -> list[State]:
    state, states = m.start, [m.start]
    for _ in range(n_tokens):
        ids = [i for i in allowed(m, state) if i not in VOCABULARY.end_ids]
        if not ids:
            break
        after = m.advance(state, rng.choice(sorted(ids)))
        assert after is not None
        state = after
        states.append(state)
    return states


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_mask_equals_advance_for_every_token(schema: Any) -> None:
    m = GrammarSpace(VOCABULARY).matcher(check_schema(schema))
    rng = random.Random(7)
    for _ in range(6):
        for state in walk_states(m, rng, 14):
            exact = {i for i in range(VOCABULARY.size) if m.advance(state, i) is not None}
            assert allowed(m, state) == exact
            assert exact, "a dead end"


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_native_walker_equals_the_plain_one(schema: Any) -> None:
    if not available():
        pytest.skip("the native library 'grammar' isn't built")
    shared = GrammarSpace(VOCABULARY)
    plain = Masks(shared.space, shared.stepper, VOCABULARY, use_native=False)
    m = shared.matcher(check_schema(schema))
    for state in walk_states(m, random.Random(3), 12):
        assert np.array_equal(plain.row(state), shared.masks.row(state))


def test_padding_and_special_ids_are_never_allowed() -> None:
    m = GrammarSpace(VOCABULARY).matcher(check_schema({}))
    row = np.full((VOCABULARY.size + 31) // 32 + 2, 0xFFFFFFFF, dtype=np.uint32)
    m.fill_mask(m.start, row)
    bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    assert len(bits)
    assert max(bits) < len(PIECES)


def test_masks_within_a_large_bound_cost_no_more() -> None:
    """Forty of them in a string whose length is bounded a hundred thousand characters away."""
    m = GrammarSpace(VOCABULARY).matcher(check_schema({"type": "string", "maxLength": 100_000, "minLength": 50_000}))
    state = m.advance_bytes(m.start, b'"')
    began_s = time.thread_time()
    for _ in range(40):
        assert state is not None and allowed(m, state)
        state = m.advance_bytes(state, b"a")
    assert time.thread_time() - began_s < 0.5, "a hundred times what they take"


def test_an_old_state_stays_good_after_the_row_went_on() -> None:
    m = GrammarSpace(VOCABULARY).matcher(check_schema(SCHEMAS[2]))
    here = m.advance_bytes(m.start, b'{"b": "x", ')
    assert here is not None
    before = allowed(m, here)
    for tail in (b'"a":1}', b'"zz":[1,2],"a":2}'):
        after = m.advance_bytes(here, tail)
        assert after is not None
        assert m.is_done(after)
    assert allowed(m, here) == before


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_closing_tokens_lead_to_the_end(schema: Any) -> None:
    m = GrammarSpace(VOCABULARY).matcher(check_schema(schema))
    for state in walk_states(m, random.Random(5), 10)[::3]:
        left = m.min_bytes(state)
        while not m.is_done(state):
            ids = m.closing_ids(state)
            assert ids, "steering has lost the way"
            assert set(ids) <= allowed(m, state)
            after = m.advance(state, ids[-1])
            assert after is not None
            assert m.min_bytes(after) < left
            state, left = after, m.min_bytes(after)
        assert m.closing_ids(state) == list(VOCABULARY.end_ids)
