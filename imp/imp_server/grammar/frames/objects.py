"""Objects: what is left to hold of one, which keys may follow, and the frames between its braces.

An ObjectState is the *derivative* of the goal: its formulas with everything that the members read so far have
decided already folded in. Equal futures are equal states, whatever the past was.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from imp_server.core import GrammarDeadEnd
from imp_server.grammar.frames.goals import ROW, Bits, Goal, Judge, n_rows
from imp_server.grammar.frames.key_texts import KeyTexts
from imp_server.grammar.frames.keys import Keys
from imp_server.grammar.frames.plain_values import WordFrames
from imp_server.grammar.frames.shapes import KeyKind, Shape
from imp_server.grammar.frames.store import Frame, ListedFrame
from imp_server.grammar.frames.tables import ASK, DEAD, POP
from imp_server.grammar.frames.values import ValueKind, Values
from imp_server.grammar.values.formula import Formula, Leaf
from imp_server.grammar.values.json_values import spelled
from imp_server.grammar.values.leaves import Count, Names, Props, Required, Watched
from imp_server.grammar.values.sat.found import MAX_LEAD, Found, joined
from imp_server.grammar.values.sat.objects import says_nothing

Phase = Literal["open", "after", "comma"]


@dataclass(eq=False, slots=True)
class Member:
    """A key that may be typed: what its value has to achieve, and the frame that waits for it."""

    goal: Goal
    waiting: WaitingMember
    colon: int
    """Number of the local after the key's closing quote."""


