"""A machine whose states are sets of positions (glushkov.py), for expressions whose subsets are too many to be made.

Its masks are walked over the sets themselves (kernels/cpu/grammar/positions.cpp), so that no token makes a state;
states are made for the text that is written, one for each byte of it. The twin is the automaton of terms.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.codepoints import LAST, byte_classes, sample, utf8_size
from imp_server.grammar.machines.explored import representatives
from imp_server.grammar.machines.glushkov import (
    Positions,
    free_positions,
    lowest,
    members,
    positions_of,
    universal_positions,
)
from imp_server.grammar.machines.machine import DEAD, GROWING, UNBOUNDED
from imp_server.grammar.machines.nodes import INFINITE, Node, Spread

FEW_STATES = 64
"""States up to which all subsets are as good as known: their automaton is the better one."""
MAX_LOOKED_AT = 100_000
"""Steps that finding out whether one character may be read in two ways may take."""
N_BYTES = 500
"""Memory of a state, its set excepted."""
OPS_PER_UNIT = 32


class PositionPlace(NamedTuple):
    """What a state is. In the middle of a code point: the positions that may read it."""

    positions: int
    due: int = 0
    """Continuation bytes still to come."""
    value: int = 0
    """Of the bytes of the code point that were read."""
    floor: int = 0
    """The least code point that is written with so many bytes."""
    needed: int = 0
    """Code points that have to come, and that may, behind the one that was begun (-1: any number)."""
    allowed: int = -1


class Ways:
    """Shortest ways from positions to some of them: owner of how far each is away, in bytes."""

    def __init__(self, positions: Positions, ends: int) -> None:
        self._table, self._ends = positions, ends
        self._sizes = [0] * 5
        """By bytes of their shortest character: the positions."""
        self._levels: list[int] = []
        """By bytes: the positions that are just so far from the end."""

    def nearest(self, here: int) -> tuple[int, int]:
        """(bytes, position) of the one among `here` that is nearest to the end, the lowest of several."""
        if not self._levels:
            self._measure()
        at = next(size for size, level in enumerate(self._levels) if level & here)
        spend(1 + at // 8)
        return at, lowest(self._levels[at] & here)

    def word(self, here: int) -> bytes:
        """The shortest way from any of the positions."""
        at, position = self.nearest(here)
        return self.part(at, position, 0)[0]

    def part(self, at: int, position: int, until: int) -> tuple[bytes, int, int]:
        """(characters of the way from a position that is `at` bytes away, how far the last one is, its position).

        No more of them than lead within `until` bytes of the end.
        """
        table, word = self._table, bytearray()
        spend(1 + (at - until) * (1 + table.n_ops // OPS_PER_UNIT))
        while at > until:
            following = table.follow(1 << position)
            sizes = range(1, min(4, at) + 1)
            nearer = ((at - size, following & self._levels[at - size] & self._sizes[size]) for size in sizes)
            at, position = next((size, lowest(among)) for size, among in nearer if among)
            word += chr(sample(table.ranges[position])).encode()
        return bytes(word), at, position

    def ranks(self) -> list[int]:
        """By position: its place in the order of `nearest`."""
        if not self._levels:
            self._measure()
        spend(1 + self._table.n // OPS_PER_UNIT)
        found = [self._table.n] * self._table.n
        for rank, position in enumerate(p for level in self._levels for p in members(level)):
            found[position] = rank
        return found

    def _measure(self) -> None:
        table, sizes = self._table, self._sizes
        for position, ranges in enumerate(table.ranges):
            sizes[utf8_size(sample(ranges)) if ranges else 0] |= 1 << position
        levels, left = [self._ends], (1 << table.n) - 1 & ~self._ends
        while any(levels[-4:]) and left:
            charge(table.n // 8, 1 + table.n_ops // OPS_PER_UNIT)
            near = 0
            for size in range(1, min(4, len(levels)) + 1):
                among = levels[-size] & sizes[size]
                near |= table.before(among) if among else 0
            levels.append(near & left)
            left &= ~near
        self._levels = levels


class PositionMachine:
    """Owner of the states met so far, and of what is known of positions."""

    is_sparse = True
    """Rows are filled entry by entry: whoever asks for all makes as many states."""
    is_directed = True
    """The nearest position alone tells the way to the end."""

    def __init__(self, roots: Sequence[Node], positions: Positions) -> None:
        """`positions` of the roots; none where they are of more than expressions (tracked.py)."""
        self.positions = positions
        self.roots = roots
        self.root: Node | None = roots[0] if len(roots) == 1 else None
        self.classes = byte_classes(set(positions.ranges))
        self._samples = representatives(self.classes)
        self.n_units = 1 + positions.n_ops // OPS_PER_UNIT
        self._free = free_positions(positions)
        self._universal = universal_positions(positions)
        self._within: dict[tuple[int, int], list[int]] = {}
        self._numbers: dict[PositionPlace, int] = {}
        self._places: list[PositionPlace] = []
        self._follows: list[int] = []
        self._rows: list[dict[int, int]] = []
        self.ways = Ways(positions, positions.ends)
        self._lengths: tuple[list[int], list[int]] | None = None
        # without expressions the positions themselves are asked
        self.reach = max(root.reach for root in roots) if roots else max(self.counts()[0])
        """Bound on the fewest code points still missing in any state."""
        gap = reduce(Spread.either, (root.spread for root in roots)).gap if roots else INFINITE
        self._gap = max(1, self.reach, gap)
        self.counted: tuple[list[int], list[int]] = [], []
        """By number of code points: positions from which an end is that near, and from which it may be that far."""
        self.missing: list[int] = []
        """By the sets of the goal that are met, as bits: the fewest code points that meet all; empty: not asked for."""
        self.native: Any = None
        """What frames/position_texts.py keeps of it."""
        self.start = self.intern(PositionPlace(positions.first))

    # --- the Machine protocol ---------------------------------------------------------------

    def step(self, state: int, byte: int) -> int:
        row, kind = self._rows[state], self.classes[byte]
        target = row.get(kind)
        if target is None:
            spend(self.n_units)
            with GROWING:
                target = row[kind] = self._step(state, self._samples[kind])
        return target

    def accepts(self, state: int) -> bool:
        place = self._places[state]
        return not place.due and bool(place.positions & self.positions.ends)

    def live(self, state: int) -> bool:
        return state != DEAD

    def universal(self, state: int) -> bool:
        """Whether every text is known to be accepted from here."""
        place = self._places[state]
        return not place.due and bool(place.positions & self._universal)

    def room(self, state: int) -> int:
        place = self._places[state]
        return UNBOUNDED if not place.due and place.positions & self._free else 0

    def shortest(self, state: int) -> bytes | None:
        if state == DEAD:
            return None
        char, at, position = self.nearest(state)
        return char + self.ways.part(at, position, 0)[0]

    def nearest(self, state: int) -> tuple[bytes, int, int]:
        """(the rest of the character that was begun, bytes to the end behind it, the position from which they lead)."""
        here, due, value, floor, *_ = self._places[state]
        at, position = self.ways.nearest(here)
        if not due:
            return b"", at, position
        low, high = bounds(value, due, floor)
        char = next(max(a, low) for a, b in self.positions.ranges[position] if b >= low and a <= high)
        return chr(char).encode()[-due:], at, position

    def spread(self, state: int) -> Spread:
        """Lengths of what may still come, in code points."""
        least, most = self.counts()
        here = list(members(self._places[state].positions))
        spend(1 + len(here) // OPS_PER_UNIT)
        return Spread(min(least[p] for p in here), max(most[p] for p in here), self._gap)

    # --- for frames and walks ---------------------------------------------------------------

    def place(self, state: int) -> PositionPlace:
        return self._places[state]

    def only_byte(self, state: int) -> int:
        """The byte that must follow, for a text written as it is; -1 if there is a choice."""
        place = self._places[state]
        if place.due or self.accepts(state):
            return -1
        table = self.positions
        kinds = [k for k, among in enumerate(table.chars) if among & self._follows[state]]
        segments = [i for i, kind in enumerate(table.kinds) if kind in kinds]
        if len(segments) != 1:
            return -1
        at = segments[0]
        low, high = table.starts[at], table.starts[at + 1] if at + 1 < len(table.starts) else LAST + 1
        return low if high == low + 1 and low < 0x80 else -1

    def goes_on(self, state: int) -> bool:
        """Whether any byte may follow."""
        return bool(self._places[state].due or self._follows[state])

    # --- construction -----------------------------------------------------------------------

    def settled(self, positions: int) -> int:
        """Positions with the same future, the same for many."""
        return 1 << lowest(self._universal & self._free) if positions & self._universal else positions

    def intern(self, place: PositionPlace) -> int:
        if not place.due:
            place = place._replace(positions=self.settled(place.positions))
        number = self._numbers.get(place)
        if number is None:
            charge(N_BYTES + self.positions.n // 2, 2)
            number = self._numbers[place] = len(self._places)
            self._places.append(place)
            self._follows.append(place.positions if place.due else self.positions.follow(place.positions))
            self._rows.append({})
        return number

    def _step(self, state: int, byte: int) -> int:
        _, due, value, floor, needed, allowed = self._places[state]
        if not due:
            if allowed == 0:
                return DEAD
            needed, allowed = max(0, needed - 1), max(-1, allowed - 1)
        following = self._follows[state]
        if due:
            if byte & 0xC0 != 0x80:
                return DEAD
            value, due = value << 6 | byte & 0x3F, due - 1
        elif byte < 0x80:
            value = byte
        elif 0xC2 <= byte <= 0xF4:
            due = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
            value, floor = byte & 0x3F >> due, (0, 0x80, 0x800, 0x10000)[due]
        else:
            return DEAD
        read = [following & among for among in self._reading(*bounds(value, due, floor))]
        if not any(self._lives(positions, needed, allowed) for positions in read):
            return DEAD
        found = reduce(or_, read)  # what is dead included: the character isn't known yet
        if due:
            return self.intern(PositionPlace(found, due, value, floor, needed, allowed))
        return self.intern(PositionPlace(found, needed=needed, allowed=allowed))

    def _lives(self, positions: int, needed: int, allowed: int) -> bool:
        """Whether a text may end behind these positions."""
        return self.positions.goal.lives(positions)

    def _reading(self, low: int, high: int) -> list[int]:
        """By class of code points in [low, high]: the positions that read them."""
        if low > high:
            return []
        found = self._within.get((low, high))
        if found is None:
            table = self.positions
            first, last = bisect_right(table.starts, low) - 1, bisect_right(table.starts, high)
            charge(200, 1 + (last - first) // OPS_PER_UNIT)
            kinds = sorted(set(table.kinds[first:last]) - {-1})
            found = self._within[low, high] = [table.chars[kind] for kind in kinds]
        return found

    # --- lengths ----------------------------------------------------------------------------

    def counts(self) -> tuple[list[int], list[int]]:
        """By position: fewest and most code points behind it."""
        if self._lengths is None:
            table = self.positions
            least, most = [0] * table.n, [INFINITE] * table.n
            near, far, n = table.ends, (1 << table.n) - 1, 0
            while True:
                spend(2 * self.n_units)
                n += 1
                nearer, farther = near | table.before(near), table.before(far)
                for position in members(nearer & ~near):
                    least[position] = n
                for position in members(far & ~farther):
                    most[position] = n - 1
                if nearer == near and farther == far:
                    break
                near, far = nearer, farther
            self._lengths = least, most
        return self._lengths


def bounds(value: int, due: int, floor: int) -> tuple[int, int]:
    """The code points that begin with `value` where so many bytes are still due."""
    low = value << 6 * due
    return max(low, floor), min(low + (1 << 6 * due) - 1, LAST)


def position_machine(*roots: Node) -> PositionMachine | None:
    """The texts of any of the expressions. None where the subsets are few, or a set would be too large."""
    positions = positions_of(*roots)
    if positions is None:
        return None
    found = PositionMachine(roots, positions)
    return None if is_small(found) or (len(roots) == 1 and not _is_ambiguous(positions)) else found


def is_small(machine: PositionMachine) -> bool:
    """Whether no more than FEW_STATES sets are met, whatever is read."""
    positions = machine.positions
    met, todo = {positions.first}, [positions.first]
    for here in todo:
        spend(1 + len(positions.chars) // 8)
        following = positions.follow(here)
        for among in positions.chars:
            after = machine.settled(following & among)
            if positions.goal.lives(after) and after not in met:
                if len(met) == FEW_STATES:
                    return False
                met.add(after)
                todo.append(after)
    return True


def _is_ambiguous(positions: Positions) -> bool:
    """Whether some position may be followed by two that read the same character; True where it takes long to tell."""
    n_ops = positions.n_ops + len(positions.chars)
    if positions.n * n_ops > MAX_LOOKED_AT:
        return True
    spend(positions.n * n_ops // OPS_PER_UNIT)
    following = {positions.follow(1 << p) for p in range(positions.n)}
    return any((f & among) & ((f & among) - 1) for f in following for among in positions.chars)
