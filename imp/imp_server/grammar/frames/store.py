"""The store that frames are interned in: their numbers and rows, and the goals they are made of.

It knows no kind of frame. Each kind has a factory of its own, which keeps what it made in tables of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from imp_server.core.turns import OverBudget, charge, kept, spend
from imp_server.grammar.frames.goals import Goal, Judge
from imp_server.grammar.frames.native_store import NativeStore
from imp_server.grammar.frames.tables import DEAD, FOREIGN, TransitionTables
from imp_server.grammar.machines.giving_up import dropped, emptied, part
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.sat.found import Found
from imp_server.grammar.values.sat.solver import Solver

N_BYTES, N_BYTES_LOCAL, N_BYTES_VIEW, N_BYTES_NATIVE = 600, 1700, 300, 1200
"""Memory of something interned, of a frame with its row, of a native frame's twin, and of a native frame."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
L = TypeVar("L", bound="Frame")


class Frame:
    """One frame: what can be on top of a configuration, known to the tables by a number.

    Subclasses fill their row of the table; a waiting frame's row is indexed by results. No ABC: every mask asks of what
    kind some frames are, and those are slow to tell that they aren't of one.
    """

    __slots__ = ("id", "store")

    captures = False
    """Whoever advances keeps the bytes read from here on (tape); see frames/stack.py."""

    def __init__(self, store: Store, n_rows: int = 1) -> None:
        """`n_rows`: more than one where more than 256 results are possible."""
        self.store = store
        self.id = store.claim(n_rows)

    def fill(self, byte: int) -> int:
        """The table entry for `byte` (or for result `byte` of a child); stores it, or the whole row."""
        raise NotImplementedError

    @property
    def asked(self) -> Formula | None:
        """What has to hold of the value it reads, where that is known."""
        return None

    @property
    def end_result(self) -> int:
        """The result with which the frame may end without a further byte; -1 if it may not."""
        return -1

    def lead(self) -> bytes:
        """A short text, never empty, that brings the frame nearer to its end. Only of frames that may be on top."""
        raise AssertionError(f"{type(self).__name__} is never on top")


class ListedFrame(Frame):
    """A frame that few bytes lead on from."""

    __slots__ = ()

    def entries(self) -> dict[int, int]:
        """The possible bytes; all others are DEAD."""
        raise NotImplementedError

    def fill(self, byte: int) -> int:
        entries = self.entries()
        # only now: making the entries may have moved the rows
        row = self.store.tables.rows[self.id]
        row[:] = DEAD
        for at, entry in entries.items():
            row[at] = entry
        return entries.get(byte, DEAD)


class Frames(dict[int, Frame]):
    """The frames by number; those that native code has made are there as soon as somebody looks."""

    def __init__(self, adopt: Callable[[int], Frame]) -> None:
        super().__init__()
        self._adopt = adopt

    def __missing__(self, local: int) -> Frame:
        found = self[local] = self._adopt(local)
        return found


