"""A scalar's machine together with the result it ends with, and what the frames that read by one have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from imp_server.core import GrammarRefused
from imp_server.core.turns import GaveUp, spend
from imp_server.grammar.frames.goals import Bits, Goal, is_open
from imp_server.grammar.frames.store import Frame, Store
from imp_server.grammar.machines.combine import anything, nothing
from imp_server.grammar.machines.literals import Literals
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.machines.plain_length import PlainLength
from imp_server.grammar.machines.position_machine import PositionMachine
from imp_server.grammar.machines.product import Product, States
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula, Leaf
from imp_server.grammar.values.leaves import NUMBER, STRING, NumberLeaf, TextLeaf
from imp_server.grammar.values.listed_numbers import ListedNumbers
from imp_server.grammar.values.sat.tags import is_listed
from imp_server.grammar.values.scalars import in_digits, is_finite, number_machine, string_machine, watched_number

MakeMachine = Callable[[Algebra, Formula], Machine]


class Verdicts(Protocol):
    """Like a Machine, with a result (>= 0) where it accepts."""

    @property
    def start(self) -> int: ...
    @property
    def classes(self) -> bytes: ...
    @property
    def strict(self) -> bool:
        """Only the shortest spelling of a printable ASCII character is allowed, so that the text is forced."""
        ...

    @property
    def is_sparse(self) -> bool:
        """Each step makes a state: none is to be asked for but what is read."""
        ...

    def step(self, state: int, byte: int) -> int: ...
    def result(self, state: int) -> int: ...
    def room(self, state: int) -> int: ...
    def shortest(self, state: int) -> bytes: ...
    def moves(self, state: int) -> dict[int, int] | None:
        """byte -> next state where few bytes are possible; None: ask `step` for each class."""
        ...

    def alias(self, state: int) -> tuple[Verdicts, int]:
        """A state with the same masks, shared by many."""
        ...


class Single:
    """One machine; its result is 0."""

    def __init__(self, machine: Machine, strict: bool) -> None:
        self.machine = machine
        self.start = machine.start
        self.classes = machine.classes
        self.strict = strict
        self.is_sparse: bool = getattr(machine, "is_sparse", False)

    def step(self, state: int, byte: int) -> int:
        return self.machine.step(state, byte)

    def result(self, state: int) -> int:
        return 0 if self.machine.accepts(state) else -1

    def room(self, state: int) -> int:
        return self.machine.room(state)

    def shortest(self, state: int) -> bytes:
        return self.machine.shortest(state) or b""

    def moves(self, state: int) -> dict[int, int] | None:
        row = getattr(self.machine, "row", None)
        return None if row is None else row(state)

    def alias(self, state: int) -> tuple[Verdicts, int]:
        return self, state


class Several:
    """`must` and some watched machines, in parallel; ends where the judge allows the truths found."""

    strict = False
    is_sparse = False

    def __init__(self, must: Machine, watched: list[Machine], goal: Goal, place: Callable[[], str | None]) -> None:
        """`place`: JSON pointer of the schema."""
        self._goal = goal
        self._product = Product([must, *watched], self._is_lost, self._is_end, place=place)
        self.classes = self._product.classes
        self.start = self._product.start()

    def _is_lost(self, states: States) -> bool:
        return states[0] == DEAD

    def _is_end(self, states: States) -> bool:
        return self._result(states) >= 0

    def _result(self, states: States) -> int:
        must, *truths = self._product.accepting(states)
        return self._goal.result(tuple(truths)) if must else -1

    def step(self, state: int, byte: int) -> int:
        return self._product.step(state, byte)

    def result(self, state: int) -> int:
        return self._result(self._product.states(state))

    def room(self, state: int) -> int:
        return 0

    def shortest(self, state: int) -> bytes:
        word = self._product.word(state)
        assert word is not None
        return word

    def moves(self, state: int) -> dict[int, int] | None:
        return None

    def alias(self, state: int) -> tuple[Verdicts, int]:
        return self, state


Constants = Literals | ListedNumbers


class ToldApart(Several):
    """As Several, where nothing but constants matters to the watches: one trie tells them apart, however many."""

    def __init__(self, algebra: Algebra, must: Machine, goal: Goal, kind: int) -> None:
        """The watches name constants and nothing else, or are true or false whatever the value is.

        `kind`: STRING or NUMBER.
        """
        self._naming: dict[Any, list[int]] = {}
        for at, watch in enumerate(goal.watches):
            for value in dict.fromkeys(value for leaf in watch.leaves() for value in _constants(leaf)):
                self._naming.setdefault(value, []).append(at)
        self._listed: Constants = Literals(self._naming) if kind == STRING else ListedNumbers(self._naming)
        self._evaluate = algebra.formulas.evaluate
        self._others = tuple(self._evaluate(w, lambda _: False) for w in goal.watches)
        super().__init__(must, [self._listed], goal, lambda: algebra.place_of(goal.must))

    def _result(self, states: States) -> int:
        must, listed = states
        if must == DEAD or not self._product.parts[0].accepts(must):
            return -1
        index = self._listed.index(listed) if listed != DEAD else -1
        return self._goal.result(self._others if index < 0 else self._bits(self._listed.values[index]))

    def _bits(self, value: Any) -> Bits:
        """Of one constant: the same as of all other values, but for the watches that name it."""
        spend(1 + len(self._others) // 256)
        bits = list(self._others)
        for at in self._naming[value]:
            bits[at] = self._evaluate(self._goal.watches[at], lambda leaf: value in _constants(leaf))
        return tuple(bits)


def _constants(leaf: Leaf) -> frozenset[Any]:
    if not isinstance(leaf, TextLeaf | NumberLeaf) or leaf.kind not in ("literals", "listed"):
        return frozenset()
    return cast("frozenset[Any]", leaf.what)


class AllVerdicts:
    """The verdicts of goals, machines and lengths."""

    def __init__(self, store: Store) -> None:
        self._store = store.owned_by(self)
        self._of_goals: dict[tuple[int, Goal], Verdicts] = store.table()
        self._of_machines: dict[tuple[int, bool], Single] = store.table()
        self._of_lengths: dict[tuple[int, int | None], Single] = store.table()
        self._asked: dict[Verdicts, Formula] = store.memo()

    def of_string(self, goal: Goal) -> Verdicts:
        return self._of(STRING, goal, string_machine, string_machine, is_finite(self._store.algebra, goal.must))

    def of_number(self, goal: Goal) -> Verdicts:
        return self._of(NUMBER, goal, number_machine, watched_number, False)

    def _of(self, kind: int, goal: Goal, alone: MakeMachine, watched: MakeMachine, strict: bool) -> Verdicts:
        def make() -> Verdicts:
            try:
                return self._made(kind, goal, alone, watched, strict)
            except GrammarRefused:
                # a combination above its budget that the check couldn't foresee
                raise GaveUp(self._store.algebra.place_of(goal.must)) from None

        found = self._store.get(self._of_goals, (kind, goal), make)
        self._asked.setdefault(found, goal.must)
        return found

    def _made(self, kind: int, goal: Goal, alone: MakeMachine, watched: MakeMachine, strict: bool) -> Verdicts:
        algebra = self._store.algebra
        if goal.judge is None:
            return self.single(alone(algebra, goal.must), strict)
        must = alone if in_digits(goal.must) else watched
        is_settled = not any(map(is_open, goal.watches))
        if is_settled and goal.result(tuple(w is algebra.formulas.true for w in goal.watches)) < 0:
            return Single(nothing(), False)
        if is_settled or (goal.is_wide and all(is_listed(algebra, watch) for watch in goal.watches)):
            return ToldApart(algebra, must(algebra, goal.must), goal, kind)
        machines = [watched(algebra, f) for f in goal.watches]
        return Several(must(algebra, goal.must), machines, goal, lambda: algebra.place_of(goal.must))

    def asked_of(self, verdicts: Verdicts) -> Formula | None:
        """What the goal asks whose verdicts they were first."""
        return self._asked.get(verdicts)

    def single(self, machine: Machine, strict: bool) -> Verdicts:
        return self._store.get(self._of_machines, (id(machine), strict), lambda: Single(machine, strict))

    def free(self) -> Verdicts:
        """Of any text."""
        return self.single(anything(), False)

    def of_length(self, low: int, high: int | None) -> Verdicts:
        """The verdicts of a bounded text, shared by all with the same near future."""
        return self._store.get(self._of_lengths, (low, high), lambda: Single(PlainLength(low, high), False))


class Reading(Frame):
    """A frame that reads by verdicts."""

    __slots__ = ("_known", "state", "verdicts")

    def __init__(self, store: Store, known: AllVerdicts, verdicts: Verdicts, state: int) -> None:
        super().__init__(store)
        self._known = known
        self.verdicts = verdicts
        self.state = state

    @property
    def asked(self) -> Formula | None:
        return self._known.asked_of(self.verdicts)

    @property
    def positions(self) -> PositionMachine | None:
        """Its machine, if it steps sets of positions."""
        verdicts = self.verdicts
        machine = verdicts.machine if isinstance(verdicts, Single) and not verdicts.strict else None
        return machine if isinstance(machine, PositionMachine) else None
