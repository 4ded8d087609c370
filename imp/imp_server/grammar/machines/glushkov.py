"""The position automaton (Glushkov) of an expression: sets of positions as words of bits, never a subset made a state.

A position is one character of the expression, counted loops written out, or stands before its first one. What may
follow a set is worked out for all of its positions at once: by shifts, as written-out loops repeat the same distances,
and by jumps from one set to another. So a step costs so many words whatever the set is, and that number is known
before anything is read. Every position can still reach an end: what has none isn't in the expression (nodes.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Literal, NamedTuple

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.codepoints import ANY, LAST, Ranges, sample
from imp_server.grammar.machines.nodes import INFINITE, Kind, Node

MAX_POSITIONS = 2048
COUNTED_UP_TO = 1 << 20
"""Positions beyond which they aren't counted."""
MAX_CLASSES = 128
MAX_COST = 256
"""Words read and written for one step: a mask takes at most this for each node of a vocabulary's trie."""
MAX_READ = 1024
"""Words compared to tell whether a character that isn't in ASCII may begin: a tenth to a half of such nodes."""
MAX_SHIFTS, LONGEST_SHIFT = 16, 63
OFTEN = 4
"""Pairs of positions from which on a distance is a shift."""
SMALL_JUMP = 64
"""Pairs in a jump up to which it may be spelled as shifts."""
N_BYTES = 200
"""Memory of a position, of what is known of it included."""

Jump = tuple[int, int]
"""If any position of the first set was read, all of the second may come."""


class SideBySide(NamedTuple):
    """What several expressions that are read side by side are to do. Sets that are met stay met."""

    kind: Literal["any", "all", "one"]
    """Of the sets in `done`: a text ends where all are met, or exactly one. any: where `ends` of the positions is."""
    done: tuple[int, ...] = ()
    lost: int = 0
    """Behind these nothing ends. So it is behind two of `done`, if one alone is to be met."""

    def ends(self, here: int) -> bool:
        n_met = sum(1 for among in self.done if here & among)
        return n_met == (1 if self.kind == "one" else len(self.done))

    def lives(self, here: int) -> bool:
        if self.kind == "one":
            return sum(1 for among in self.done if here & among) < 2
        return bool(here) and not here & self.lost


ANY_END = SideBySide("any")

Moves = tuple[list[tuple[int, int]], list[Jump]]
"""Shifts and jumps."""


class Tracks(NamedTuple):
    """Positions of one expression side by side, in tracks of equal width (tracked.py)."""

    width: int
    """Words of a track."""
    n: int
    links: list[Moves]
    """What may follow within a track; there are several where it depends on what stands between."""
    then: list[list[list[int]]]
    """By link and track: the tracks that may come next."""
    live: int
    """All positions that lead to an end."""
    is_single: bool = False
    """Sets are never of two tracks at once."""

    @property
    def cost(self) -> int:
        """Words read and written for a step."""
        costs = [0] * self.n
        for (shifts, jumps), then in zip(self.links, self.then, strict=True):
            moved = self.width * (2 * len(shifts) + 1) + n_jump_words(jumps)
            for track, after in enumerate(then):
                costs[track] += moved + self.width * len(after) if after else 0
        return max(costs) if self.is_single else sum(costs)

    def follow(self, here: int) -> int:
        found, n = 0, 64 * self.width
        for track in self._among(here):
            own = here >> track * n & (1 << n) - 1
            for moves, then in zip(self.links, self.then, strict=True):
                after = followed(moves, own) if then[track] else 0
                for number in then[track] if after else ():
                    found |= after << number * n
        return found & self.live if self.live else found

    def before(self, here: int) -> int:
        found, n = 0, 64 * self.width
        here = here & self.live if self.live else here
        parts = {track: here >> track * n & (1 << n) - 1 for track in self._among(here)}
        for moves, then in zip(self.links, self.then, strict=True):
            for track, after in enumerate(then):
                own = reduce(or_, (parts.get(number, 0) for number in after), 0)
                if own:
                    found |= preceded(moves, own) << track * n
        return found & self.live if self.live else found

    def _among(self, here: int) -> Iterator[int]:
        n = 64 * self.width
        while here:
            track = lowest(here) // n
            yield track
            here = here >> (track + 1) * n << (track + 1) * n


def followed(moves: Moves, here: int) -> int:
    found = 0
    for distance, among in moves[0]:
        moved = here & among
        if moved:
            found |= moved << distance if distance >= 0 else moved >> -distance
    for source, target in moves[1]:
        if here & source:
            found |= target
    return found


def preceded(moves: Moves, here: int) -> int:
    found = 0
    for distance, among in moves[0]:
        found |= (here >> distance if distance >= 0 else here << -distance) & among
    for source, target in moves[1]:
        if here & target:
            found |= source
    return found