class Store:
    """Owner of the tables, the frames by number, the formulas, the solver and the goals."""

    def __init__(self, n_locals: int, n_blanks: int) -> None:
        """`n_locals`: room for this many locals is reserved (not touched) at once.

        `n_blanks`: most blanks in a row outside strings; 0 allows no newline, either.
        """
        self.n_blanks = n_blanks
        self.algebra = Algebra()
        self.solver = Solver(self.algebra)
        self.tables = TransitionTables(self._fill, n_locals)
        self.locals = Frames(self._adopt)
        self.native: NativeStore | None = None
        """Where native code makes the frames of simple objects."""
        self.view: Callable[[int, int], Callable[[], Frame]] | None = None
        """What makes the frame of a local, and its kind, that native code has made."""
        self._claimed = -1
        self._interned: list[dict[Any, Any]] = []
        self._memos: list[dict[Any, Any]] = []
        self._owners: list[object] = []
        self._goals: dict[tuple[Formula, tuple[Formula, ...], Judge | None], Goal] = self.table()

    # --- tables of factories ----------------------------------------------------------------

    def table(self) -> dict[Any, Any]:
        """A table for what a factory interns."""
        self._interned.append({})
        return self._interned[-1]

    def memo(self) -> dict[Any, Any]:
        """A table of answers, whose values others may use, too."""
        self._memos.append({})
        return self._memos[-1]

    def owned_by(self, factory: object) -> Store:
        """The store, which takes the factory apart when it is given up."""
        self._owners.append(factory)
        return self

    def given_up(self) -> Iterator[None]:
        """Take everything apart, a piece at each step. Nobody uses it any more."""
        yield from emptied(self.locals, *self._interned)
        yield from dropped(*self._memos)
        yield from self.solver.given_up()
        yield from self.algebra.given_up()
        for thing in (*self._owners, self.native, self.tables, self.locals, self):
            part(thing)
            yield

    def local(self, made: dict[K, L], key: K, make: Callable[[], L]) -> L:
        """The frame of that key, made if there is none."""
        found = made.get(key)
        if found is None:
            charge(N_BYTES_LOCAL, 3)
            found = made[key] = make()
            self.locals[found.id] = found
        return found

    def get(self, made: dict[K, T], key: K, make: Callable[[], T]) -> T:
        """The same of what is no frame."""
        found = made.get(key)
        if found is None:
            charge(N_BYTES)
            found = made[key] = make()
        return found

    # --- numbers and rows -------------------------------------------------------------------

    def claim(self, n_rows: int) -> int:
        """The number of a frame that is being made."""
        claimed, self._claimed = self._claimed, -1
        if claimed >= 0:
            return claimed
        charge(N_BYTES_LOCAL * (n_rows - 1), n_rows - 1)
        return self.tables.new_local(n_rows)

    def native_local(self, kind: int, a: int, b: int = 0) -> Frame:
        assert self.native is not None
        return self.locals[self.native.local(kind, a, b)]

    def _adopt(self, local: int) -> Frame:
        """The frame of a local that native code has made."""
        assert self.view is not None
        make = self.view(local, self.tables.kind_of[local])
        charge(N_BYTES_VIEW, 3)
        self._claimed = local
        try:
            return make()
        finally:
            self._claimed = -1

    def _fill(self, local: int, byte: int) -> int:
        try:
            return self._filled(local, byte)
        except OverBudget as over:
            over.stands(self.place(local))
            raise

    def place(self, local: int) -> str | None:
        """JSON pointer of what a frame reads, where one is known."""
        asked = self.locals[local].asked
        return None if asked is None else self.algebra.place_of(asked)

    def _filled(self, local: int, byte: int) -> int:
        if self.tables.kind_of[local] == FOREIGN:
            spend(2)
            entry = self.locals[local].fill(byte)
            kept()
            return entry
        assert self.native is not None
        before = self.tables.n_locals
        self.native.fill(local)
        n_new = self.tables.n_locals - before
        charge(N_BYTES_NATIVE * n_new, 1 + n_new)
        return int(self.tables.rows[local, byte])

    # --- goals ------------------------------------------------------------------------------

    def goal(self, must: Formula, watches: tuple[Formula, ...] = (), judge: Judge | None = None) -> Goal:
        return self.get(self._goals, (must, watches, judge), lambda: Goal(must, watches, judge))

    def typed(self, goal: Goal, kind: int) -> Goal | None:
        """What the goal asks of a value of one type; None if it forbids the type."""
        restrict = self.algebra.formulas.restrict
        must = restrict(goal.must, kind)
        if must is self.algebra.formulas.false:
            return None
        return self.goal(must, tuple(restrict(w, kind) for w in goal.watches), goal.judge)

    def need(self, goal: Goal, ask: Callable[[Formula], Found | None] | None = None) -> Formula:
        """All that a value has to satisfy: what the goal asks, and what its parent can't do without.

        `ask`: for what completes the value under a formula; without it any truths of the watches are thought possible.
        """
        if goal.judge is None:
            return goal.must
        conj = self.algebra.formulas.conj
        possible = None if ask is None else lambda f: ask(conj([goal.must, f]))
        return conj([goal.must, goal.judge.allowed(goal.watches, possible)])

    def changed(self, goal: Goal, changes: dict[Any, Formula]) -> Goal:
        """The goal with leaves replaced by what has become of them."""
        if not changes:
            return goal
        must, *watches = self.algebra.formulas.map_all([goal.must, *goal.watches], changes)
        return self.goal(must, tuple(watches), goal.judge)
