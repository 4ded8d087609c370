"""Token masks: packed bits per vocabulary, each walked once and kept.

Owner, per vocabulary, of the token tries and of the memo. A mask is known by the frames that its walk read: mostly
the top one, and as many below as some token could pop. So strings, numbers and gaps share their masks across
schemas. Tokens that are plain string content aren't walked at all: they are or-ed in by length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.frames.key_texts import KeyText
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.stack import Cell, State, Stepper
from imp_server.grammar.frames.texts import Text
from imp_server.grammar.frames.verdicts import Single
from imp_server.grammar.machine import UNBOUNDED
from imp_server.grammar.native_walk import NativeWalker, available
from imp_server.grammar.plain_length import PlainLength
from imp_server.grammar.walk import TokenTrie, WalkResult, build_trie, walk
from imp_server.vocab.table import Vocabulary

Row = NDArray[np.uint32]
N_LENGTHS = 33
"""Plain tokens are sorted by length up to here; longer ones count as this long."""


class Masks:
    def __init__(self, space: Space, stepper: Stepper, vocabulary: Vocabulary, use_native: bool = True) -> None:
        """`use_native` False: the plain walker, where the native one is what is being tested."""
        self.vocabulary = vocabulary
        self.n_words = (vocabulary.size + 31) // 32
        self._space = space
        self._stepper = stepper
        ends = set(vocabulary.end_ids)
        tokens = [(i, b) for i, b in enumerate(vocabulary.token_bytes) if b and i not in ends]
        lengths = [(i, plain_length(b)) for i, b in tokens]
        by_length = np.zeros((N_LENGTHS + 1, self.n_words), dtype=np.uint32)
        for token_id, n in lengths:
            if n is not None:
                by_length[min(n, N_LENGTHS), token_id >> 5] |= np.uint32(1 << (token_id & 31))
        self._plain: Row = np.bitwise_or.accumulate(by_length, axis=0)
        self._full = build_trie(tokens)
        self._residual = build_trie([t for t, (_, n) in zip(tokens, lengths) if n is None])
        self._end: Row = np.zeros(self.n_words, dtype=np.uint32)
        for token_id in vocabulary.end_ids:
            self._end[token_id >> 5] |= np.uint32(1 << (token_id & 31))
        native = NativeWalker(space.tables) if use_native and available() else None
        self._walk: Callable[[TokenTrie, list[int], Row], WalkResult] = (
            native.walk if native else partial(walk, space.tables)
        )
        self._memo: dict[int, Any] = {}
        self._rows: dict[Cell, tuple[Row, list[tuple[TokenTrie, int]]]] = {}
        self._exact: dict[State, Row] = {}

    def row(self, state: State) -> Row:
        """The mask of a state. Shared: never write to it."""
        known = self._rows.get(state.cell)
        if known is None:
            known = self._rows[state.cell] = self._with_end(state.cell)
        return known[0] if not known[1] else self._answered(state, *known)

    def _with_end(self, cell: Cell) -> tuple[Row, list[tuple[TokenTrie, int]]]:
        row, asks = self._shared(cell)
        return (row | self._end if self._stepper.is_done(cell) else row), asks

    def _shared(self, cell: Cell) -> tuple[Row, list[tuple[TokenTrie, int]]]:
        """The mask without end tokens, from the memo or walked."""
        top = self._alias(cell.top)
        node: Any = self._memo.get(top)
        below = cell.below
        while isinstance(node, dict):
            node = node.get(None if below is None else below.top)
            below = None if below is None else below.below
        if node is None:
            out: Row = np.zeros(self.n_words, dtype=np.uint32)
            trie = self._begin(top, out)
            result = self._walk(trie, _stack(top, cell.below), out)
            node = out, [(trie, at) for at in result.asks]
            self._store(top, cell.below, result, node)
        found: tuple[Row, list[tuple[TokenTrie, int]]] = node
        return found

    def _store(self, top: int, below: Cell | None, result: WalkResult, node: Any) -> None:
        level, key = self._memo, top
        for _ in range(result.depth_used):
            level = level.setdefault(key, {})
            key = -1 if below is None else below.top
            below = None if below is None else below.below
        level[key] = node

    def _alias(self, top: int) -> int:
        """A local with the same mask that many share: far-away length bounds are as good as none."""
        local = self._space.locals[top]
        if not isinstance(local, Text) or local.closer is not None or local.missing:
            return top
        verdicts = local.verdicts
        if not isinstance(verdicts, Single) or not isinstance(verdicts.machine, PlainLength):
            return top
        needed, allowed = verdicts.machine.near(local.state)
        near = self._space.length_text(needed, None if allowed < 0 else allowed)
        return self._space.text(near, near.start, 0, None).id

    def _begin(self, top: int, out: Row) -> TokenTrie:
        """Or in the plain tokens where any text fits; the trie that is left to walk."""
        local = self._space.locals[top]
        if isinstance(local, KeyText) and not local.missing:
            # whatever is typed leaves the trie at worst: an undeclared name
            out |= self._plain[N_LENGTHS]
            return self._residual
        if not isinstance(local, Text) or local.missing:
            return self._full
        room = local.verdicts.room(local.state)
        exact = isinstance(local.verdicts, Single) and isinstance(local.verdicts.machine, PlainLength)
        if room >= UNBOUNDED or (exact and room >= N_LENGTHS):
            if room < UNBOUNDED:
                out |= self._plain[N_LENGTHS - 1]
                return self._full
            out |= self._plain[N_LENGTHS]
            return self._residual
        if exact:
            out |= self._plain[room]
            return self._residual
        return self._full

    def _answered(self, state: State, row: Row, asks: list[tuple[TokenTrie, int]]) -> Row:
        """`row` with the tokens that only the exact step can judge."""
        found = self._exact.get(state)
        if found is None:
            found = row.copy()
            for trie, node in asks:
                self._ask(state, trie, node, found)
            if len(self._exact) > 4096:
                self._exact.clear()
            self._exact[state] = found
        return found

    def _ask(self, state: State, trie: TokenTrie, node: int, out: Row) -> None:
        first, last = trie.first[node], trie.first[node + int(trie.skip[node])]
        for token_id in trie.ids[first:last]:
            if self._stepper.run(state, self.vocabulary.token_bytes[token_id]) is not None:
                out[token_id >> 5] |= np.uint32(1 << (int(token_id) & 31))


def plain_length(data: bytes) -> int | None:
    """Code points of a token that is plain string content; None if it isn't."""
    if any(b < 0x20 or b in (0x22, 0x5C) for b in data):
        return None
    try:
        return len(data.decode())
    except UnicodeDecodeError:
        return None


def _stack(top: int, below: Cell | None) -> list[int]:
    tops = [top]
    while below is not None:
        tops.append(below.top)
        below = below.below
    return tops
