"""Arrays: what is left to hold of one, and the frames between its brackets. States are derivatives, as of objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from imp_server.core import GrammarDeadEnd
from imp_server.grammar.frames.goals import ROW, Bits, Goal, Judge, n_rows
from imp_server.grammar.frames.local import Listed, Local, gap_entries
from imp_server.grammar.frames.objects import change
from imp_server.grammar.frames.tables import ASK, POP
from imp_server.grammar.machines.machine import UNBOUNDED
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.json_values import parse_exact
from imp_server.grammar.values.leaves import Contains, Items, Leaf, Length, Unique, Watched
from imp_server.grammar.values.sat.found import MAX_LEAD, Found

if TYPE_CHECKING:
    from imp_server.grammar.frames.space import Space

Phase = Literal["open", "after"]
PLENTY = 3
"""Code points of any text that make so many values that taking away those of one array can't exhaust them."""


class ArrayState:
    """Interned by Space.array_state."""

    def __init__(self, space: Space, goal: Goal, loose: bool) -> None:
        """`loose`: the value of the last item is unknown, though uniqueness needs it (a mask walk went through it)."""
        self.space = space
        self.goal = goal
        self.loose = loose
        self._items: list[tuple[Goal, WaitingItem] | None] = []

    def remaining(self) -> Found | None:
        """The shortest rest, without the closing bracket; None if the array can't be completed. Raises GaveUp."""
        solver = self.space.solver
        return solver.proved(lambda: solver.items(self.space.need(self.goal, solver.items)), self.goal.must)

    def close(self) -> int:
        evaluate = self.space.algebra.formulas.evaluate
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
        fs = self.space.algebra.formulas
        leaves = dict.fromkeys(leaf for f in (self.goal.must, *self.goal.watches) for leaf in f.leaves())
        changed = {leaf: self._after(leaf) for leaf in leaves}
        asked = {leaf: value for leaf in leaves if (value := item_value(self.space, leaf)) is not fs.true}
        goal = change(self.space, self.goal, {leaf: f for leaf, f in changed.items() if f is fs.false})
        if goal.must is fs.false:
            return None
        sure = {part.leaf for part in goal.must.conjuncts() if not isinstance(part.leaf, Contains)}
        alive = {leaf for f in (goal.must, *goal.watches) for leaf in f.leaves()}
        must = fs.conj(value for leaf, value in asked.items() if leaf in sure)
        open_ = {leaf: value for leaf, value in asked.items() if leaf in alive and leaf not in sure}
        if must is fs.false:
            return None
        waiting = self.space.waiting_item(self.goal, open_)
        child = waiting.child_goal(must)
        if child.judge is None and waiting.after(()).remaining() is None:
            return None
        return None if self.space.shortest_value(child) is None else (child, waiting)

    def _after(self, leaf: Leaf) -> Formula:
        fs = self.space.algebra.formulas
        if isinstance(leaf, Length) and leaf.high == 0:
            return fs.false
        if isinstance(leaf, Items):
            value = (leaf.prefix[0] if leaf.prefix else leaf.rest).formula
            return fs.false if value is fs.false else fs.leaf(leaf)
        return fs.leaf(leaf)


def item_value(space: Space, leaf: Leaf) -> Formula:
    """What the next item has to obey for the leaf to stay true (or to be counted)."""
    algebra = space.algebra
    if isinstance(leaf, Items):
        return (leaf.prefix[0] if leaf.prefix else leaf.rest).formula
    if isinstance(leaf, Contains):
        return leaf.sub.formula
    if isinstance(leaf, Unique):
        return algebra.formulas.neg(algebra.one_of_values(leaf.seen))
    return algebra.formulas.true


def holds_at_close(leaf: Leaf) -> bool:
    return leaf.low <= 0 if isinstance(leaf, Length | Contains) else True


