"""Any text of a bounded number of code points: the counting machine that costs nothing, however large the bounds."""

from __future__ import annotations

from imp_server.core.turns import charge
from imp_server.grammar.machines.combine import anything
from imp_server.grammar.machines.machine import DEAD, UNBOUNDED

N_BYTES = 300
"""Memory of a state."""


class PlainLength:
    """A state is (state of `anything`, code points needed, code points allowed; -1 = any)."""

    def __init__(self, low: int, high: int | None) -> None:
        self.low, self.high = low, high
        self._any = anything()
        self.classes = self._any.classes
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._states: list[tuple[int, int, int]] = []
        possible = high is None or low <= high
        self.start = self._intern(self._any.start, low, -1 if high is None else high) if possible else DEAD

    def _intern(self, inner: int, needed: int, allowed: int) -> int:
        key = (inner, needed, allowed)
        number = self._numbers.get(key)
        if number is None:
            charge(N_BYTES, 1)
            number = self._numbers[key] = len(self._states)
            self._states.append(key)
        return number

    def step(self, state: int, byte: int) -> int:
        inner, needed, allowed = self._states[state]
        inner = self._any.step(inner, byte)
        if inner == DEAD:
            return DEAD
        if byte & 0xC0 != 0x80:
            if allowed == 0:
                return DEAD
            needed = needed - 1 if needed else 0
            allowed = allowed - 1 if allowed > 0 else allowed
        return self._intern(inner, needed, allowed)

    def accepts(self, state: int) -> bool:
        inner, needed, _ = self._states[state]
        return needed == 0 and self._any.accepts(inner)

    def live(self, state: int) -> bool:
        return state != DEAD

    def universal(self, state: int) -> bool:
        return self._states[state] == (self._any.start, 0, -1)

    def room(self, state: int) -> int:
        allowed = self._states[state][2]
        return UNBOUNDED if allowed < 0 else allowed

    def shortest(self, state: int) -> bytes | None:
        if state == DEAD:
            return None
        inner, needed, _ = self._states[state]
        return (self._any.shortest(inner) or b"") + b"a" * needed

    def near(self, state: int, n: int) -> tuple[int, int]:
        """(needed, allowed) of a state that can't be told from this one within `n` code points."""
        _, needed, allowed = self._states[state]
        return min(needed, n + 1), -1 if allowed >= n else allowed
