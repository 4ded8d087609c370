"""What follows a string is judged by the endings of tokens alone; plain tokens go into a free text at once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.frames.native_store import KEY_TEXT
from imp_server.grammar.masks import masks as masks_module
from imp_server.grammar.masks.masks import Masks
from imp_server.grammar.masks.native_walk import available
from imp_server.grammar.masks.packed_trie import PackedTrie
from imp_server.grammar.masks.plain_tokens import closing_quote
from imp_server.grammar.masks.trie import build_trie
from imp_server.vocab.table import Vocabulary

from tests.grammar.test_masks import VOCABULARY as SMALL

pytestmark = pytest.mark.skipif(not available(), reason="the native library 'grammar' isn't built")

BITS = ["name", "na", "n", "age", "tags", "x", " the", "é", "日本", "1", "23", "true", " ", "\n  ", "a" * 34]
MARKS = [
    *('"', '"', '"', '":', '": ', '",', '", "', '"}', '"]', "{", "[", ",", ":", "}", "\\", "\\n", '\\"'),
    *("\\u00", "\\u0041", "\\ud83d"),
]


def vocabulary(n: int, seed: int) -> Vocabulary:
    """Tokens that cross the borders of strings in every way, some of them cut inside a code point."""
    rng = random.Random(seed)
    pieces = {bytes([i]) for i in range(256)}
    while len(pieces) < n:
        data = "".join(rng.choice(MARKS if rng.random() < 0.45 else BITS) for _ in range(rng.randrange(1, 6))).encode()
        begin = rng.randrange(3) if rng.random() < 0.1 else 0
        pieces.add(data[begin : len(data) - (rng.random() < 0.1)] or b"?")
    return Vocabulary([*sorted(pieces), None, None], {n: "<eos>"}, end_ids=(n,))


BIG = vocabulary(2000, 1)
NAMES = {"name": {"type": "string"}, "na": {"type": "integer"}, "n": {"enum": ["na", "name"]}, "": {}}
SCHEMAS: list[Any] = [
    {},
    {"type": "object", "properties": NAMES},
    {"type": "object", "properties": NAMES, "required": ["name", "n"], "maxProperties": 4},
    {"type": "object", "properties": NAMES, "additionalProperties": {"type": "object", "properties": NAMES}},
    {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "string"}, "maxItems": 2}}},
    {"type": "array", "items": {"type": "string", "maxLength": 90}},
    {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 33}},
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    {"type": "array", "items": {"type": "string", "pattern": "^n.*$"}},
    {"type": "object", "properties": {"n": {"type": "string", "pattern": "a"}}, "additionalProperties": False},
]  # fmt: skip


def bits(row: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_masks_equal_advance_and_the_plain_walk(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks_module, "MANY", 0)
    shared = GrammarSpace(BIG)
    plain = Masks(shared.space, shared.stepper, BIG, use_native=False)
    m = shared.matcher(check_schema(schema))
    rng = random.Random(5)
    for walk in range(2):
        state = m.start
        for at in range(14):
            row = shared.masks.row(state)
            ids = bits(row)
            assert np.array_equal(row, plain.row(state))
            if walk == 0 and at % 2:
                assert ids == {i for i in range(BIG.size) if m.advance(state, i) is not None}
            # tokens that end nothing lead far; those with a quote lead to what is being tested
            ids -= set(BIG.end_ids)
            chosen = sorted(i for i in ids if b'"' in (BIG.token_bytes[i] or b"")) or sorted(ids)
            if not chosen:
                break
            after = m.advance(state, rng.choice(chosen if rng.random() < 0.5 else sorted(ids)))
            assert after is not None
            state = after


def test_a_known_name_borrows_the_mask_of_an_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the comparison above wouldn't see it."""
    monkeypatch.setattr(masks_module, "MANY", 0)
    shared = GrammarSpace(SMALL)
    m = shared.matcher(check_schema(SCHEMAS[1]))
    state = m.advance_bytes(m.start, b'{"na')
    assert state is not None
    assert shared.space.tables.kind_of[state.cell.top] == KEY_TEXT
    walked: list[tuple[Any, ...]] = []
    assert shared.masks._native is not None
    original = shared.masks._native.walk_keys

    def noted(*given: Any) -> None:
        walked.append(given)
        original(*given)

    monkeypatch.setattr(shared.masks._native, "walk_keys", noted)
    shared.masks.row(state)
    assert walked


@pytest.mark.parametrize(
    ("data", "at"),
    [(b'"', 0), (b'ab",', 2), (b'a\\"b"', 4), (b"ab", None), (b'\\q"', None), (b'\n"', None), (b'\xc3"', None),
     (b'\\ud83d"', None), (b'\\ud83d\\ude00"', 12), (b'\\"', None), (b'\\\\"', 2), (b'\x7f\\/"', 3)],
)  # fmt: skip
def test_the_quote_that_closes_a_string(data: bytes, at: int | None) -> None:
    assert closing_quote(data) == at


def test_blocks_hold_the_same_tokens() -> None:
    tokens = sorted((data, i) for i, data in enumerate(BIG.token_bytes) if data)
    unquoted = [t for t in tokens if b'"' not in t[0]]
    trie = build_trie(unquoted + [t for t in tokens if b'"' in t[0]])
    packed = PackedTrie(trie, len(unquoted))
    ids = [block.arrays[2] for block in packed.blocks]
    assert sorted(np.concatenate(ids).tolist()) == sorted(i for _, i in tokens)
    assert set(ids[1].tolist()) == {i for data, i in tokens if b'"' in data}
    assert packed.n_bytes == sum(array.nbytes for block in packed.blocks for array in block.arrays)
