"""Arrays: what is left to hold of one, and the frames between its brackets. States are derivatives, as of objects."""

from __future__ import annotations

from typing import Any, Literal

from imp_server.core import GrammarDeadEnd
from imp_server.grammar.frames.goals import ROW, Bits, Goal, Judge, n_rows
from imp_server.grammar.frames.store import Frame, ListedFrame, Store
from imp_server.grammar.frames.tables import ASK, POP
from imp_server.grammar.frames.texts import Text, Texts
from imp_server.grammar.frames.values import ValueKind, Values
from imp_server.grammar.machines.machine import DEAD, UNBOUNDED
from imp_server.grammar.values.formula import Formula, Leaf
from imp_server.grammar.values.json_values import parse_exact
from imp_server.grammar.values.leaves import STRING, Contains, Items, Length, Unique, Watched
from imp_server.grammar.values.sat.found import MAX_LEAD, Found, joined
from imp_server.grammar.values.scalars import string_machine

Phase = Literal["open", "after"]
PLENTY = 3
"""Code points of any text that make so many values that taking away those of one array can't exhaust them."""


class ArrayState:
    """Interned by Arrays.state."""

    def __init__(self, arrays: Arrays, goal: Goal, loose: bool) -> None:
        """`loose`: the value of the last item is unknown, though uniqueness needs it (a mask walk went through it)."""
        self.arrays = arrays
        self.store = arrays.store
        self.goal = goal
        self.loose = loose
        self._items: list[tuple[Goal, WaitingItem] | None] = []

    def remaining(self) -> Found | None:
        """The shortest rest, without the closing bracket; None if the array can't be completed. Raises GaveUp."""
        solver = self.store.solver
        return solver.proved(lambda: solver.items(self.store.need(self.goal, solver.items)), self.goal.must)

    def close(self) -> int:
        evaluate = self.store.algebra.formulas.evaluate
        if not evaluate(self.goal.must, holds_at_close):
            return -1
        return self.goal.result(tuple(evaluate(w, holds_at_close) for w in self.goal.watches))

    @property
    def item(self) -> tuple[Goal, WaitingItem] | None:
        """The goal of one more item and the frame that waits for it; None if none may follow."""
        if not self._items:
            self._items.append(self._derive())
        return self._items[0]

    def _derive(self) -> tuple[Goal, WaitingItem] | None:
        fs = self.store.algebra.formulas
        leaves = dict.fromkeys(leaf for f in (self.goal.must, *self.goal.watches) for leaf in f.leaves())
        changed = {leaf: self._after(leaf) for leaf in leaves}
        asked = {leaf: value for leaf in leaves if (value := item_value(self.store, leaf)) is not fs.true}
        goal = self.store.changed(self.goal, {leaf: f for leaf, f in changed.items() if f is fs.false})
        if goal.must is fs.false:
            return None
        sure = {part.leaf for part in goal.must.conjuncts() if not isinstance(part.leaf, Contains)}
        alive = {leaf for f in (goal.must, *goal.watches) for leaf in f.leaves()}
        must = fs.conj(value for leaf, value in asked.items() if leaf in sure)
        open_ = {leaf: value for leaf, value in asked.items() if leaf in alive and leaf not in sure}
        if must is fs.false:
            return None
        waiting = self.arrays.waiting(self.goal, open_)
        child = waiting.child_goal(must)
        if child.judge is None and waiting.after(()).remaining() is None:
            return None
        return None if self.arrays.values.shortest(child) is None else (child, waiting)

    def _after(self, leaf: Leaf) -> Formula:
        fs = self.store.algebra.formulas
        if isinstance(leaf, Length) and leaf.high == 0:
            return fs.false
        if isinstance(leaf, Items):
            value = (leaf.prefix[0] if leaf.prefix else leaf.rest).formula
            return fs.false if value is fs.false else fs.leaf(leaf)
        return fs.leaf(leaf)


def item_value(store: Store, leaf: Leaf) -> Formula:
    """What the next item has to obey for the leaf to stay true (or to be counted)."""
    algebra = store.algebra
    if isinstance(leaf, Items):
        return (leaf.prefix[0] if leaf.prefix else leaf.rest).formula
    if isinstance(leaf, Contains):
        return leaf.sub.formula
    if isinstance(leaf, Unique):
        return algebra.formulas.neg(algebra.one_of_values(leaf.seen))
    return algebra.formulas.true


def holds_at_close(leaf: Leaf) -> bool:
    return leaf.low <= 0 if isinstance(leaf, Length | Contains) else True