class ObjectState:
    """Interned by Objects.state."""

    def __init__(self, objects: Objects, goal: Goal, seen: frozenset[str], loose: bool) -> None:
        """`loose`: the name of the last member is unknown (a mask walk went through it)."""
        self.objects = objects
        self.store = objects.store
        self.goal = goal
        self.seen = seen
        self.loose = loose
        self.native: int | None = None
        """Its number among the simple objects (simple_objects.py): -1 if it isn't one, None if nobody has asked."""
        self._members: dict[KeyKind, Member | None] = {}
        self._keys: Keys | None = None
        parts = goal.must.conjuncts()
        self.is_simple = goal.judge is None and all(_is_simple(p.leaf) for p in parts)
        """Nothing but properties in any order and required names, all of which have to hold."""

    @cached_property
    def leaves(self) -> dict[Leaf, None]:
        return dict.fromkeys(leaf for f in (self.goal.must, *self.goal.watches) for leaf in f.leaves())

    @cached_property
    def shape(self) -> Shape:
        return self.objects.shape(tuple(leaf for leaf in self.leaves if isinstance(leaf, Props)))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The order in which names have to come; empty if it is free."""
        return self.store.algebra.order(self.leaves)

    @cached_property
    def missing(self) -> frozenset[str]:
        """Names that some Required leaf speaks of."""
        return frozenset(n for leaf in self.leaves if isinstance(leaf, Required) for n in leaf.names)

    @property
    def keys(self) -> Keys:
        if self._keys is None:
            self._keys = Keys(self.objects.words, self)
        return self._keys

    @cached_property
    def names_leaves(self) -> list[Names]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Names)]

    def remaining(self) -> Found | None:
        """The shortest rest, without the closing brace; None if the object can't be completed. Raises GaveUp."""
        return self.store.solver.proved(
            lambda: self._shortest(self.store.need(self.goal, self._shortest)), self.goal.must
        )

    def remaining_after_one(self) -> Found | None:
        """The same where at least one more member has to come."""
        fs, leaves = self.store.algebra.formulas, self.store.algebra.leaves
        one = fs.leaf(leaves.get(Count, 1, None))
        return self.store.solver.proved(
            lambda: self._shortest(fs.conj([self.store.need(self.goal, self._shortest), one])), self.goal.must
        )

    def _shortest(self, f: Formula) -> Found | None:
        return self.store.solver.members(f, self.seen, self.order)

    def close(self) -> int:
        """The result if the object ended here; -1 if it may not."""
        evaluate = self.store.algebra.formulas.evaluate
        if not evaluate(self.goal.must, holds_at_close):
            return -1
        return self.goal.result(tuple(evaluate(w, holds_at_close) for w in self.goal.watches))

    def allows(self, kind: KeyKind) -> bool:
        """Whether a key of this kind may be typed."""
        if self.is_simple:
            # the state itself is alive, so what is required stays possible whatever comes before it
            return kind.name not in self.seen and self.shape.is_satisfiable(kind)
        return self.member(kind) is not None

    def member(self, kind: KeyKind) -> Member | None:
        """The member that a key of this kind begins; None if no such key may be typed."""
        if kind not in self._members:
            self._members[kind] = self._derive(kind, kind.name)
        return self._members[kind]

    def _derive(self, kind: KeyKind, name: str | None) -> Member | None:
        fs = self.store.algebra.formulas
        if name is not None and name in self.seen:
            return None
        if self.is_simple:
            return self._derive_simply(kind, name)
        changed: dict[Leaf, Formula] = {}
        asked: dict[Leaf, Formula] = {}
        seen = self._seen_after(name)
        sure = {part.leaf for part in self.goal.must.conjuncts()}
        for leaf in self.leaves:
            if isinstance(leaf, Props):
                value = self.shape.value_by(leaf, kind)
                if value is fs.false or (value is fs.true and leaf not in sure and says_nothing(fs, leaf, seen)):
                    changed[leaf] = value
                elif value is not fs.true:
                    asked[leaf] = value
            elif (after := self._after(leaf, kind)) is not fs.leaf(leaf):
                changed[leaf] = after
        goal = self.store.changed(self.goal, changed)
        if goal.must is fs.false:
            return None
        sure = {part.leaf for part in goal.must.conjuncts()}
        alive = {leaf for f in (goal.must, *goal.watches) for leaf in f.leaves()}
        must = fs.conj(value for leaf, value in asked.items() if leaf in sure)
        open_ = {leaf: value for leaf, value in asked.items() if leaf in alive and leaf not in sure}
        waiting = self.objects.waiting(goal, seen, name is None, open_)
        child = waiting.child_goal(must)
        if child.judge is None and waiting.after(()).remaining() is None:
            return None
        if self.objects.values.shortest(child) is None:
            return None
        return Member(child, waiting, self.objects.colon(waiting, child, False).id)

    def _seen_after(self, name: str | None) -> frozenset[str]:
        """The names that can't come any more; `name` None: some undeclared one."""
        seen = self.seen if name is None else self.seen | {name}
        if self.order:
            passed = self.order.index(name) if name in self.order else len(self.order)
            seen |= set(self.order[:passed])
        return seen

    def _derive_simply(self, kind: KeyKind, name: str | None) -> Member | None:
        if not self.shape.is_satisfiable(kind):
            return None
        objects, algebra = self.objects, self.store.algebra
        required = algebra.required(self.missing - {name} if name is not None else self.missing)
        goal = self.store.goal(algebra.formulas.conj([self.shape.formula, required]))
        seen = self.seen if name is None else self.seen | {name}
        waiting = objects.waiting(goal, seen, name is None, {})
        child = self.store.goal(self.shape.value(kind))
        return Member(child, waiting, objects.colon(waiting, child, False).id)

    def _after(self, leaf: Leaf, kind: KeyKind) -> Formula:
        algebra = self.store.algebra
        fs = algebra.formulas
        if isinstance(leaf, Required):
            return algebra.required(leaf.names - {kind.name}) if kind.name in leaf.names else fs.leaf(leaf)
        if isinstance(leaf, Names):
            return fs.leaf(leaf) if kind.lawful[self.names_leaves.index(leaf)] else fs.false
        assert isinstance(leaf, Count)
        if leaf.high == 0:
            return fs.false
        low, high = max(leaf.low - 1, 0), None if leaf.high is None else leaf.high - 1
        return fs.true if not low and high is None else fs.leaf(algebra.leaves.get(Count, low, high))

    # --- what keys ask ----------------------------------------------------------------------

    def colon(self, kind: KeyKind) -> int:
        member = self.member(kind)
        return DEAD if member is None else member.colon

    def colon_named(self, kind: KeyKind, name: str) -> int:
        member = self._derive(kind, name)
        return DEAD if member is None else member.colon

    def size_with(self, kind: KeyKind) -> int | None:
        member = self.member(kind)
        if member is None or kind.name is None:
            return None
        value = self.objects.values.shortest(member.goal)
        rest = None if member.goal.judge is not None else member.waiting.after(()).remaining()
        return key_size(kind.name) + (value.size if value else 0) + (rest.size if rest else 0)


