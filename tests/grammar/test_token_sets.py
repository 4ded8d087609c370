"""Vocabulary tries: the native layout equals the plain one, and both hold exactly the tokens."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.grammar.masks.plain_tokens import plain_length
from imp_server.grammar.masks.token_sets import TokenSets
from imp_server.grammar.masks.trie import TokenTrie, build_plainly, build_trie
from imp_server.native import load_library
from imp_server.vocab.table import Vocabulary

NATIVE = load_library("grammar") is not None


def spelled(trie: TokenTrie) -> list[tuple[bytes, int]]:
    """The tokens, read off the arrays."""
    found, path = [], bytearray()
    for node in range(len(trie.byte)):
        path[int(trie.depth[node]) - 1 :] = bytes([trie.byte[node]])
        found += [(bytes(path), int(i)) for i in trie.ids[trie.first[node] : trie.first[node + 1]]]
    return found


@pytest.mark.skipif(not NATIVE, reason="the native library 'grammar' isn't built")
@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=6) | st.sampled_from([b"a", b"ab", b"abc"]), max_size=40))
def test_native_trie_equals_the_plain_one(pieces: list[bytes]) -> None:
    tokens = sorted((data, i) for i, data in enumerate(pieces))
    native, plain = build_trie(tokens), build_plainly(tokens)
    left: Any
    right: Any
    for left, right in zip(native, plain, strict=True):
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    assert spelled(native) == tokens
    ends = [node + int(native.skip[node]) for node in range(len(native.byte))]
    for node, end in enumerate(ends):
        inside = native.depth[node + 1 : end]
        assert np.all(inside > native.depth[node])
        assert end == len(native.byte) or native.depth[end] <= native.depth[node]


@pytest.mark.parametrize(
    ("data", "n"),
    [(b"abc", 3), ("é€😀".encode(), 3), (b"a\x7f/", 3), (b'a"', None), (b"\\n", None), (b"\n", None), (b"\xc3", None),
     (b"\xa9", None), (b"\xed\xa0\x80", None), (b"x" * 513, None)],
)  # fmt: skip
def test_plain_tokens_are_whole_code_points(data: bytes, n: int | None) -> None:
    assert plain_length(data) == n


def test_sets_partition_the_vocabulary() -> None:
    rng = random.Random(1)
    pieces = [bytes([i]) for i in range(256)] + [
        "".join(rng.choice('abé😀"\\ \n-') for _ in range(rng.randrange(1, 50))).encode() for _ in range(3000)
    ]
    vocabulary = Vocabulary([*pieces, None, None], {len(pieces): "<eos>"}, end_ids=(len(pieces),))
    sets = TokenSets(vocabulary)
    plain = {int(i) for i in np.flatnonzero(np.unpackbits(sets.plain[-1].view(np.uint8), bitorder="little"))}
    residual = {i for _, i in spelled(sets.residual)}
    assert plain | residual == set(range(len(pieces) + 1)), "a tag may be what ends turns elsewhere"
    assert not plain & residual
    assert {i for _, i in spelled(sets.full)} == plain | residual
    for k in (0, 1, 7, len(sets.plain) - 1):
        bits = np.flatnonzero(np.unpackbits(sets.plain[k].view(np.uint8), bitorder="little"))
        assert set(bits.tolist()) == {i for i in plain if len(pieces[i].decode()) <= k}
    near, far = {i for _, i in spelled(sets.near)}, {i for _, i in spelled(sets.far)}
    control = {i for i, data in enumerate(pieces) if data[0] < 0x20}
    assert near | far | control == plain | residual
    assert not near & far
    assert np.flatnonzero(np.unpackbits(sets.end.view(np.uint8), bitorder="little")).tolist() == [len(pieces)]