class WaitingItem(Frame):
    """The array's frame while an item is read above it."""

    __slots__ = ("_leaves", "arrays", "goal", "judge", "of_leaves", "unique")

    def __init__(self, arrays: Arrays, goal: Goal, of_leaves: dict[Leaf, Formula]) -> None:
        """`goal` as it was before the item; `of_leaves` as for WaitingMember, Contains always among it."""
        super().__init__(arrays.store, n_rows(of_leaves.values()))
        self.arrays = arrays
        self.goal = goal
        self.of_leaves = of_leaves
        self._leaves = dict.fromkeys(leaf for f in (goal.must, *goal.watches) for leaf in f.leaves())
        self.unique = any(isinstance(leaf, Unique) for leaf in self._leaves)
        solver = self.store.solver
        self.judge: Judge | None = None
        if of_leaves:
            most = ROW * n_rows(of_leaves.values())
            self.judge = Judge(solver, self._may_follow, self._future, solver.item_cubes, most)

    @property
    def captures(self) -> bool:  # type: ignore[override]
        return self.unique

    @property
    def asked(self) -> Formula:
        return self.goal.must

    @property
    def watched(self) -> tuple[Formula, ...]:
        return tuple(dict.fromkeys(self.of_leaves.values()))

    def child_goal(self, must: Formula) -> Goal:
        return self.store.goal(must, self.watched, self.judge)

    def _may_follow(self, bits: Bits) -> bool:
        return self.after(bits).remaining() is not None

    def _future(self) -> Formula:
        """What has to hold of the items to come and of the Watched leaves."""
        fs, leaves = self.store.algebra.formulas, self.store.algebra.leaves
        number = {value: i for i, value in enumerate(self.watched)}

        def changed(leaf: Leaf) -> Formula:
            if leaf not in self.of_leaves:
                return self._changed(leaf, item_value(self.store, leaf) is not fs.false, None)
            watch = fs.leaf(leaves.get(Watched, number[self.of_leaves[leaf]]))
            yes, no = self._changed(leaf, True, None), self._changed(leaf, False, None)
            return fs.disj([fs.conj([watch, yes]), fs.conj([fs.neg(watch), no])])

        return fs.map_leaves(self.store.need(self.goal), {leaf: changed(leaf) for leaf in self._leaves})

    def after(self, bits: Bits, value: Any = None) -> ArrayState:
        """The array after an item; `value` is its canonical value if that is known."""
        truth = dict(zip(self.watched, bits))
        false = self.store.algebra.formulas.false
        changed = {}
        for leaf in self._leaves:
            obeyed = (
                truth[self.of_leaves[leaf]] if leaf in self.of_leaves else item_value(self.store, leaf) is not false
            )
            changed[leaf] = self._changed(leaf, obeyed, value)
        return self.arrays.state(self.store.changed(self.goal, changed), self.unique and value is None)

    def _changed(self, leaf: Leaf, obeyed: bool, value: Any) -> Formula:
        fs, leaves = self.store.algebra.formulas, self.store.algebra.leaves
        if isinstance(leaf, Contains):
            if not obeyed:
                return fs.leaf(leaf)
            if leaf.high == 0:
                return fs.false
            low, high = max(leaf.low - 1, 0), None if leaf.high is None else leaf.high - 1
            return fs.true if not low and high is None else fs.leaf(leaves.get(Contains, leaf.sub, low, high))
        if isinstance(leaf, Length):
            if leaf.high == 0:
                return fs.false
            low, high = max(leaf.low - 1, 0), None if leaf.high is None else leaf.high - 1
            return fs.true if not low and high is None else fs.leaf(leaves.get(Length, low, high))
        if not obeyed:
            return fs.false
        if isinstance(leaf, Items):
            any_ = self.store.algebra.any
            if len(leaf.prefix) <= 1 and leaf.rest is any_:
                return fs.true
            return fs.leaf(leaves.get(Items, leaf.prefix[1:], leaf.rest))
        assert isinstance(leaf, Unique)
        return fs.leaf(leaf) if value is None else fs.leaf(leaves.get(Unique, leaf.seen | {value}))

    def fill(self, byte: int) -> int:
        entry = self.resumed(byte, None)
        self.store.tables.put(self.id, byte, entry)
        return entry

    def resumed(self, result: int, text: bytes | None) -> int:
        """The local after the item; `text` is its JSON text if that is known."""
        bits = () if self.judge is None else self.judge.vectors[result]
        value = None if text is None or not self.unique else parse_exact(text)
        return self.arrays.phase(self.after(bits, value), "after", False).id


