"""Which tokens leave room for the end: what each allowed token costs, its way to the end included.

Tokens that only move the top frame are followed through the trie level by level and priced by the frame they reach;
the others are stepped one by one. Where texts are remembered (names, unique items) tokens that reach the same frames
are priced by one of them, since each would be a state of its own: there the caller's own look at the token sampled is
the exact one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.core.turns import spend
from imp_server.grammar.frames.position_texts import machine_of
from imp_server.grammar.frames.stack import State, Stepper
from imp_server.grammar.frames.tables import DEAD, HOLE, TransitionTables
from imp_server.grammar.frames.texts import QUOTE
from imp_server.grammar.machines.position_machine import PositionMachine
from imp_server.grammar.masks.distance import NEVER, Distances
from imp_server.grammar.masks.token_sets import Row
from imp_server.grammar.masks.trie import TokenTrie
from imp_server.grammar.masks.walk import Stack, step_stack
from imp_server.vocab.table import Vocabulary

Int32s = NDArray[np.int32]

FEW = 64
"""Allowed tokens that aren't worth following through the trie."""
MAX_KEPT = 64
"""States whose prices are kept."""


class _Level(NamedTuple):
    nodes: NDArray[np.int64]
    parents: NDArray[np.int64]
    bytes: NDArray[np.uint8]


class Fitting:
    """Owner of the latest prices. Callers hold the lock of the grammar space."""

    def __init__(
        self,
        stepper: Stepper,
        distances: Distances,
        vocabulary: Vocabulary,
        trie: TokenTrie,
        nearest: Callable[[int, PositionMachine], Int32s | None],
    ) -> None:
        """`nearest`: of a text of positions, by token id: the position behind the token that is nearest to the end."""
        self._nearest = nearest
        self._stepper = stepper
        self._distances = distances
        self._token_bytes = vocabulary.token_bytes
        self._ends = frozenset(vocabulary.end_ids)
        self._trie = trie
        self._levels: list[_Level] = []
        self._prices: OrderedDict[State, tuple[Int32s, Int32s]] = OrderedDict()

    def restrict(self, state: State, row: Row, n_left: int) -> tuple[Row, bool]:
        """`row` with the tokens alone behind which the end is within `n_left` tokens, and whether that took any."""
        ids, prices = self.prices(state, row)
        gone = ids[prices > n_left]
        if not len(gone):
            return row, False
        found = row.copy()
        np.bitwise_and.at(found, gone >> 5, ~(np.uint32(1) << (gone & 31).astype(np.uint32)))
        return found, True

    def prices(self, state: State, row: Row) -> tuple[Int32s, Int32s]:
        """The allowed ids, and how many tokens the shortest known way behind each has (NEVER: none is known)."""
        known = self._prices.get(state)
        if known is not None:
            self._prices.move_to_end(state)
            return known
        ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).astype(np.int32)
        prices = self._priced(state, ids)
        self._prices[state] = ids, prices
        if len(self._prices) > MAX_KEPT:
            self._prices.popitem(last=False)
        return ids, prices

    def _priced(self, state: State, ids: Int32s) -> Int32s:
        prices = np.full(len(ids), NEVER, dtype=np.int32)
        if len(ids) > FEW:
            sets = self._sets(state)
            price = self._price if sets is None else self._price_of_set
            reached = (self._tops(state.cell.top) if sets is None else sets)[ids]
            kinds, first, kind_of = np.unique(reached, return_index=True, return_inverse=True)
            by_kind = np.array([price(state, int(t), int(ids[i])) for t, i in zip(kinds, first)], dtype=np.int32)
            prices = by_kind[kind_of.reshape(-1)]
            others = np.flatnonzero(reached == DEAD)
        else:
            others = np.arange(len(ids))
        if not state.marks:
            for at in others:
                prices[at] = self._exact(state, int(ids[at]))
            return prices
        alike: dict[Stack | int, int] = {}
        for at in others:
            kind = self._loosely(state, self._token_bytes[ids[at]])
            if not isinstance(kind, int) and kind in alike:
                prices[at] = alike[kind]
            else:
                prices[at] = alike[kind] = self._exact(state, int(ids[at]))
        return prices

    def _price(self, state: State, top: int, token_id: int) -> int:
        """Of the tokens that lead to `top`, `token_id` among them, and leave the rest of the stack alone."""
        if top == DEAD:
            return NEVER
        cell = self._stepper.cell(top, state.cell.below)
        tape = state.tape + self._token_bytes[token_id] if state.marks else b""
        return self._distances.n_tokens(State(cell, tape, state.marks))

    def _price_of_set(self, state: State, position: int, token_id: int) -> int:
        """Of the tokens behind which `position` is the nearest to the end: all go on from there."""
        return NEVER if position == DEAD else self._exact(state, token_id)

    def _sets(self, state: State) -> Int32s | None:
        """As `_tops`, by positions, where those alone tell the way to the end."""
        local = self._stepper.space.locals[state.cell.top]
        machine = None if state.marks else machine_of(local)
        return None if machine is None else self._nearest(local.id, machine)

    def _exact(self, state: State, token_id: int) -> int:
        spend()
        after = self._stepper.run(state, self._token_bytes[token_id])
        if after is None:
            return 0 if token_id in self._ends else NEVER
        return self._distances.n_tokens(after)

    def _loosely(self, state: State, data: bytes) -> Stack | int:
        """The frames after `data`, what they remember left out; a negative number where that decides."""
        tables, stack = self._stepper.space.tables, _stack(state)
        for byte in data:
            found, _, _ = step_stack(tables, stack, 0, byte)
            if isinstance(found, int):
                return found
            stack = found
        return stack

    def _tops(self, top: int) -> Int32s:
        """By token id: the top frame behind the token; DEAD where the token doesn't stay in the frame."""
        if not self._levels:
            self._levels = _levels(self._trie)
        tables, trie = self._stepper.space.tables, self._trie
        reached = np.full(len(trie.byte), DEAD, dtype=np.int32)
        for depth, level in enumerate(self._levels):
            if depth:
                before = reached[level.parents]
                alive = before >= 0
                if not alive.any():
                    break
                nodes, here, read = level.nodes[alive], before[alive], level.bytes[alive]
            else:
                nodes, read = level.nodes, level.bytes
                here = np.full(len(nodes), top, dtype=np.int32)
            # a quote may begin or end a text that is remembered: the exact step's business
            reached[nodes] = np.where(read == QUOTE, DEAD, np.maximum(_entries(tables, here, read), DEAD))
        out = np.full(len(self._token_bytes), DEAD, dtype=np.int32)
        n_tokens = np.diff(trie.first)
        out[trie.ids] = np.repeat(reached, n_tokens)
        return out


