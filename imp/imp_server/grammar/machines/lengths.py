"""minLength and maxLength: texts of a number of code points, alone or together with another machine."""

from __future__ import annotations

from collections import deque
from functools import reduce
from operator import or_

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.combine import (
    alias_of,
    anything,
    gap_of,
    intersect,
    nothing,
    reach_of,
    spread_of,
    universal,
)
from imp_server.grammar.machines.counted import MOST_COUNTED, CountedMachine, windows
from imp_server.grammar.machines.explored import BUDGET, Explored, refined, representatives
from imp_server.grammar.machines.glushkov import members
from imp_server.grammar.machines.machine import DEAD, GROWING, UNBOUNDED, Machine
from imp_server.grammar.machines.memo import remembered
from imp_server.grammar.machines.nodes import INFINITE, Spread
from imp_server.grammar.machines.position_machine import PositionMachine

N_BYTES = 500
"""Memory of a state."""
SEARCH = 5_000
"""States looked at for a shortest continuation."""
MOST_SETS = 200_000
"""States of a table times code points that are counted."""
SEARCHED = 200
"""Code points that may be needed where one is looked for: each takes more than one of these states."""


class BoundedLength:
    """`inner`, between `low` and `high` code points long; only made where counting alone tells dead ends.

    A state is (inner state, code points still needed, code points still allowed), so equal remainders of
    different bounds look alike.
    """

    def __init__(self, inner: Machine, low: int, high: int) -> None:
        self.inner = inner
        self.low, self.high = low, high
        self.classes = _with_continuations(inner.classes)
        self._representatives = representatives(self.classes)
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._states: list[tuple[int, int, int]] = []
        self._rows: list[dict[int, int]] = []
        self._nearer: dict[int, tuple[int, int]] = {}
        self._reach = reach_of(inner)
        self.start = self._intern(inner.start, low, high)

    def _intern(self, state: int, needed: int, allowed: int) -> int:
        if state == DEAD or not self._possible(state, needed, allowed):
            return DEAD
        key = (state, needed, allowed)
        number = self._numbers.get(key)
        if number is None:
            charge(N_BYTES, 1)
            number = self._numbers[key] = len(self._states)
            self._states.append(key)
            self._rows.append({})
        return number

    def _possible(self, state: int, needed: int, allowed: int) -> bool:
        spread = spread_of(self.inner, state)
        assert spread is not None
        return spread.low <= allowed and spread.high >= needed

    def step(self, state: int, byte: int) -> int:
        row, kind = self._rows[state], self.classes[byte]
        target = row.get(kind)
        if target is None:
            with GROWING:
                target = row[kind] = self._step(state, byte)
        return target

    def _step(self, state: int, byte: int) -> int:
        inner, needed, allowed = self._states[state]
        target = self.inner.step(inner, byte)
        if target == DEAD:
            return DEAD
        if byte & 0xC0 != 0x80:
            if allowed == 0:
                return DEAD
            needed = needed - 1 if needed else 0
            allowed = allowed - 1 if allowed < INFINITE else allowed
        return self._intern(target, needed, allowed)

    def accepts(self, state: int) -> bool:
        inner, needed, _ = self._states[state]
        return needed == 0 and self.inner.accepts(inner)

    def live(self, state: int) -> bool:
        return state != DEAD

    def universal(self, state: int) -> bool:
        inner, needed, allowed = self._states[state]
        return needed == 0 and allowed == INFINITE and universal(self.inner, inner)

    def room(self, state: int) -> int:
        """Whatever `room` code points lead to, the inner machine needs at most `reach` more of them."""
        inner, needed, allowed = self._states[state]
        if universal(self.inner, inner):
            return min(allowed, UNBOUNDED)
        room = self.inner.room(inner)
        if needed and room < UNBOUNDED:
            return 0
        return max(0, min(room, allowed - self._reach, UNBOUNDED))

    def alias(self, state: int, n: int) -> tuple[Machine, int]:
        """As TermMachine.alias: a maximum that can't be reached within `n` code points is as good as none."""
        inner, needed, allowed = self._states[state]
        if needed or (allowed < INFINITE and allowed - n < self._reach):
            return self, state
        return alias_of(self.inner, inner, n)

    def spread(self, state: int) -> Spread | None:
        inner, needed, allowed = self._states[state]
        if not universal(self.inner, inner):
            return None
        return Spread(needed, allowed, 1)

    def shortest(self, state: int) -> bytes | None:
        """Exact where a search of SEARCH states finds it; else a short continuation."""
        if state == DEAD:
            return None
        inner, needed, allowed = self._states[state]
        if universal(self.inner, inner):
            return b"a" * needed
        direct = self.inner.shortest(inner)
        if direct is not None and needed <= _code_points(direct) <= allowed:
            return direct
        return (self._searched(state) if needed <= SEARCHED else None) or self._greedy(state)

    def _searched(self, start: int) -> bytes | None:
        """Breadth first, byte by byte."""
        found: dict[int, bytes] = {start: b""}
        queue = deque([start])
        while queue and len(found) < SEARCH:
            state = queue.popleft()
            charge(len(found[state]), 1 + len(self._representatives))
            for byte in self._representatives:
                target = self.step(state, byte)
                if target == DEAD or target in found:
                    continue
                found[target] = found[state] + bytes([byte])
                if self.accepts(target):
                    return found[target]
                queue.append(target)
        return None

    def _greedy(self, state: int) -> bytes:
        """Any way while code points are needed, then always nearer to the inner machine's end."""
        out = bytearray()
        while not self.accepts(state):
            byte, after = self._nearer.get(state) or self._chosen(state)
            inner, needed, allowed = self._states[state]
            if needed and byte & 0xC0 != 0x80 and self._states[after][0] == inner:
                # the same again and again, as long as it is needed
                last = self._intern(inner, 0, allowed - needed if allowed < INFINITE else allowed)
                if last != DEAD:
                    spend(1 + needed // 16)
                    out += bytes([byte]) * needed
                    state = last
                    continue
            out.append(byte)
            state = after
        return bytes(out)

    def _chosen(self, state: int) -> tuple[int, int]:
        """The byte that leads nearest to an end, and the state behind it."""
        charge(N_BYTES, 2 + len(self._representatives))
        options = [(b, self.step(state, b)) for b in self._representatives]
        alive = ((b, t) for b, t in options if t != DEAD)
        found = self._nearer[state] = min(alive, key=lambda option: self._distance(option[1]))
        return found

    def _distance(self, state: int) -> tuple[int, int]:
        inner, needed, _ = self._states[state]
        spread = spread_of(self.inner, inner)
        assert spread is not None
        return needed, spread.low


class CountedTable(BoundedLength):
    """A finished table between `low` and `high` code points: by their number it is known what ends there."""

    def __init__(self, inner: Explored, low: int, high: int) -> None:
        self._within = windows(_just(inner, high), low)
        """By code points allowed: the states from which an end is as near as that, and as far as is needed then."""
        super().__init__(inner, low, high)

    def _possible(self, state: int, needed: int, allowed: int) -> bool:
        return bool(self._within[allowed] >> state & 1)


def _just(table: Explored, most: int) -> list[int]:
    """By number of code points, up to `most`: the states from which a text may end behind just so many."""
    begun, more = [0] * table.n_states, [0] * table.n_states
    for byte in representatives(_with_continuations(table.classes)):
        spend(1 + table.n_states // 8)
        sources = more if byte & 0xC0 == 0x80 else begun
        for state in range(table.n_states):
            target = table.step(state, byte)
            if target != DEAD:
                sources[target] |= 1 << state
    ending, found = sum(1 << s for s in range(table.n_states) if table.accepts(s)), list[int]()
    for _ in range(most + 1):
        charge(table.n_states // 8, 1 + table.n_states // 8)
        here = new = ending
        while new:  # in the middle of a code point that was counted
            new = before(more, new) & ~here
            here |= new
        found.append(here)
        ending = before(begun, here)
    return found


def before(sources: list[int], states: int) -> int:
    """All sources of the states."""
    return reduce(or_, (sources[state] for state in members(states)), 0)


def counted_table(table: Machine, low: int, high: int) -> Machine | None:
    """The texts of a finished table that are `low` to `high` code points long. None where that takes too many sets."""
    if (
        not isinstance(table, Explored)
        or table.start == DEAD
        or high > MOST_COUNTED
        or table.n_states * high > MOST_SETS
    ):
        return None
    return CountedTable(table, low, high)


def with_length(machine: Machine, low: int, high: int | None, what: str = "pattern and length") -> Machine:
    """The texts of `machine` that are `low` to `high` code points long (None: no maximum).

    Raises GrammarRefused where neither counting nor a product under the budget is exact.
    """
    top = INFINITE if high is None else high
    if isinstance(machine, BoundedLength | CountedMachine):
        low, top = max(low, machine.low), min(top, machine.high)
        machine = machine.inner
    if machine.start == DEAD or low > top:
        return nothing()
    spread = spread_of(machine, machine.start)
    if spread is not None:
        if low <= spread.low and spread.high <= top:
            return machine
        counts_exactly = low <= MOST_COUNTED and (top <= MOST_COUNTED or top == INFINITE)
        if isinstance(machine, PositionMachine) and machine.is_directed and counts_exactly:
            return CountedMachine(machine, low, top)
        # If two lengths that follow each other are never further apart than the window is wide, one of them fits.
        if low == 0 or top == INFINITE or top - low + 1 >= min(gap_of(machine), INFINITE):
            return _bounded(machine, low, top)
        widest = widest_gap(machine)
        if widest is not None and top - low + 1 >= widest:
            return _bounded(machine, low, top)
    return intersect([machine, BoundedLength(anything(), low, top)], what=what)


def _bounded(machine: Machine, low: int, high: int) -> Machine:
    if isinstance(machine, PositionMachine) and machine.is_directed and low <= MOST_COUNTED:
        return CountedMachine(machine, low, high)
    return BoundedLength(machine, low, high)


@remembered(maxsize=256)
def widest_gap(machine: Machine) -> int | None:
    """Bound on the distance of two lengths that follow each other, over all states; None if they are too many."""
    representing = representatives(machine.classes)
    found = {machine.start}
    todo = [machine.start]
    widest = 1
    for state in todo:
        if len(found) * len(representing) > BUDGET:
            return None
        spend(1 + len(representing))
        spread = spread_of(machine, state)
        if spread is None:
            return None
        widest = max(widest, spread.gap)
        for target in {machine.step(state, byte) for byte in representing} - found - {DEAD}:
            found.add(target)
            todo.append(target)
    return widest


def _code_points(data: bytes) -> int:
    return sum(byte & 0xC0 != 0x80 for byte in data)


def _with_continuations(classes: bytes) -> bytes:
    """The classes, cut between continuation bytes and others."""
    return refined([classes, bytes(int(byte & 0xC0 == 0x80) for byte in range(256))])