class Positions(NamedTuple):
    """An automaton as plain data. Sets are ints: bit p is position p."""

    n: int
    ranges: list[Ranges]
    """Characters of each position; none of those before the first."""
    first: int
    """Where a text begins: position 0, and one for each further expression."""
    ends: int
    """Positions behind which the text may end."""
    shifts: list[tuple[int, int]]
    """(d, set): p + d may follow p, for all p in the set."""
    jumps: list[Jump]
    starts: list[int]
    """First code points of the segments in which all are alike, ascending."""
    kinds: list[int]
    """Class of each segment; -1 where no position reads such a character."""
    chars: list[int]
    """By class: the positions that read it."""
    goal: SideBySide = ANY_END
    tracks: Tracks | None = None
    """Then shifts and jumps are theirs."""

    @property
    def n_ops(self) -> int:
        """Shifts and jumps of a step."""
        moves = [(self.shifts, self.jumps)] if self.tracks is None else self.tracks.links
        return sum(len(shifts) + len(jumps) for shifts, jumps in moves)

    @property
    def n_words(self) -> int:
        return (self.n + 63) // 64

    @property
    def n_wide(self) -> int:
        """Classes that aren't of ASCII alone."""
        edges = zip([*self.starts[1:], LAST + 1], self.kinds, strict=True)
        return len({kind for end, kind in edges if kind >= 0 and end > 0x80})

    @property
    def cost(self) -> int:
        """Words read and written for a step."""
        if self.tracks is not None:
            return 3 * self.n_words + self.tracks.cost
        jumps = n_jump_words(self.jumps)
        return self.n_words * (2 * len(self.shifts) + 3) + jumps + sum(map(_n_words, self.goal.done))

    def follow(self, here: int) -> int:
        """What may come behind any of the positions."""
        return followed((self.shifts, self.jumps), here) if self.tracks is None else self.tracks.follow(here)

    def character(self, kind: int, low: int, high: int) -> int:
        """A code point of the class in [low, high]; -1 if there is none."""
        segments = zip(self.starts, [*self.starts[1:], LAST + 1], self.kinds, strict=True)
        return next((max(a, low) for a, b, k in segments if k == kind and a <= high and b > low), -1)

    def sample(self, kind: int) -> bytes:
        """A character of the class, the likeliest one."""
        segments = zip(self.starts, [*self.starts[1:], LAST + 1], self.kinds, strict=True)
        return chr(sample(tuple((a, b - 1) for a, b, k in segments if k == kind))).encode()

    def before(self, here: int) -> int:
        """Behind what any of the positions may come."""
        return preceded((self.shifts, self.jumps), here) if self.tracks is None else self.tracks.before(here)


def _n_words(positions: int) -> int:
    """Words from the first that isn't empty to the last."""
    return (positions.bit_length() + 63) // 64 - lowest(positions) // 64


def n_jump_words(jumps: list[Jump]) -> int:
    return sum(_n_words(source) + _n_words(target) for source, target in jumps)


def lowest(positions: int) -> int:
    """The first position of a set that isn't empty."""
    return (positions & -positions).bit_length() - 1


def members(positions: int) -> Iterator[int]:
    while positions:
        yield lowest(positions)
        positions &= positions - 1


def positions_of(*roots: Node) -> Positions | None:
    """Of any of the expressions, side by side.

    None where they are too many, a step costs too much, or an expression isn't made of characters alone.
    """
    if sum(1 + size_of(root) for root in roots) > MAX_POSITIONS:
        return None
    built = Builder()
    first = ends = 0
    for root in roots:
        before, last = built.whole(root)
        first, ends = first | before, ends | last
    shifts, jumps = spelled(built.jumps())
    table = segments_of(built.ranges)
    found = Positions(len(built.ranges), built.ranges, first, ends, shifts, jumps, *table)
    is_cheap = found.cost <= MAX_COST and found.n_words * found.n_wide <= MAX_READ
    return found if is_cheap and len(found.chars) <= MAX_CLASSES else None


def size_of(node: Node, *, marked: bool = False) -> int:
    """Positions of an expression: a number that grows little further where they are too many.

    `marked`: marks are none (tracked.py); else there may not be any.
    """
    return _size(node, {}, 0 if marked else MAX_POSITIONS)


def _size(node: Node, known: dict[int, int], rest: int) -> int:
    """`rest`: what a mark counts for."""
    if node.id in known:
        return known[node.id]
    start, total = node, 0
    while node.kind is Kind.SEQUENCE and total < COUNTED_UP_TO:
        total += _size(node.first, known, rest)
        node = node.rest
    if node.kind is Kind.CLASS:
        total += 1
    elif node.kind is Kind.EITHER:
        total += sum(_size(option, known, rest) for option in node.options)
    elif node.kind is Kind.LOOP:
        total += _size(node.first, known, rest) * _rounds(node)
    elif node.kind is Kind.REST:
        total += rest
    elif node.kind is Kind.RULE:
        total = COUNTED_UP_TO
    known[start.id] = found = min(total, COUNTED_UP_TO)
    return found


def _rounds(loop: Node) -> int:
    """How often the body of a loop is written out."""
    return max(loop.low, 1) if loop.high == INFINITE else loop.high


Part = tuple[bool, int, int]
"""(it may be left out, positions with which it begins, positions with which it ends)"""


