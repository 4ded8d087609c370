"""Token masks: packed bits per vocabulary, each walked once and kept.

Owner, per vocabulary, of the token tries and of the memo. A mask is known by the frames that its walk read: mostly
the top one, and as many below as some token could pop. So strings, numbers and gaps share their masks across
schemas. Tokens that are plain string content aren't walked at all: they are or-ed in by length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import memset
from functools import partial
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.core.turns import charge, kept, spend
from imp_server.grammar.frames.key_texts import KeyText
from imp_server.grammar.frames.native_store import KEY_TEXT
from imp_server.grammar.frames.plain_values import Scalar
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.stack import Cell, State, Stepper
from imp_server.grammar.frames.texts import Text
from imp_server.grammar.frames.verdicts import Single
from imp_server.grammar.machines.combine import alias_of, universal
from imp_server.grammar.machines.giving_up import dropped, part
from imp_server.grammar.machines.machine import DEAD, UNBOUNDED
from imp_server.grammar.machines.plain_length import PlainLength
from imp_server.grammar.machines.position_machine import PositionMachine
from imp_server.grammar.masks.native_walk import NativeWalker, available
from imp_server.grammar.masks.token_sets import NEAR, Row, token_sets
from imp_server.grammar.masks.trie import TokenTrie
from imp_server.grammar.masks.walk import Walk, walk
from imp_server.vocab.table import Vocabulary

Asks = list[tuple[TokenTrie, int]]
Found = tuple[Row, Asks]
"""A mask, and the trie nodes whose tokens only the exact step can judge."""


class Walked(NamedTuple):
    """A mask without end tokens. `depth`: frames below the top that it depends on."""

    row: Row
    asks: Asks
    depth: int


N_BYTES = 400
"""Memory of what is known of a mask, its bits excepted."""
SLAB_BYTES = 4 << 20
MOST_UNDER_WAY = 64
"""Walks that are remembered in the middle: those of masks whose question ran out of its turn."""
MANY = 4096
"""Nodes of residual tokens from which on known names borrow the mask of an undeclared one: fewer are walked sooner."""


class SpareRows:
    """Owner of the memory of masks: empty rows, touched before they are needed.

    A fresh page costs microseconds, a large mask has seven: so while one slab is used up a thread touches the next.
    """

    def __init__(self, n_words: int) -> None:
        self._n_words = n_words
        self.n_bytes = 0
        """Of the rows that were ever touched."""
        self._n_rows = max(16, SLAB_BYTES // (4 * n_words))
        self._next: Row | None = None
        self._touching: Thread | None = None
        self._touch()
        self._begin()

    def _touch(self) -> None:
        slab: Row = np.zeros((self._n_rows, self._n_words), np.uint32)
        memset(slab.ctypes.data, 0, slab.nbytes)  # without the interpreter's lock
        self._next = slab

    def _begin(self) -> None:
        """Go on with the slab that is ready."""
        if self._touching is not None:
            self._touching.join()
        assert self._next is not None
        self._slab, self._next = self._next, None
        self.n_bytes += self._slab.nbytes
        self._address = self._slab.ctypes.data
        self._n_taken = 0

    def take(self) -> tuple[Row, int]:
        """An empty row and its address."""
        at = self._n_taken
        if at == self._n_rows:
            self._begin()
            at = 0
        elif at == self._n_rows // 2:
            self._touching = Thread(target=self._touch, daemon=True)
            self._touching.start()
        self._n_taken = at + 1
        return self._slab[at], self._address + 4 * at * self._n_words

    def give_back(self, row: Row) -> None:
        """The row taken last wasn't needed."""
        row[:] = 0
        self._n_taken -= 1

    def either(self, a: Row, b: Row) -> Row:
        """`a` or `b`, bit by bit, as a row of its own."""
        row, _ = self.take()
        np.bitwise_or(a, b, out=row)
        return row