class WaitingItem(Local):
    """The array's frame while an item is read above it."""

    __slots__ = ("_leaves", "asked", "goal", "judge", "unique")

    def __init__(self, space: Space, goal: Goal, asked: dict[Leaf, Formula]) -> None:
        """`goal` as it was before the item; `asked` as for WaitingMember, Contains always among it."""
        super().__init__(space, n_rows(asked.values()))
        self.goal = goal
        self.asked = asked
        self._leaves = dict.fromkeys(leaf for f in (goal.must, *goal.watches) for leaf in f.leaves())
        self.unique = any(isinstance(leaf, Unique) for leaf in self._leaves)
        solver = space.solver
        self.judge: Judge | None = None
        if asked:
            most = ROW * n_rows(asked.values())
            self.judge = Judge(solver, self._may_follow, self._future, solver.item_cubes, most)

    @property
    def captures(self) -> bool:  # type: ignore[override]
        return self.unique

    @property
    def watched(self) -> tuple[Formula, ...]:
        return tuple(dict.fromkeys(self.asked.values()))

    def child_goal(self, must: Formula) -> Goal:
        return self.space.goal(must, self.watched, self.judge)

    def _may_follow(self, bits: Bits) -> bool:
        return self.after(bits).remaining() is not None

    def _future(self) -> Formula:
        """What has to hold of the items to come and of the Watched leaves."""
        fs, leaves = self.space.algebra.formulas, self.space.algebra.leaves
        number = {value: i for i, value in enumerate(self.watched)}

        def changed(leaf: Leaf) -> Formula:
            if leaf not in self.asked:
                return self._changed(leaf, item_value(self.space, leaf) is not fs.false, None)
            watch = fs.leaf(leaves.get(Watched, number[self.asked[leaf]]))
            yes, no = self._changed(leaf, True, None), self._changed(leaf, False, None)
            return fs.disj([fs.conj([watch, yes]), fs.conj([fs.neg(watch), no])])

        return fs.map_leaves(self.space.need(self.goal), {leaf: changed(leaf) for leaf in self._leaves})

    def after(self, bits: Bits, value: Any = None) -> ArrayState:
        """The array after an item; `value` is its canonical value if that is known."""
        truth = dict(zip(self.watched, bits))
        false = self.space.algebra.formulas.false
        changed = {}
        for leaf in self._leaves:
            obeyed = truth[self.asked[leaf]] if leaf in self.asked else item_value(self.space, leaf) is not false
            changed[leaf] = self._changed(leaf, obeyed, value)
        return self.space.array_state(change(self.space, self.goal, changed), self.unique and value is None)

    def _changed(self, leaf: Leaf, obeyed: bool, value: Any) -> Formula:
        fs, leaves = self.space.algebra.formulas, self.space.algebra.leaves
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
            any_ = self.space.algebra.any
            if len(leaf.prefix) <= 1 and leaf.rest is any_:
                return fs.true
            return fs.leaf(leaves.get(Items, leaf.prefix[1:], leaf.rest))
        assert isinstance(leaf, Unique)
        return fs.leaf(leaf) if value is None else fs.leaf(leaves.get(Unique, leaf.seen | {value}))

    def fill(self, byte: int) -> int:
        entry = self.resumed(byte, None)
        self.space.tables.put(self.id, byte, entry)
        return entry

    def resumed(self, result: int, text: bytes | None) -> int:
        """The local after the item; `text` is its JSON text if that is known."""
        bits = () if self.judge is None else self.judge.vectors[result]
        value = None if text is None or not self.unique else parse_exact(text)
        return self.space.array_phase(self.after(bits, value), "after", False).id


class ArrayPhase(Listed):
    """Between the items: after the bracket, after an item."""

    __slots__ = ("phase", "state", "tight")

    def __init__(self, space: Space, state: ArrayState, phase: Phase, tight: bool) -> None:
        super().__init__(space)
        self.state = state
        self.phase = phase
        self.tight = tight

    def entries(self) -> dict[int, int]:
        space, state = self.space, self.state
        found: dict[int, int] = {}
        result = state.close()
        if result >= 0:
            found[0x5D] = space.tables.op(POP, result)
        if state.loose and self.phase == "after":
            # another item is certain to exist only where values are plentiful; what it may be, nobody knows here
            room = 0 if state.item is None else space.room_of_texts(state.item[0])
            loose = space.loose_start(room >= UNBOUNDED)
            found[0x2C] = space.tables.op(self.id, loose.id) if room >= PLENTY else ASK
        elif state.item is not None:
            goal, waiting = state.item
            if self.phase == "after":
                found[0x2C] = space.tables.op(waiting.id, space.start(goal, False).id)
            else:
                for byte, entry in space.first_bytes(goal).items():
                    found[byte] = space.tables.op(waiting.id, entry)
        if not self.tight:
            found.update(gap_entries(space, space.array_phase(state, self.phase, True).id))
        return found

    def lead(self) -> bytes:
        rest = self.state.remaining()
        if rest is None:  # its proof was given up
            raise GrammarDeadEnd("the grammar can't prove a way to its end from here")
        text = rest.text(MAX_LEAD)
        return (b"," if text and self.phase == "after" else b"") + text + b"]"
