"""A walk that gives way again and again finds what it finds at a stretch, and a turn that ends in it loses nothing."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from imp_server.core.turns import OutOfTurn, turn
from imp_server.grammar.check import check_regex, check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.masks import native_walk
from imp_server.grammar.masks.masks import Masks
from imp_server.vocab.table import Vocabulary

from tests.grammar.test_masks import PIECES, SCHEMAS, VOCABULARY, walk_states

GRAMMARS: list[Any] = [
    *SCHEMAS[:4],
    SCHEMAS[-2],
    {"type": "array", "items": {"type": "string", "pattern": "^(.*[ab].{30}c)+$"}},
    {"type": "string", "pattern": "^(?:(?!foo|ab).){1,4}$"},
]


@pytest.mark.parametrize("schema", GRAMMARS, ids=range(len(GRAMMARS)))
def test_piece_by_piece_as_at_a_stretch(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = GrammarSpace(VOCABULARY)
    m = shared.matcher(check_schema(schema))
    states = walk_states(m, random.Random(5), 8)
    whole = [shared.masks.row(state).copy() for state in states]
    monkeypatch.setattr(native_walk, "PIECE_UNITS", 0)  # one node, and then the way back
    pieces = Masks(shared.space, shared.stepper, VOCABULARY)
    for state, row in zip(states, whole, strict=True):
        assert np.array_equal(pieces.row(state), row)


def test_known_names_are_judged_once_more_where_a_walk_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Correcting the mask of an undeclared name takes bits back: not those that were set since."""
    monkeypatch.setattr("imp_server.grammar.masks.masks.MANY", 0)
    shared = GrammarSpace(VOCABULARY)
    m = shared.matcher(check_schema({"properties": {"a": {"type": "integer"}, "ab": {}, "k": {}}, "type": "object"}))
    states = [state for text in (b'{"', b'{"a', b'{"ab":1, "') if (state := m.advance_bytes(m.start, text))]
    whole = [shared.masks.row(state).copy() for state in states]
    monkeypatch.setattr(native_walk, "PIECE_UNITS", 0)
    pieces = Masks(shared.space, shared.stepper, VOCABULARY)
    assert len(states) == 3
    for state, row in zip(states, whole, strict=True):
        assert np.array_equal(pieces.row(state), row)


def many_tokens(n: int) -> Vocabulary:
    rng, seen = random.Random(4), dict.fromkeys(PIECES)
    while len(seen) < n:
        seen["".join(rng.choices("etaoinshrdlucmfwypvbgk ", k=rng.randrange(3, 12))).encode()] = None
    return Vocabulary([*seen, None], {n: "<eos>"}, end_ids=(n,))


def asked_in_turns(shared: GrammarSpace, pattern: str, n_units: int) -> tuple[Any, int, float]:
    """(mask, turns, the longest one in seconds of CPU)"""
    m = shared.matcher(check_regex(pattern))
    n_turns, longest_s = 0, 0.0
    while True:
        n_turns += 1
        began_s = time.thread_time()
        try:
            with turn(n_units):
                return m.mask(m.start), n_turns, max(longest_s, time.thread_time() - began_s)
        except OutOfTurn:
            longest_s = max(longest_s, time.thread_time() - began_s)


DEAR = "(" + "|".join(f"x{i}.*y{i}" for i in range(60)) + "|(.*[ab].{100}c)+)"


def test_a_dear_mask_is_walked_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = many_tokens(5000)
    whole, n_turns, _ = asked_in_turns(GrammarSpace(vocabulary), DEAR, 1 << 40)
    assert n_turns == 1
    monkeypatch.setattr(native_walk, "PIECE_UNITS", 20)
    pieces, n_turns, _ = asked_in_turns(GrammarSpace(vocabulary), DEAR, 100)
    assert n_turns > 5 and np.array_equal(pieces, whole)


@pytest.mark.slow
def test_no_turn_of_200k_tokens_takes_20_ms() -> None:
    """At the length of a turn of the mask thread: that of the step loop's longest wait for a grammar."""
    shared = GrammarSpace(many_tokens(200_000))
    mask, n_turns, longest_s = asked_in_turns(shared, DEAR, 4000)
    assert n_turns > 2 and np.any(mask)
    assert longest_s < 0.02
