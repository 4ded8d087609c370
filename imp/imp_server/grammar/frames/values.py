"""The frame in which any value begins. How a value of each type begins is known to its kind, which registers here."""

from __future__ import annotations

from abc import ABC, abstractmethod

from imp_server.core import GrammarDeadEnd
from imp_server.grammar.frames.gaps import Gaps
from imp_server.grammar.frames.goals import Goal
from imp_server.grammar.frames.store import ListedFrame, Store
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.leaves import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING
from imp_server.grammar.values.sat.found import MAX_LEAD, Found


class ValueStart(ListedFrame):
    """Before the first byte of a value. `tight`: no whitespace may come."""

    __slots__ = ("goal", "tight", "values")

    def __init__(self, values: Values, goal: Goal, tight: bool) -> None:
        super().__init__(values.store)
        self.values = values
        self.goal = goal
        self.tight = tight

    @property
    def asked(self) -> Formula:
        return self.goal.must

    def entries(self) -> dict[int, int]:
        values = self.values
        found = dict(values.first_bytes(self.goal))
        if not self.tight:
            found.update(values.gaps.entries(values.start(self.goal, True).id))
        return found

    def lead(self) -> bytes:
        answer = self.values.shortest(self.goal)
        if answer is None:  # its proof was given up
            raise GrammarDeadEnd("the grammar can't prove a way to its end from here")
        return answer.text(MAX_LEAD)


class ValueKind(ABC):
    """The values of one type. Goals are restricted to it."""

    @abstractmethod
    def first_bytes(self, goal: Goal) -> dict[int, int]:
        """First byte of a value -> number of the local it leads to."""

    @abstractmethod
    def shortest(self, goal: Goal) -> Found | None:
        """A short value, for a goal with many watches."""


class Values:
    """The frames in which values begin."""

    def __init__(self, store: Store, gaps: Gaps) -> None:
        self.store = store.owned_by(self)
        self.gaps = gaps
        self.kinds: dict[int, ValueKind] = {}
        """By type; all six are there before anything is asked."""
        self._starts: dict[tuple[Goal, bool], ValueStart] = store.table()
        self._first: dict[Goal, dict[int, int]] = store.memo()
        self._shortest: dict[Goal, Found | None] = store.memo()

    def start(self, goal: Goal, tight: bool) -> ValueStart:
        return self.store.local(self._starts, (goal, tight), lambda: ValueStart(self, goal, tight))

    def first_bytes(self, goal: Goal) -> dict[int, int]:
        """First byte of a value -> number of the local it leads to."""
        found = self._first.get(goal)
        if found is None:
            found = {}
            for kind in (NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT):
                typed = self.store.typed(goal, kind)
                if typed is not None:
                    found |= self.kinds[kind].first_bytes(typed)
            self._first[goal] = found
        return found

    def shortest(self, goal: Goal) -> Found | None:
        """None: there is none. Raises GaveUp."""
        if goal not in self._shortest:
            self._shortest[goal] = self.store.solver.proved(lambda: self._found(goal), goal.must)
        return self._shortest[goal]

    def _found(self, goal: Goal) -> Found | None:
        if not goal.is_wide:
            return self.store.solver.value(self.store.need(goal))
        for kind in (NUMBER, STRING, BOOLEAN, NULL, ARRAY, OBJECT):
            typed = self.store.typed(goal, kind)
            answer = None if typed is None else self.kinds[kind].shortest(typed)
            if answer is not None:
                return answer
        return None
