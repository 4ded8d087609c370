"""A finite set of texts as a machine that needs no building: a state is a range of the sorted texts."""

from __future__ import annotations

from collections.abc import Collection

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.machine import DEAD

N_BYTES = 300
"""Memory of a state."""


class Literals:
    """States are interned (first, end, depth): the texts [first, end) share their first `depth` bytes."""

    def __init__(self, texts: Collection[bytes]) -> None:
        self.texts = sorted(set(texts))
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._states: list[tuple[int, int, int]] = []
        self._rows: list[dict[int, int] | None] = []
        used = sorted({b for t in self.texts for b in t})
        table = bytearray(256)
        for number, byte in enumerate(used, start=1 if len(used) < 256 else 0):
            table[byte] = number
        self.classes = bytes(table)
        self.start = self._intern(0, len(self.texts), 0) if self.texts else DEAD

    def _intern(self, first: int, end: int, depth: int) -> int:
        key = (first, end, depth)
        number = self._numbers.get(key)
        if number is None:
            charge(N_BYTES, 1)
            number = self._numbers[key] = len(self._states)
            self._states.append(key)
            self._rows.append(None)
        return number

    def row(self, state: int) -> dict[int, int]:
        """byte -> next state."""
        row = self._rows[state]
        if row is None:
            row = {}
            first, end, depth = self._states[state]
            spend(1 + (end - first) // 8)
            at = first + (len(self.texts[first]) == depth)
            while at < end:
                byte, begin = self.texts[at][depth], at
                while at < end and self.texts[at][depth] == byte:
                    at += 1
                row[byte] = self._intern(begin, at, depth + 1)
            self._rows[state] = row
        return row

    def step(self, state: int, byte: int) -> int:
        return self.row(state).get(byte, DEAD)

    @property
    def values(self) -> list[bytes]:
        """The texts, in their order."""
        return self.texts

    def index(self, state: int) -> int:
        """Index of the text that ends here, or -1."""
        first, _, depth = self._states[state]
        return first if len(self.texts[first]) == depth else -1

    def span(self, state: int) -> tuple[int, int]:
        """The texts that are still possible."""
        return self._states[state][:2]

    def accepts(self, state: int) -> bool:
        return self.index(state) >= 0

    def live(self, state: int) -> bool:
        return state != DEAD

    def shortest(self, state: int) -> bytes | None:
        if state == DEAD:
            return None
        first, end, depth = self._states[state]
        return min(self.texts[first:end], key=len)[depth:]

    def room(self, state: int) -> int:
        return 0

    def depth(self, state: int) -> int:
        """Bytes read so far."""
        return self._states[state][2]
