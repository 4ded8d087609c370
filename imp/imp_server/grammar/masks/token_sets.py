"""The tokens of one vocabulary as masks and tries, sorted by what they can do to a string. Made once per vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.masks.native_walk import available
from imp_server.grammar.masks.packed_trie import PackedTrie
from imp_server.grammar.masks.plain_tokens import closing_quote, plain_length
from imp_server.grammar.masks.trie import Token, TokenTrie, build_trie
from imp_server.vocab.table import Vocabulary

Row = NDArray[np.uint32]

NEAR = 32
"""Bytes of a token that isn't long."""


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
        self.packed: dict[int, PackedTrie] = {}
        """By the id of the trie; empty without native code."""
        self.full = self._in_blocks(self._tokens)
        self.residual = build_trie(residual)
        """All but the plain tokens."""
        # Tries by length, for states that count code points (masks.py). No string goes on with a control character.
        self.near = self._in_blocks([t for t in self._tokens if len(t[0]) <= NEAR])
        self.far = build_trie([t for t in self._tokens if len(t[0]) > NEAR and t[0][0] >= 0x20])
        self.residual_near = build_trie([t for t in residual if len(t[0]) <= NEAR])
        self.residual_far = build_trie([t for t in residual if len(t[0]) > NEAR and t[0][0] >= 0x20])
        self.closing = _closing(residual)
        """Tokens that a string reads up to its end, each without what stands before its quote."""
        self.closing_near = _closing([t for t in residual if len(t[0]) <= NEAR])
        self.quoted = build_trie([t for t in residual if b'"' in t[0] or b"\\" in t[0]])
        """Residual tokens that may end a name, or begin an escape."""
        inner = (self.residual, self.residual_near, self.residual_far, self.closing, self.closing_near, self.quoted)
        if available():
            self.packed |= {id(trie): PackedTrie(trie) for trie in (*inner, self.far)}

    def _in_blocks(self, tokens: list[Token]) -> TokenTrie:
        """Tokens with a quote stand behind the others (packed_trie.py)."""
        unquoted = [t for t in tokens if b'"' not in t[0]]
        trie = build_trie(unquoted + [t for t in tokens if b'"' in t[0]])
        if available():
            self.packed[id(trie)] = PackedTrie(trie, len(unquoted))
        return trie

    @property
    def n_bytes(self) -> int:
        """Memory of the tries and of the plain tokens' masks."""
        tries = [t for t in vars(self).values() if isinstance(t, TokenTrie)]
        arrays = sum(array.nbytes for trie in tries for array in trie)
        return arrays + self.plain.nbytes + sum(packed.n_bytes for packed in self.packed.values())

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


def _closing(tokens: list[Token]) -> TokenTrie:
    return build_trie(sorted((data[at:], i) for data, i in tokens if (at := closing_quote(data)) is not None))


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