class Builder:
    def __init__(self) -> None:
        self.ranges: list[Ranges] = []
        self._sources: dict[int, int] = {}
        """By target."""

    def link(self, source: int, target: int) -> None:
        if source and target:
            self._sources[target] = self._sources.get(target, 0) | source

    def jumps(self) -> list[Jump]:
        return joined(self._sources)

    def whole(self, root: Node) -> tuple[int, int]:
        """(the position before the first, positions at whose end the expression ends)"""
        self.ranges.append(())
        before = 1 << (len(self.ranges) - 1)
        nullable, begins, ends = self.part(root)
        self.link(before, begins)
        return before, ends | (before if nullable else 0)

    def part(self, node: Node) -> Part:
        if node.kind is Kind.CLASS:
            charge(N_BYTES, 2)
            self.ranges.append(node.ranges)
            here = 1 << (len(self.ranges) - 1)
            return False, here, here
        if node.kind is Kind.SEQUENCE:
            return self._sequence(node)
        if node.kind is Kind.LOOP:
            return self._loop(node)
        found: Part = (node.kind is Kind.EMPTY, 0, 0)
        for option in node.options:
            nullable, first, last = self.part(option)
            found = found[0] or nullable, found[1] | first, found[2] | last
        return found

    def _sequence(self, node: Node) -> Part:
        all_nullable, first, last = True, 0, 0
        rest: Node | None = node
        while rest is not None:
            part, rest = (rest.first, rest.rest) if rest.kind is Kind.SEQUENCE else (rest, None)
            nullable, begins, ends = self.part(part)
            self.link(last, begins)
            first |= begins if all_nullable else 0
            last = ends | (last if nullable else 0)
            all_nullable = all_nullable and nullable
        return all_nullable, first, last

    def _loop(self, node: Node) -> Part:
        nullable, first, last, before = node.low == 0, 0, 0, 0
        for done in range(1, _rounds(node) + 1):
            # a round that is left out makes fewer of them: where there is one, none is asked for
            body, begins, ends = self.part(node.first)
            nullable = nullable or body
            first = first or begins
            self.link(before, begins)
            before = ends
            if done >= node.low:
                last |= ends
        if node.high == INFINITE:
            self.link(before, begins)
        return nullable, first, last


def joined(sources: dict[int, int]) -> list[Jump]:
    """The sources by target, those of one source made one."""
    targets: dict[int, int] = {}
    for target, source in sources.items():
        targets[source] = targets.get(source, 0) | target
    return list(targets.items())


def spelled(jumps: list[Jump]) -> Moves:
    """The distances that many pairs of positions have in common as shifts; all others as jumps."""
    pairs = [_distances(jump) for jump in jumps]
    counts = Counter(distance for among in pairs if among for distance, _ in among)
    common = [d for d, n in counts.most_common(MAX_SHIFTS) if n >= OFTEN and abs(d) <= LONGEST_SHIFT]
    shifts = dict.fromkeys(common, 0)
    left = []
    for jump, among in zip(jumps, pairs, strict=True):
        if among and all(distance in shifts for distance, _ in among):
            for distance, position in among:
                shifts[distance] |= 1 << position
        else:
            left.append(jump)
    return [(distance, among) for distance, among in shifts.items() if among], left


def _distances(jump: Jump) -> list[tuple[int, int]] | None:
    """(distance, source) of each pair; None where they are many."""
    source, target = jump
    n = source.bit_count() * target.bit_count()
    if n > SMALL_JUMP:
        return None
    spend(1 + n // 8)
    return [(q - p, p) for p in members(source) for q in members(target)]


class Segments(NamedTuple):
    starts: list[int]
    kinds: list[int]
    chars: list[int]


def segments_of(ranges: list[Ranges]) -> Segments:
    """The code points sorted by the positions that read them."""
    reading: dict[Ranges, int] = {}
    for position, among in enumerate(ranges):
        reading[among] = reading.get(among, 0) | 1 << position
    changes: dict[int, int] = {}
    for among, positions in reading.items():
        spend(1 + len(among) // 4)
        for low, high in among:
            changes[low] = changes.get(low, 0) ^ positions
            changes[high + 1] = changes.get(high + 1, 0) ^ positions
    found = Segments([0], [-1], [])
    numbers: dict[int, int] = {0: -1}
    here = 0
    for at in sorted(changes):
        here ^= changes[at]
        if here not in numbers:
            numbers[here] = len(found.chars)
            found.chars.append(here)
        if at == 0:
            found.kinds[0] = numbers[here]
        else:
            found.starts.append(at)
            found.kinds.append(numbers[here])
    return found


def free_positions(positions: Positions) -> int:
    """The positions each of which reads any text for ever."""
    reading = [p for p in range(positions.n) if positions.ranges[p] == ANY]
    return sum(1 << p for p in reading if positions.follow(1 << p) >> p & 1)


def universal_positions(positions: Positions) -> int:
    """The positions behind each of which every text is accepted."""
    return positions.before(free_positions(positions) & positions.ends) & positions.ends