def _entries(tables: TransitionTables, tops: Int32s, read: NDArray[np.uint8]) -> Int32s:
    """The entries of pairs of frame and byte, holes filled."""
    found: Int32s = tables.rows[tops, read]
    holes = found == HOLE
    if holes.any():
        for pair in np.unique((tops[holes].astype(np.int64) << 8) | read[holes]):
            tables.entry(int(pair >> 8), int(pair & 255))
        found = tables.rows[tops, read]
    return found


def _levels(trie: TokenTrie) -> list[_Level]:
    levels: list[_Level] = []
    above = np.empty(0, dtype=np.int64)
    for depth in range(1, int(trie.depth.max(initial=0)) + 1):
        nodes = np.flatnonzero(trie.depth == depth)
        # preorder: a node's parent is the last node one level up that stands before it
        parents = above[np.searchsorted(above, nodes) - 1] if depth > 1 else nodes
        levels.append(_Level(nodes, parents, trie.byte[nodes]))
        above = nodes
    return levels


def _stack(state: State) -> Stack:
    tops = []
    cell = state.cell
    while True:
        tops.append(cell.top)
        if cell.below is None:
            break
        cell = cell.below
    stack: Stack = (tops[-1], None)
    for top in reversed(tops[:-1]):
        stack = (top, stack)
    return stack
