"""A pattern and bounds on the length of its texts, as sets of positions with two counts beside them.

From a set a text may go on if some position of it is as many code points away from an end as are still needed and
allowed: for each number of them that is a set, too. Where the most allowed is so large that there would be too many
sets, counting alone has to tell dead ends (lengths.py, with_length): then the fewest code points to an end may not be
too many, and the most not too few. The twin is `Bounded` of lengths.py.
"""

from __future__ import annotations

from itertools import accumulate
from operator import or_

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.codepoints import sample
from imp_server.grammar.machines.glushkov import lowest
from imp_server.grammar.machines.machine import DEAD, UNBOUNDED, Machine
from imp_server.grammar.machines.nodes import INFINITE
from imp_server.grammar.machines.position_machine import PositionMachine, bounds

MOST_COUNTED = 4096
"""Code points for each of which there is a set of positions that are so far from an end."""


class CountedMachine(PositionMachine):
    """The texts of `inner` that are `low` to `high` code points long."""

    is_directed = False

    def __init__(self, inner: PositionMachine, low: int, high: int) -> None:
        self.inner = inner
        self.low, self.high = low, high
        self._exact: list[int] = [inner.positions.ends]
        """By number: the positions from which an end is just so far, if one likes."""
        super().__init__(inner.roots, inner.positions)
        self.root = None
        self.ways, self.counted = inner.ways, self._sets()
        first = inner.place(inner.start)._replace(needed=low, allowed=-1 if high >= INFINITE else high)
        lives = self._lives(first.positions, first.needed, first.allowed)
        self.start = self.intern(first) if lives else DEAD

    # --- the Machine protocol, where it differs ---------------------------------------------

    def accepts(self, state: int) -> bool:
        return super().accepts(state) and not self.place(state).needed

    def universal(self, state: int) -> bool:
        place = self.place(state)
        return super().universal(state) and not place.needed and place.allowed < 0

    def room(self, state: int) -> int:
        """Whatever comes, the pattern needs at most `reach` more."""
        place = self.place(state)
        if place.due or not place.positions & self._free:
            return 0
        if super().universal(state):
            return UNBOUNDED if place.allowed < 0 else place.allowed
        return UNBOUNDED if place.allowed < 0 else max(0, place.allowed - self.reach)

    def spread(self, state: int) -> None:  # type: ignore[override]
        """Not known."""

    def alias(self, state: int, n: int) -> tuple[Machine, int]:
        """As TermMachine.alias: a maximum that can't be reached within `n` code points is as good as none."""
        place = self.place(state)
        if place.needed or 0 <= place.allowed < n + self.reach:
            return self, state
        return self.inner, self.inner.intern(place._replace(allowed=-1))

    def shortest(self, state: int) -> bytes | None:
        """Few bytes of those with the fewest code points."""
        if state == DEAD:
            return None
        place = self.place(state)
        char, here = b"", place.positions
        if place.due:
            char, here = self._completed(state)
        direct = self.ways.word(here)
        n = len(direct.decode())
        if place.needed <= n and (place.allowed < 0 or n <= place.allowed):
            return char + direct
        n = place.needed
        while not here & self._just(n):
            n += 1
        return char + self._word(here, n)

    # --- words ------------------------------------------------------------------------------

    def _lives(self, positions: int, needed: int, allowed: int) -> bool:
        if not positions:
            return False
        near, far = self.counted
        is_near = allowed < 0 or allowed >= len(near) or positions & near[allowed]
        return bool(is_near and positions & far[min(needed, len(far) - 1)])

    def _sets(self) -> tuple[list[int], list[int]]:
        """`counted`: by code points allowed, and by those needed."""
        if self.high <= MOST_COUNTED:
            self._just(self.high)
            return windows(self._exact, self.low), [(1 << self.positions.n) - 1]
        least, most = self.inner.counts()
        return [] if self.high >= INFINITE else _upwards(least), _downwards(most)

    def _completed(self, state: int) -> tuple[bytes, int]:
        """The rest of the character that was begun, in a way that leads on, and the positions behind it."""
        place = self.place(state)
        low, high = bounds(place.value, place.due, place.floor)
        for kind, among in enumerate(self.positions.chars):
            here = place.positions & among
            if not self._lives(here, place.needed, place.allowed):
                continue
            char = self.positions.character(kind, low, high)
            if char >= 0:
                return chr(char).encode()[-place.due :], here
        raise AssertionError("a character that leads nowhere")

    def _just(self, n: int) -> int:
        while n >= len(self._exact):
            charge(self.positions.n // 8, self.n_units)
            self._exact.append(self.positions.before(self._exact[-1]))
        return self._exact[n]

    def _word(self, here: int, n: int) -> bytes:
        """A text of n code points from `here` to an end."""
        spend(1 + n * self.n_units)
        position, word = lowest(here & self._just(n)), bytearray()
        while n:
            n -= 1
            position = lowest(self.positions.follow(1 << position) & self._just(n))
            word += chr(sample(self.positions.ranges[position])).encode()
        return bytes(word)


def windows(sets: list[int], low: int) -> list[int]:
    """By the number of code points allowed: the sets of those needed to those allowed, made one."""
    high = len(sets) - 1
    width = high - low + 1
    spend(1 + high // 8)
    # unions from the next multiple of the width down, and from the last one up: any two make a window
    down, up = sets[:], sets[:]
    for n in range(1, high + 1):
        up[n] |= up[n - 1] if n % width else 0
    for n in range(high - 1, -1, -1):
        down[n] |= down[n + 1] if (n + 1) % width else 0
    return [up[n] | (down[n - width + 1] if n >= width else 0) for n in range(high + 1)]


def _upwards(counts: list[int]) -> list[int]:
    """By number: positions whose count is at most that, up to the largest count."""
    sets = _by_count(counts, max(counts))
    return list(accumulate(sets, or_))


def _downwards(counts: list[int]) -> list[int]:
    """By number: positions whose count is at least that, up to one above the largest that is finite."""
    top = max((count for count in counts if count < INFINITE), default=0) + 1
    sets = _by_count([min(count, top) for count in counts], top)
    return list(accumulate(reversed(sets), or_))[::-1]


def _by_count(counts: list[int], most: int) -> list[int]:
    charge((most + 1) * len(counts) // 8, 1 + (most + len(counts)) // 8)
    sets = [0] * (most + 1)
    for position, count in enumerate(counts):
        sets[count] |= 1 << position
    return sets