def _is_simple(leaf: Leaf | None) -> bool:
    return isinstance(leaf, Required) or (isinstance(leaf, Props) and not leaf.ordered)


def holds_at_close(leaf: Leaf) -> bool:
    if isinstance(leaf, Required):
        return False
    return leaf.low <= 0 if isinstance(leaf, Count) else True


class WaitingMember(Frame):
    """The object's frame while a member's value is read above it."""

    __slots__ = ("goal", "judge", "loose", "objects", "of_leaves", "seen")

    def __init__(
        self, objects: Objects, goal: Goal, seen: frozenset[str], loose: bool, of_leaves: dict[Leaf, Formula]
    ) -> None:
        """`of_leaves`: leaves that stay true only if the value obeys the formula, unless the goal needs them anyway."""
        super().__init__(objects.store, n_rows(of_leaves.values()))
        self.objects = objects
        self.goal = goal
        self.seen = seen
        self.loose = loose
        self.of_leaves = of_leaves
        self.judge = self._made_judge() if of_leaves else None

    @property
    def asked(self) -> Formula:
        return self.goal.must

    def _made_judge(self) -> Judge:
        solver, goal, seen = self.store.solver, self.goal, self.seen
        order = self.store.algebra.order(leaf for f in (goal.must, *goal.watches) for leaf in f.leaves())
        return Judge(
            solver,
            lambda bits: self.after(bits).remaining() is not None,
            self._future,
            lambda f, can_be: solver.member_cubes(f, seen, order, can_be),
            ROW * n_rows(self.of_leaves.values()),
        )

    @property
    def watched(self) -> tuple[Formula, ...]:
        return tuple(dict.fromkeys(self.of_leaves.values()))

    def child_goal(self, must: Formula) -> Goal:
        return self.store.goal(must, self.watched, self.judge)

    def _future(self) -> Formula:
        """What has to hold of the members to come and of the Watched leaves."""
        fs, leaves = self.store.algebra.formulas, self.store.algebra.leaves
        number = {value: i for i, value in enumerate(self.watched)}

        changes: dict[Leaf, Formula] = {
            leaf: fs.conj([fs.leaf(leaves.get(Watched, number[value])), self._obeyed(leaf)])
            for leaf, value in self.of_leaves.items()
        }
        return fs.map_leaves(self.store.need(self.goal), changes)

    def _obeyed(self, leaf: Leaf) -> Formula:
        """What is left of a leaf that the member obeys."""
        fs = self.store.algebra.formulas
        return fs.true if isinstance(leaf, Props) and says_nothing(fs, leaf, self.seen) else fs.leaf(leaf)

    def after(self, bits: Bits) -> ObjectState:
        truth = dict(zip(self.watched, bits))
        false = self.store.algebra.formulas.false
        changed = {leaf: self._obeyed(leaf) if truth[value] else false for leaf, value in self.of_leaves.items()}
        return self.objects.state(self.store.changed(self.goal, changed), self.seen, self.loose)

    def fill(self, byte: int) -> int:
        bits = () if self.judge is None else self.judge.vectors[byte]
        entry = self.objects.phase(self.after(bits), "after", False).id
        self.store.tables.put(self.id, byte, entry)
        return entry


class Colon(ListedFrame):
    """Between a key and its value."""

    __slots__ = ("goal", "tight", "waiting")

    def __init__(self, waiting: WaitingMember, goal: Goal, tight: bool) -> None:
        super().__init__(waiting.store)
        self.waiting = waiting
        self.goal = goal
        self.tight = tight

    @property
    def asked(self) -> Formula:
        return self.goal.must

    def entries(self) -> dict[int, int]:
        objects = self.waiting.objects
        found = {0x3A: self.store.tables.op(self.waiting.id, objects.values.start(self.goal, False).id)}
        if not self.tight:
            found.update(objects.values.gaps.entries(objects.colon(self.waiting, self.goal, True).id))
        return found

    def lead(self) -> bytes:
        return b":"


