"""Length steering's arithmetic: the way out, its price in tokens, and the tokens that still leave room for it."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import Matcher
from imp_server.grammar.frames.stack import State
from imp_server.grammar.masks.distance import NEVER
from imp_server.grammar.places import Places
from imp_server.vocab.table import Vocabulary

WORDS = [b'{"', b'":', b'", "', b'"}', b'"]', b"]}", b"]]", b"true", b"null", b"name", b"  ", b"\n  ", b"aa", b"aaaa"]
PIECES: list[bytes | None] = [*(bytes([b]) for b in range(256)), *WORDS, *(f"tok{i}".encode() for i in range(90))]
PIECES += [*(f'"tok{i}'.encode() for i in range(80)), None]
VOCABULARY = Vocabulary(PIECES, {len(PIECES) - 1: "<end>"}, end_ids=(len(PIECES) - 1,))

SCHEMAS: dict[str, Any] = {
    "object": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "n": {"type": "integer"}, "big": {"type": "array", "minItems": 9}},
        "required": ["name", "n"],
    },
    "any keys": {"type": "object", "minProperties": 2, "additionalProperties": {"type": ["integer", "string"]}},
    "bounded string": {"type": "string", "minLength": 4, "maxLength": 40},
    "pattern": {"type": "string", "pattern": "^(a|b.{30})[a-z]*$"},
    "sets": {"type": "array", "minItems": 2, "items": {"type": "string", "pattern": '^(.*[ab].{30}[é"])+$'}},
    "nested": {"type": "array", "items": {"type": "array", "items": {"enum": ["tok1", "tok2", None]}, "minItems": 1}},
    "alternatives": {"oneOf": [{"const": "x"}, {"type": "object", "required": ["name"]}, {"type": "number"}]},
    "unique": {"type": "array", "uniqueItems": True, "minItems": 6, "items": {"type": "string"}},
}


def matcher(name: str) -> Matcher:
    return Matcher(check_schema(SCHEMAS[name]), VOCABULARY)


def states(m: Matcher, seed: int, n: int = 25) -> list[State]:
    """Along random walks under the mask."""
    rng = random.Random(seed)
    found, state = [], m.start
    for _ in range(n):
        found.append(state)
        ids = np.flatnonzero(np.unpackbits(m.mask(state).view(np.uint8), bitorder="little"))
        after = m.advance(state, int(rng.choice(list(ids))))
        state = m.start if after is None or after == state else after
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_route_leads_to_the_end_in_as_many_tokens_as_promised(name: str) -> None:
    m = matcher(name)
    for state in states(m, 1):
        route = m.route(state)
        assert len(route) == m.n_tokens_out(state) < NEVER
        written = b"".join(VOCABULARY.token_bytes[i] for i in route)
        assert written == m.way_out(state)
        for token_id in route:
            after = m.advance(state, token_id)
            assert after is not None
            state = after
        assert m.is_done(state)


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name != "unique"])
def test_the_narrowed_mask_is_exactly_what_fits(name: str) -> None:
    """Token by token: allowed, and the shortest completion behind it fits. Names are remembered, too."""
    m = matcher(name)
    for state in states(m, 2, 12):
        ids = np.flatnonzero(np.unpackbits(m.mask(state).view(np.uint8), bitorder="little"))
        prices = {}
        for token_id in ids.tolist():
            after = m.advance(state, token_id)
            assert after is not None
            prices[token_id] = m.n_tokens_out(after)
        for n_left in {0, 1, 3, min(prices.values()), m.n_tokens_out(state), 60}:
            row, took_any = m.fitting(state, n_left)
            kept = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
            assert kept == [token_id for token_id in ids.tolist() if prices[token_id] <= n_left]
            assert took_any == (len(kept) < len(ids))


def test_in_a_unique_array_nothing_that_does_not_fit_is_left() -> None:
    m = matcher("unique")
    for state in states(m, 3, 15):
        for n_left in (3, 9, 14, 20):
            row, _ = m.fitting(state, n_left)
            for token_id in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist():
                after = m.advance(state, token_id)
                # a value of the array may cost the way out a byte more than the one that it was priced by
                assert after is not None and m.n_tokens_out(after) <= n_left + 2


@pytest.mark.parametrize("items", [{"type": "integer"}, {"type": "string"}, {"enum": list(range(30))}])
def test_the_way_out_of_many_unique_items_is_cheap_everywhere(items: Any) -> None:
    """Against the same array without uniqueness, as a busy machine slows both: it was a thousand times as much."""
    schema = {"type": "array", "minItems": 20, "items": items}
    text = b"[1,22,3" if "string" not in items.values() else b'["a","bc",'
    plain, unique = (min(way_out_s(schema | extra, text) for _ in range(3)) for extra in ({}, {"uniqueItems": True}))
    assert unique < 40 * plain + 0.02


def way_out_s(schema: Any, text: bytes) -> float:
    """CPU time of the ways out along `text`; it may hold a collection of garbage, so the least of some counts."""
    m = Matcher(check_schema(schema), VOCABULARY)
    m.n_tokens_out(m.start)
    state, spent_s = m.start, 0.0
    for byte in text:
        after = m.advance_bytes(state, bytes([byte]))
        assert after is not None
        m.mask(after)
        began_s = time.thread_time()
        assert m.n_tokens_out(after) < NEVER
        spent_s += time.thread_time() - began_s
        state = after
    return spent_s


def test_a_place_answers_without_the_lock_what_it_was_asked_before() -> None:
    m = matcher("object")
    places = Places(m)
    after = places.step(places.start, 0x7B)
    assert after is not None
    places.n_out(after)
    places.forced(after)
    assert places.known_mask(after) is None
    places.mask(after)
    held = _Held(m)
    with held:
        again = places.step(places.start, 0x7B, 0.0)
        assert again is after
        assert places.n_out(after, 0.0) == m_out(after)
        assert places.known_mask(after) is not None
        with pytest.raises(TimeoutError):
            places.step(after, 0x22, 0.0)


def m_out(place: Any) -> int:
    assert place.n_out is not None
    return int(place.n_out)


class _Held:
    """The space's lock in another thread's hands."""

    def __init__(self, m: Matcher) -> None:
        import threading

        self._lock, self._free, self._taken = m.lock, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with self._lock:
            self._taken.set()
            self._free.wait(10)

    def __enter__(self) -> None:
        self._thread.start()
        self._taken.wait(10)

    def __exit__(self, *_: object) -> None:
        self._free.set()
        self._thread.join()


def test_a_name_of_any_length_leaves_a_way_out() -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^x_": {"type": "integer"}, "_y$": {"minimum": 5}},
        "additionalProperties": False,
        "minProperties": 2,
    }
    m = Matcher(check_schema(schema), VOCABULARY)
    for name in ("x_" + "name" * 1000, "x_" + "0123456789abcdef" * 50):
        state = m.advance_bytes(m.start, f'{{"{name}":1'.encode())
        assert state is not None and 0 < m.n_tokens_out(state) < 30
        assert m.advance_bytes(state, f',"{name}":1}}'.encode()) is None, "no name twice"
        assert m.advance_bytes(state, f',"{name}_":1}}'.encode()) is not None


def test_a_way_too_long_to_be_worked_out_is_no_way() -> None:
    m = Matcher(check_schema({"type": "string", "pattern": "^([a-z]{1000}){1000}$"}), VOCABULARY)
    state = m.advance_bytes(m.start, b'"abc')
    assert state is not None and m.n_tokens_out(state) == NEVER and m.route(state) == []
    assert m.advance_bytes(state, b"d") is not None and m.advance_bytes(state, b'"') is None