class ArrayPhase(ListedFrame):
    """Between the items: after the bracket, after an item."""

    __slots__ = ("phase", "state", "tight")

    def __init__(self, state: ArrayState, phase: Phase, tight: bool) -> None:
        super().__init__(state.store)
        self.state = state
        self.phase = phase
        self.tight = tight

    @property
    def asked(self) -> Formula:
        return self.state.goal.must

    def entries(self) -> dict[int, int]:
        tables, state, arrays = self.store.tables, self.state, self.state.arrays
        found: dict[int, int] = {}
        result = state.close()
        if result >= 0:
            found[0x5D] = tables.op(POP, result)
        if state.loose and self.phase == "after":
            # another item is certain to exist only where values are plentiful; what it may be, nobody knows here
            room = 0 if state.item is None else arrays.room_of_texts(state.item[0])
            loose = arrays.loose_start(room >= UNBOUNDED)
            found[0x2C] = tables.op(self.id, loose.id) if room >= PLENTY else ASK
        elif state.item is not None:
            goal, waiting = state.item
            if self.phase == "after":
                found[0x2C] = tables.op(waiting.id, arrays.values.start(goal, False).id)
            else:
                for byte, entry in arrays.values.first_bytes(goal).items():
                    found[byte] = tables.op(waiting.id, entry)
        if not self.tight:
            found.update(arrays.values.gaps.entries(arrays.phase(state, self.phase, True).id))
        return found

    def lead(self) -> bytes:
        rest = self.state.remaining()
        if rest is None:  # its proof was given up
            raise GrammarDeadEnd("the grammar can't prove a way to its end from here")
        text = rest.text(MAX_LEAD)
        return (b"," if text and self.phase == "after" else b"") + text + b"]"


class LooseStart(ListedFrame):
    """Before an item that must differ from one whose value the walk doesn't know."""

    __slots__ = ("arrays", "free", "tight")

    def __init__(self, arrays: Arrays, free: bool, tight: bool) -> None:
        """`free`: the item may be a string that begins in any way and goes on for ever: only its end needs asking."""
        super().__init__(arrays.store)
        self.arrays = arrays
        self.free = free
        self.tight = tight

    def entries(self) -> dict[int, int]:
        found = dict.fromkeys(b'"{[tfn-0123456789', ASK)
        if self.free:
            found[0x22] = self.arrays.loose_text().id
        if not self.tight:
            found.update(self.arrays.values.gaps.entries(self.arrays.loose_start(self.free, True).id))
        return found


class LooseEnd:
    """Where a string leads of which the walk can't tell whether it came before (the Closer of texts.py)."""

    def closed(self, result: int) -> int:
        return ASK

    def only(self, state: int) -> int | None:
        return None


class Arrays(ValueKind):
    """The frames of arrays."""

    def __init__(self, values: Values, texts: Texts) -> None:
        self.store = store = values.store.owned_by(self)
        self.values = values
        self._texts = texts
        self._states: dict[tuple[Goal, bool], ArrayState] = store.table()
        self._phases: dict[tuple[ArrayState, Phase, bool], ArrayPhase] = store.table()
        self._waiting: dict[tuple[Goal, tuple[tuple[Leaf, Formula], ...]], WaitingItem] = store.table()
        self._loose_starts: dict[tuple[bool, bool], LooseStart] = store.table()
        self._loose_ends: dict[None, LooseEnd] = store.table()

    def state(self, goal: Goal, loose: bool = False) -> ArrayState:
        return self.store.get(self._states, (goal, loose), lambda: ArrayState(self, goal, loose))

    def phase(self, state: ArrayState, phase: Phase, tight: bool) -> ArrayPhase:
        return self.store.local(self._phases, (state, phase, tight), lambda: ArrayPhase(state, phase, tight))

    def waiting(self, goal: Goal, of_leaves: dict[Leaf, Formula]) -> WaitingItem:
        key = goal, tuple(of_leaves.items())
        return self.store.local(self._waiting, key, lambda: WaitingItem(self, goal, of_leaves))

    def loose_start(self, free: bool, tight: bool = False) -> LooseStart:
        return self.store.local(self._loose_starts, (free, tight), lambda: LooseStart(self, free, tight))

    def loose_text(self) -> Text:
        """A string of an array in which nothing may come twice, where the walk doesn't know what came."""
        verdicts = self._texts.verdicts.free()
        return self._texts.text(verdicts, verdicts.start, 0, self.store.get(self._loose_ends, None, LooseEnd))

    def room_of_texts(self, goal: Goal) -> int:
        """Code points of any text with which a string of the goal may begin (Machine.room)."""
        typed = None if goal.judge is not None else self.store.typed(goal, STRING)
        if typed is None:
            return 0
        machine = string_machine(self.store.algebra, typed.must)
        return 0 if machine.start == DEAD else machine.room(machine.start)

    def first_bytes(self, goal: Goal) -> dict[int, int]:
        state = self.state(goal)
        return {} if state.remaining() is None else {0x5B: self.phase(state, "open", False).id}

    def shortest(self, goal: Goal) -> Found | None:
        rest = self.state(goal).remaining()
        return None if rest is None else joined([rest], b"[", b"]")