class ObjectPhase(ListedFrame):
    """Between the members: after the brace, after a value, after a comma."""

    __slots__ = ("phase", "state", "tight")

    def __init__(self, state: ObjectState, phase: Phase, tight: bool) -> None:
        super().__init__(state.store)
        self.state = state
        self.phase = phase
        self.tight = tight

    @property
    def asked(self) -> Formula:
        return self.state.goal.must

    def entries(self) -> dict[int, int]:
        state, objects = self.state, self.state.objects
        found: dict[int, int] = {}
        if self.phase != "comma":
            result = state.close()
            if result >= 0:
                found[0x7D] = self.store.tables.op(POP, result)
        if state.keys.possible:
            if self.phase == "after":
                found[0x2C] = objects.phase(state, "comma", False).id
            elif state.loose:
                found[0x22] = ASK
            else:
                found[0x22] = objects.key_texts.opened(state.keys)
            if state.loose and self.phase == "after" and state.keys.is_limited:
                found[0x2C] = ASK
        if not self.tight:
            found.update(objects.values.gaps.entries(objects.phase(state, self.phase, True).id))
        return found

    def lead(self) -> bytes:
        rest = self.state.remaining_after_one() if self.phase == "comma" else self.state.remaining()
        if rest is None:  # its proof was given up
            raise GrammarDeadEnd("the grammar can't prove a way to its end from here")
        text = rest.text(MAX_LEAD)
        return (b"," if text and self.phase == "after" else b"") + text + b"}"


def key_size(name: str) -> int:
    return len(spelled(("string", name)).encode()) + 1


class Objects(ValueKind):
    """The frames of objects."""

    def __init__(self, values: Values, words: WordFrames, key_texts: KeyTexts) -> None:
        self.store = store = values.store.owned_by(self)
        self.values = values
        self.words = words
        self.key_texts = key_texts
        self._states: dict[tuple[Goal, frozenset[str], bool], ObjectState] = store.table()
        self._shapes: dict[tuple[Props, ...], Shape] = store.table()
        self._phases: dict[tuple[ObjectState, Phase, bool], ObjectPhase] = store.table()
        self._waiting: dict[tuple[Goal, frozenset[str], bool, tuple[tuple[Leaf, Formula], ...]], WaitingMember] = (
            store.table()
        )
        self._colons: dict[tuple[WaitingMember, Goal, bool], Colon] = store.table()

    def state(self, goal: Goal, seen: frozenset[str] = frozenset(), loose: bool = False) -> ObjectState:
        return self.store.get(self._states, (goal, seen, loose), lambda: ObjectState(self, goal, seen, loose))

    def shape(self, props: tuple[Props, ...]) -> Shape:
        return self.store.get(self._shapes, props, lambda: Shape(self.values, props))

    def phase(self, state: ObjectState, phase: Phase, tight: bool) -> ObjectPhase:
        return self.store.local(self._phases, (state, phase, tight), lambda: ObjectPhase(state, phase, tight))

    def waiting(self, goal: Goal, seen: frozenset[str], loose: bool, of_leaves: dict[Leaf, Formula]) -> WaitingMember:
        key = goal, seen, loose, tuple(of_leaves.items())
        return self.store.local(self._waiting, key, lambda: WaitingMember(self, goal, seen, loose, of_leaves))

    def colon(self, waiting: WaitingMember, goal: Goal, tight: bool) -> Colon:
        return self.store.local(self._colons, (waiting, goal, tight), lambda: Colon(waiting, goal, tight))

    def first_bytes(self, goal: Goal) -> dict[int, int]:
        state = self.state(goal)
        return {} if state.remaining() is None else {0x7B: self.phase(state, "open", False).id}

    def shortest(self, goal: Goal) -> Found | None:
        rest = self.state(goal).remaining()
        return None if rest is None else joined([rest], b"{", b"}")