class Masks:
    """Owner of the masks of one space and vocabulary. Callers hold the space's lock."""

    def __init__(self, space: Space, stepper: Stepper, vocabulary: Vocabulary, use_native: bool = True) -> None:
        """`use_native` False: the plain walker, where the native one is what is being tested."""
        self.vocabulary = vocabulary
        self._sets = token_sets(vocabulary)
        self.n_words = self._sets.n_words
        self._space = space
        self._stepper = stepper
        self._native = NativeWalker(space.tables, self._sets.packed) if use_native and available() else None
        self._piece: Callable[[Walk, list[int]], None] = (
            self._native.walk if self._native else partial(walk, space.tables)
        )
        self.by_bytes = self._sets.by_bytes
        self.trie = self._sets.full
        self._memo: dict[int, Any] = {}
        self._memo_near: dict[int, Any] = {}
        self._memo_far: dict[int, Any] = {}
        self._rows: dict[Cell, Found] = {}
        self._fresh = SpareRows(self.n_words)
        self._exact: dict[State, Row] = {}
        self._under_way: dict[tuple[Any, ...], Walk] = {}
        self._free = space.texts.free().id
        # what stays inside of a free text, whatever is around it
        self._inside, self._inside_near = (self._staying(t) for t in (self._sets.residual, self._sets.residual_near))

    def given_up(self) -> Iterator[None]:
        """Take everything apart, a piece at each step. Nobody uses it any more."""
        yield from dropped(self._memo, self._memo_near, self._memo_far, self._rows, self._exact, self._under_way)
        for thing in (self._native, self._fresh, self):
            part(thing)
            yield

    def _staying(self, trie: TokenTrie) -> Row:
        staying = self._begun(lambda _: trie)
        while self._native and not staying.is_over:
            self._native.walk(staying, [self._free])
        return staying.out

    @property
    def n_bytes(self) -> int:
        """Memory of the masks made so far."""
        return self._fresh.n_bytes

    @property
    def vocabulary_bytes(self) -> int:
        """Memory of what is made once per vocabulary."""
        return self._sets.n_bytes

    def known(self, state: State) -> Row | None:
        """A mask that was made before and depends on nothing else. Needs no lock: finished ones stay as they are."""
        found = self._rows.get(state.cell)
        return None if found is None or found[1] else found[0]

    def row(self, state: State) -> Row:
        """The mask of a state. Shared: never write to it."""
        known = self._rows.get(state.cell)
        if known is None:
            charge(N_BYTES, 8)
            known = self._rows[state.cell] = self._with_end(state.cell)
        return known[0] if not known[1] else self._answered(state, *known)

    def nearest(self, local: int, machine: PositionMachine) -> NDArray[np.int32] | None:
        """By token id: the position nearest to the end behind the token; DEAD where it ends elsewhere.

        `local`: a text of positions. None where its way isn't told by the nearest position, or without native code.
        """
        native = self._native
        if native is None or not machine.is_directed:
            return None
        order = np.array(machine.ways.ranks(), np.int32)

        key = "nearest", local
        found = self._under_way.pop(key, None)
        if found is None:
            out = np.full(self.vocabulary.size, DEAD, np.int32)
            found = Walk(self._sets.full, out, out.ctypes.data)
        self._walk_on(key, found, lambda walk_, _: native.nearest(walk_, local, order.ctypes.data), [])
        spend(found.n_units)
        return found.out

    def _with_end(self, cell: Cell) -> Found:
        row, asks = self._shared(cell)
        return (self._fresh.either(row, self._sets.end) if self._stepper.is_done(cell) else row), asks

    def _shared(self, cell: Cell) -> Found:
        """The mask without end tokens."""
        kind = self._kind(cell.top)
        if kind:
            borrows = kind == KEY_TEXT and self._native and len(self._sets.residual.byte) >= MANY
            found = self._key(cell) if borrows else self._walked(cell.top, cell.below)
            return found.row, found.asks
        top = self._alias(cell.top, self._sets.longest)
        near = self._alias(top, NEAR)
        if near == top:
            row, asks, _ = self._walked(top, cell.below)
            return row, asks
        # a count that only the few longest tokens could reach: those are walked from the state itself
        plain = self._is_plain(top)
        row, asks, _ = self._near(near, cell.below, plain)
        if plain:
            row = self._fresh.either(row, self._sorted_plain(top))
        long = self._sets.residual_far if plain else self._sets.far
        if len(long.byte):
            more = self._known(self._memo_far, top, cell.below)
            if more is None:
                more = self._judged(self._memo_far, top, cell.below, lambda _: long)
            row, asks = self._fresh.either(row, more.row), asks + more.asks
        return row, asks

    def _walked(self, top: int, below: Cell | None) -> Walked:
        found = self._known(self._memo, top, below)
        if found is None:
            found = self._judged(self._memo, top, below, lambda out: self._begin(top, out))
        return found

    def _near(self, top: int, below: Cell | None, plain: bool) -> Walked:
        """The same for tokens that aren't long. `plain`: without those that are sorted by length."""
        found = self._known(self._memo_near, top, below)

        def begin(out: Row) -> TokenTrie:
            if plain and self._is_free(top):
                out |= self._inside_near
                return self._sets.closing_near
            return self._sets.residual_near if plain else self._sets.near

        return found or self._judged(self._memo_near, top, below, begin)

    def _key(self, cell: Cell) -> Walked:
        """On the trie of known names: as an undeclared name, but for tokens that known names judge."""
        found = self._known(self._memo, cell.top, cell.below)
        if found is None:
            native, simple = self._native, self._space.simple
            assert native is not None and simple is not None
            base = self._walked(self._free, self._stepper.cell(simple.waiting_key(cell.top), cell.below))
            stack = _stack(cell.top, cell.below)

            def begin(out: Row) -> TokenTrie:
                out[:] = base.row
                return self._sets.quoted

            key = id(self._memo), cell.top, cell.below
            walk_ = self._under_way.pop(key, None) or self._begun(begin)
            self._walk_on(key, walk_, native.walk_keys, stack)
            asks = base.asks + [(walk_.trie, at) for at in walk_.asks]
            found = Walked(walk_.out, asks, max(walk_.depth_used, base.depth - 1))
            self._store(self._memo, cell.top, cell.below, found)
            self._pay(walk_)
        return found

    def _known(self, memo: dict[int, Any], top: int, below: Cell | None) -> Walked | None:
        node: Any = memo.get(top)
        while type(node) is dict:
            if below is None:
                node = node.get(-1)
            else:
                node = node.get(below.top)
                below = below.below
        found: Walked | None = node
        return found

    def _judged(self, memo: dict[int, Any], top: int, below: Cell | None, begin: Callable[[Row], TokenTrie]) -> Walked:
        """The tokens that can be read. `begin`: writes those that aren't walked; the trie of the others."""
        stack = _stack(top, below)
        key = id(memo), top, below
        walk_ = (self._under_way.pop(key, None) if self._under_way else None) or self._begun(begin)
        self._walk_on(key, walk_, self._piece, stack)
        found = Walked(walk_.out, [(walk_.trie, at) for at in walk_.asks], walk_.depth_used)
        self._store(memo, top, below, found)
        self._pay(walk_)
        return found

    def _begun(self, begin: Callable[[Row], TokenTrie]) -> Walk:
        out, address = self._fresh.take()
        return Walk(begin(out), out, address)

    def _walk_on(
        self, key: tuple[Any, ...], walk_: Walk, piece: Callable[[Walk, list[int]], None], stack: list[int]
    ) -> None:
        """Until it is over; its last piece isn't paid for. Where a turn ends in the middle it goes on later."""
        try:
            piece(walk_, stack)
            while not walk_.is_over:
                self._pay(walk_)
                piece(walk_, stack)
        except BaseException:
            if walk_.is_begun:
                self._under_way[key] = walk_
                if len(self._under_way) > MOST_UNDER_WAY:
                    del self._under_way[next(iter(self._under_way))]
            elif walk_.out.dtype == np.uint32:
                self._fresh.give_back(walk_.out)
            raise

    def _pay(self, walk_: Walk) -> None:
        """What native code has done can't be paid for before: it is kept first, should the turn be over."""
        if walk_.n_units:
            kept()
            spend(walk_.n_units)

    def _store(self, memo: dict[int, Any], top: int, below: Cell | None, found: Walked) -> None:
        level, key = memo, top
        for _ in range(found.depth):
            level = level.setdefault(key, {})
            key = -1 if below is None else below.top
            below = None if below is None else below.below
        level[key] = found

    def _alias(self, top: int, n: int) -> int:
        """A local that many share and that can't be told from `top` within n code points: far counts are as none."""
        local = self._space.locals[top]
        if isinstance(local, Scalar):
            return self._free_alias(local, n)
        if not isinstance(local, Text) or local.closer is not None or local.missing:
            return top
        verdicts = local.verdicts
        if not isinstance(verdicts, Single):
            return top
        if isinstance(verdicts.machine, PlainLength):
            needed, allowed = verdicts.machine.near(local.state, n)
            near = self._space.verdicts.of_length(needed, None if allowed < 0 else allowed)
            return self._space.texts.text(near, near.start, 0, None).id
        machine, state = alias_of(verdicts.machine, local.state, n)
        if machine is verdicts.machine and state == local.state:
            return top
        return self._space.texts.text(self._space.verdicts.single(machine, verdicts.strict), state, 0, None).id

    def _free_alias(self, local: Scalar, n: int) -> int:
        """The same for bare text: where any may follow, nothing counts but whether it may end here."""
        verdicts, space = local.verdicts, self._space
        if not isinstance(verdicts, Single) or isinstance(verdicts.machine, PlainLength):
            return local.id
        if verdicts.room(local.state) < UNBOUNDED:
            return local.id
        free = space.verdicts.of_length(0 if verdicts.result(local.state) >= 0 else n + 1, None)
        return space.scalars.scalar(free, free.start).id

    def _kind(self, top: int) -> int:
        return self._space.tables.kind_of[top]

    def _is_plain(self, top: int) -> bool:
        """Whether nothing but the length of the text counts: its tokens are sorted by that."""
        local = self._space.locals[top]
        verdicts = local.verdicts if isinstance(local, Text) else None
        return isinstance(verdicts, Single) and isinstance(verdicts.machine, PlainLength)

    def _is_free(self, top: int) -> bool:
        """Whether the text may go on and end as it likes: what a token writes before its quote can't matter."""
        local = self._space.locals[top]
        if not isinstance(local, Text) or local.missing or local.closer is not None or self._native is None:
            return False
        verdicts = local.verdicts
        return isinstance(verdicts, Single) and not verdicts.strict and universal(verdicts.machine, local.state)

    def _sorted_plain(self, top: int) -> Row:
        """The plain tokens that fit into the room of a text."""
        local = self._space.locals[top]
        assert isinstance(local, Text)
        found: Row = self._sets.plain[min(local.verdicts.room(local.state), len(self._sets.plain) - 1)]
        return found

    def _begin(self, top: int, out: Row) -> TokenTrie:
        """Or in the plain tokens where any text fits; the trie that is left to walk."""
        kind = self._kind(top)
        if kind and kind != KEY_TEXT:
            return self._sets.full
        local = None if kind else self._space.locals[top]
        if kind or (isinstance(local, KeyText) and not local.missing):
            # whatever is typed leaves the trie at worst: an undeclared name
            out |= self._sets.plain[-1]
            return self._sets.residual
        if not isinstance(local, Text) or local.missing:
            return self._sets.full
        if self._is_free(top):
            out |= self._sets.plain[-1]
            out |= self._inside
            return self._sets.closing
        if local.verdicts.room(local.state) >= UNBOUNDED or self._is_plain(top):
            out |= self._sorted_plain(top)
            return self._sets.residual
        return self._sets.full

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
            spend(1 + len(self.vocabulary.token_bytes[token_id]))
            if self._stepper.run(state, self.vocabulary.token_bytes[token_id]) is not None:
                out[token_id >> 5] |= np.uint32(1 << (int(token_id) & 31))


def _stack(top: int, below: Cell | None) -> list[int]:
    tops = [top]
    while below is not None:
        tops.append(below.top)
        below = below.below
    return tops
