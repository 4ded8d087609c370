"""The tokens of one vocabulary as masks and tries, sorted by what they can do to a string. Made once per vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.native_walk import PackedTrie, available
from imp_server.grammar.trie import Token, build_trie
from imp_server.vocab.table import Vocabulary

Row = NDArray[np.uint32]

NEAR = 32
"""Bytes of a token that isn't long."""
MAX_PLAIN = 512
"""Code points of the longest plain token that is sorted by length; longer ones are walked."""


class TokenSets:
    """Owner of the tries. Plain tokens are whole code points that a JSON string writes as they are."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.n_words = (vocabulary.size + 31) // 32
        ends = set(vocabulary.end_ids)
        # End tokens, too: in some notations what ends a turn elsewhere is a tag within the reply.
        self._tokens: list[Token] = sorted((data, i) for i, data in enumerate(vocabulary.token_bytes) if data)
        lengths = [plain_length(data) for data, _ in self._tokens]
        residual = [t for t, n in zip(self._tokens, lengths, strict=True) if n is None]
        self.plain = self._sorted_by_length(lengths)
        """plain[k]: plain tokens of at most k code points; the last row holds all."""
        self.end = self._row([i for i in ends if i < vocabulary.size])
        self.by_bytes: dict[bytes, int] = dict(reversed(self._tokens))
        """The lowest id of each byte string."""
        self.longest = max((len(data) for data, _ in self._tokens), default=0)
        self.full = build_trie(self._tokens)
        self.residual = build_trie(residual)
        """All but the plain tokens."""
        # Tries by length, for states that count code points (masks.py). No string goes on with a control character.
        self.near = build_trie([t for t in self._tokens if len(t[0]) <= NEAR])
        self.far = build_trie([t for t in self._tokens if len(t[0]) > NEAR and t[0][0] >= 0x20])
        self.residual_near = build_trie([t for t in residual if len(t[0]) <= NEAR])
        self.residual_far = build_trie([t for t in residual if len(t[0]) > NEAR and t[0][0] >= 0x20])
        tries = (self.full, self.residual, self.near, self.far, self.residual_near, self.residual_far)
        self.packed = {id(trie): PackedTrie(trie) for trie in tries} if available() else {}

    def _row(self, ids: list[int]) -> Row:
        row: Row = np.zeros(self.n_words, np.uint32)
        for token_id in ids:
            row[token_id >> 5] |= np.uint32(1 << (token_id & 31))
        return row

    def _sorted_by_length(self, lengths: list[int | None]) -> Row:
        pairs = [(n, token_id) for n, (_, token_id) in zip(lengths, self._tokens, strict=True) if n is not None]
        table: Row = np.zeros((max((n for n, _ in pairs), default=0) + 1, self.n_words), np.uint32)
        if pairs:
            rows, ids = np.array(pairs, np.int64).T
            np.bitwise_or.at(table, (rows, ids >> 5), np.uint32(1) << (ids & 31).astype(np.uint32))
        return np.bitwise_or.accumulate(table, axis=0)


def plain_length(data: bytes) -> int | None:
    """Code points of a token that is plain string content; None if it isn't, or is too long to be sorted."""
    if data.translate(None, _PLAIN_BYTES):
        return None
    try:
        n = len(data.decode())
    except UnicodeDecodeError:
        return None
    return n if n <= MAX_PLAIN else None


_PLAIN_BYTES = bytes(b for b in range(0x20, 0x100) if b not in b'"\\')
_made: dict[str, TokenSets] = {}


def token_sets(vocabulary: Vocabulary) -> TokenSets:
    """The sets of a vocabulary, shared by all who have an equal one. The two latest are kept."""
    found = _made.get(vocabulary.digest)
    if found is None:
        found = TokenSets(vocabulary)
        if len(_made) >= 2:
            _made.pop(next(iter(_made)), None)
        _made[vocabulary.digest] = found
    return found
