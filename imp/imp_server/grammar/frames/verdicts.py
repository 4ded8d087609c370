"""A scalar's machine together with the result it ends with."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from imp_server.grammar.explored import refined, representatives
from imp_server.grammar.frames.goals import Goal
from imp_server.grammar.machine import DEAD, Machine

SEARCH = 20_000
"""States looked at to find out whether an acceptable end can be reached."""


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

    def __init__(self, must: Machine, watched: list[Machine], goal: Goal) -> None:
        self._parts = [must, *watched]
        self._goal = goal
        self.classes = refined([m.classes for m in self._parts])
        self._samples = representatives(self.classes)
        self._numbers: dict[tuple[int, ...], int] = {}
        self._states: list[tuple[int, ...]] = []
        self._rows: list[dict[int, int]] = []
        self._next: dict[int, tuple[int, int] | None] = {}
        first = self._intern(tuple(m.start for m in self._parts))
        self.start = first if first != DEAD and self._alive(first) else DEAD

    def _intern(self, states: tuple[int, ...]) -> int:
        if states[0] == DEAD:
            return DEAD
        number = self._numbers.setdefault(states, len(self._states))
        if number == len(self._states):
            self._states.append(states)
            self._rows.append({})
        return number

    def _raw(self, state: int, byte: int) -> int:
        row, kind = self._rows[state], self.classes[byte]
        target = row.get(kind)
        if target is None:
            states = zip(self._parts, self._states[state])
            target = row[kind] = self._intern(tuple(m.step(s, byte) if s != DEAD else DEAD for m, s in states))
        return target

    def _alive(self, state: int) -> bool:
        """Whether an allowed end is within reach; remembers the way."""
        if state in self._next:
            return self._next[state] is not None
        came: dict[int, tuple[int, int]] = {}
        queue = deque([state])
        reached = {state}
        while queue and len(reached) < SEARCH:
            here = queue.popleft()
            known = self._next.get(here)
            if known is not None or self.result(here) >= 0:
                self._next.setdefault(here, (-1, -1))
                while here != state:
                    before, byte = came[here]
                    self._next[before] = (byte, here)
                    here = before
                return True
            for byte in self._samples:
                target = self._raw(here, byte)
                if target != DEAD and target not in reached and self._next.get(target, ()) is not None:
                    reached.add(target)
                    came[target] = (here, byte)
                    queue.append(target)
        if not queue:
            self._next.update(dict.fromkeys(reached))
        else:
            self._next[state] = None
        return False

    def step(self, state: int, byte: int) -> int:
        target = self._raw(state, byte)
        return target if target != DEAD and self._alive(target) else DEAD

    def result(self, state: int) -> int:
        truths = [s != DEAD and m.accepts(s) for m, s in zip(self._parts, self._states[state])]
        return self._goal.result(tuple(truths[1:])) if truths[0] else -1

    def room(self, state: int) -> int:
        return 0

    def shortest(self, state: int) -> bytes:
        out = bytearray()
        while self.result(state) < 0:
            way = self._next.get(state) if self._alive(state) else None
            assert way is not None
            out.append(way[0])
            state = way[1]
        return bytes(out)

    def moves(self, state: int) -> dict[int, int] | None:
        return None

    def alias(self, state: int) -> tuple[Verdicts, int]:
        return self, state
