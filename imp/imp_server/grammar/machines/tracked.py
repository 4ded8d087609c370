"""A pattern with lookarounds in it as sets of positions, in tracks: one for each thing that the text so far may owe.

What lookbehinds have read and what lookaheads are waiting for is told by the text and by where lookarounds stood: their
bodies are sets of positions, too, and of few patterns there are more than some of them. A *track* is one of them, and
the characters behind which it is met; in each the positions of the pattern stand side by side. So the pattern is an
automaton of positions (glushkov.py) again, whose step costs a number of words that is known beforehand. Positions that
lead to no end are left out of it. The twin is the automaton of languages/regex/lookarounds.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.codepoints import ANY, Ranges, common
from imp_server.grammar.machines.glushkov import (
    MAX_CLASSES,
    MAX_COST,
    MAX_POSITIONS,
    MAX_READ,
    N_BYTES,
    Builder,
    Jump,
    Positions,
    Segments,
    Tracks,
    joined,
    members,
    segments_of,
    size_of,
    spelled,
    universal_positions,
)
from imp_server.grammar.machines.machine import DEAD
from imp_server.grammar.machines.nodes import INFINITE, Kind, Node
from imp_server.grammar.machines.position_machine import PositionMachine, is_small

MAX_WORDS = 64
"""Of a set, all tracks together."""
MAX_WAYS = 16
"""Sets of lookarounds that stand between two characters."""
MAX_OWED = 64
"""Things that a text may owe."""


class Mark(NamedTuple):
    body: int
    """Number of its body; those inside a body come before it."""
    ahead: bool
    wanted: bool


Marks = frozenset[int]
Spots = dict[Marks, int]
"""Positions, by the marks that are passed on the way."""
NO_MARKS: Marks = frozenset()


class _Part(NamedTuple):
    empty: frozenset[Marks]
    """The marks that are passed where nothing is read."""
    first: Spots
    last: Spots


class _TooMany(Exception):
    """More than sets of positions are for."""


def mark_of(node: Node) -> int:
    """The mark that the expression is, which takes no text; -1 if it is none."""
    return node.ranges[0][0] if node.kind is Kind.REST else -1


class _MarkedBuilder:
    """Positions of an expression with marks in it, and what may follow each, by the marks between."""

    def __init__(self) -> None:
        self.ranges: list[Ranges] = [()]
        self.sources: dict[Marks, dict[int, int]] = {}
        """By target."""

    def link(self, last: Spots, first: Spots) -> None:
        for behind, sources in last.items():
            for before, targets in first.items():
                marks = behind | before
                if marks not in self.sources and len(self.sources) == MAX_WAYS:
                    raise _TooMany
                known = self.sources.setdefault(marks, {})
                known[targets] = known.get(targets, 0) | sources

    def jumps(self) -> Iterator[tuple[Marks, list[Jump]]]:
        for marks, sources in self.sources.items():
            yield marks, joined(sources)

    def whole(self, root: Node) -> Spots:
        """What the expression ends with; position 0 stands before the first one."""
        part = self.part(root)
        self.link({NO_MARKS: 1}, part.first)
        return _united(part.last, dict.fromkeys(part.empty, 1))

    def part(self, node: Node) -> _Part:
        mark = mark_of(node)
        if mark >= 0:
            return _Part(frozenset([frozenset([mark])]), {}, {})
        if node.kind is Kind.CLASS:
            charge(N_BYTES, 2)
            self.ranges.append(node.ranges)
            here = {NO_MARKS: 1 << (len(self.ranges) - 1)}
            return _Part(frozenset(), here, here)
        if node.kind is Kind.SEQUENCE:
            return self._sequence(node)
        if node.kind is Kind.LOOP:
            return self._loop(node)
        found = _Part(frozenset([NO_MARKS] if node.kind is Kind.EMPTY else ()), {}, {})
        for option in map(self.part, node.options):
            first, last = _united(found.first, option.first), _united(found.last, option.last)
            found = _Part(found.empty | option.empty, first, last)
        return found

    def _sequence(self, node: Node) -> _Part:
        found = _Part(frozenset([NO_MARKS]), {}, {})
        rest: Node | None = node
        while rest is not None:
            here, rest = (rest.first, rest.rest) if rest.kind is Kind.SEQUENCE else (rest, None)
            part = self.part(here)
            self.link(found.last, part.first)
            first = _united(found.first, _passing(found.empty, part.first))
            last = _united(part.last, _passing(part.empty, found.last))
            empty = frozenset(a | b for a in found.empty for b in part.empty)
            if len(empty) > MAX_WAYS:
                raise _TooMany
            found = _Part(empty, first, last)
        return found

    def _loop(self, node: Node) -> _Part:
        first: Spots = {}
        last: Spots = {}
        before: Spots = {}
        may_be_empty = node.low == 0
        rounds = max(node.low, 1) if node.high == INFINITE else node.high
        for done in range(1, rounds + 1):
            body = self.part(node.first)
            if body.empty - {NO_MARKS}:
                raise _TooMany  # rounds that take no text, but marks
            may_be_empty |= bool(body.empty)
            first = first or body.first
            self.link(before, body.first)
            before = body.last
            if done >= node.low or body.empty:
                last = _united(last, body.last)
        if node.high == INFINITE:
            self.link(before, body.first)
        return _Part(frozenset([NO_MARKS] if may_be_empty else ()), first, last)


def _united(a: Spots, b: Spots) -> Spots:
    return {marks: a.get(marks, 0) | b.get(marks, 0) for marks in {**a, **b}}


def _passing(empty: frozenset[Marks], spots: Spots) -> Spots:
    found: Spots = {}
    for passed in empty:
        found = _united(found, {marks | passed: positions for marks, positions in spots.items()})
    return found


class _Body:
    """One lookaround's own positions."""

    def __init__(self, root: Node) -> None:
        built = Builder()
        self.first, ends = built.whole(root)
        self.ranges = built.ranges
        table = Positions(len(built.ranges), built.ranges, self.first, ends, *spelled(built.jumps()), [], [], [])
        self.ends, self.follow, self.universal = ends, table.follow, universal_positions(table)
        self.chars: list[int] = []
        """By class of characters."""


class Duty(NamedTuple):
    body: int
    wanted: bool
    here: int
    """Positions of the body that were read."""


class Owed(NamedTuple):
    """What is owed between two characters."""

    behind: tuple[int, ...]
    """By body: the positions of a lookbehind that were read."""
    duties: frozenset[Duty]


class _Owing:
    """Owner of what may be owed, and of how that goes on with each character."""

    def __init__(self, marks: Sequence[Mark], bodies: list[_Body], n_kinds: int) -> None:
        self._marks, self._bodies, self._n_kinds = marks, bodies, n_kinds
        behind = {mark.body for mark in marks if not mark.ahead}
        self.first = Owed(tuple(body.first if i in behind else 0 for i, body in enumerate(bodies)), frozenset())

    def crossed(self, owed: Owed, passed: Marks) -> Owed | None:
        """Past some marks; None if one of them isn't true."""
        duties = set(owed.duties)
        for mark in (self._marks[number] for number in passed):
            body = self._bodies[mark.body]
            if mark.ahead:
                duties.add(Duty(mark.body, mark.wanted, body.first))
            elif bool(owed.behind[mark.body] & body.ends) != mark.wanted:
                return None
        settled = self._settled(duties)
        return None if settled is None else Owed(owed.behind, settled)

    def read(self, owed: Owed, kind: int) -> Owed | None:
        """Behind a character; None if something owed can't be paid any more."""
        spend(1 + len(owed.duties))
        bodies = self._bodies
        behind = tuple(body.follow(here) & body.chars[kind] for body, here in zip(bodies, owed.behind))
        duties = {d._replace(here=bodies[d.body].follow(d.here) & bodies[d.body].chars[kind]) for d in owed.duties}
        settled = self._settled(duties)
        return None if settled is None else Owed(behind, settled)

    def is_paid(self, owed: Owed) -> bool:
        """Whether the text may end here."""
        return all(bool(d.here & self._bodies[d.body].ends) == d.wanted for d in owed.duties)

    def _settled(self, duties: set[Duty]) -> frozenset[Duty] | None:
        refused: dict[int, int] = {}
        wanted: set[Duty] = set()
        for duty in duties:
            is_met = bool(duty.here & self._bodies[duty.body].universal)
            if (not duty.wanted and is_met) or (duty.wanted and not duty.here):
                return None
            if duty.wanted and not is_met:
                wanted.add(duty)
            elif not duty.wanted and duty.here:
                refused[duty.body] = refused.get(duty.body, 0) | duty.here
        hardest = {d for d in wanted if not any(o.body == d.body and o.here & ~d.here == 0 and o != d for o in wanted)}
        return frozenset(hardest | {Duty(body, False, here) for body, here in refused.items()})


class _Track(NamedTuple):
    owed: int
    kinds: frozenset[int]
    """Classes of the character before."""


class _Web:
    """All that may be owed, and the tracks that it makes."""

    def __init__(self, owing: _Owing, ways: list[Marks], kinds: list[int]) -> None:
        """`kinds`: classes of characters that the pattern reads. Raises _TooMany."""
        self.owed = [owing.first]
        numbers = {owing.first: 0}
        after: dict[tuple[int, int], dict[int, list[int]]] = {}
        """(owed, way) -> what is owed then, by the class of the character that was read."""
        for at, owed in enumerate(self.owed):
            for way, marks in enumerate(ways):
                crossed = owing.crossed(owed, marks)
                for kind in kinds if crossed is not None else ():
                    then = owing.read(crossed, kind) if crossed is not None else None
                    if then is None:
                        continue
                    number = numbers.setdefault(then, len(self.owed))
                    if number == len(self.owed):
                        if number == MAX_OWED:
                            raise _TooMany
                        charge(N_BYTES, 2)
                        self.owed.append(then)
                    after.setdefault((at, way), {}).setdefault(number, []).append(kind)
        self.tracks = [_Track(0, frozenset()), *_tracks(after)]
        self.then = [[self._then(track, way, after) for track in self.tracks] for way in range(len(ways))]
        """By way and track: the tracks that may come next."""

    def _then(self, track: _Track, way: int, after: dict[tuple[int, int], dict[int, list[int]]]) -> list[int]:
        found = after.get((track.owed, way), {})
        return [i for i, t in enumerate(self.tracks) if i and not t.kinds.isdisjoint(found.get(t.owed, ()))]


def _tracks(after: dict[tuple[int, int], dict[int, list[int]]]) -> Iterator[_Track]:
    """What leads to the same from the same places is one track."""
    sources: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for source, found in after.items():
        for owed, kinds in found.items():
            spend(1 + len(kinds) // 8)
            for kind in kinds:
                sources.setdefault((owed, kind), set()).add(source)
    alike: dict[tuple[int, frozenset[tuple[int, int]]], list[int]] = {}
    for (owed, kind), places in sorted(sources.items()):
        alike.setdefault((owed, frozenset(places)), []).append(kind)
    for (owed, _), kinds in alike.items():
        yield _Track(owed, frozenset(kinds))


class TrackedMachine(PositionMachine):
    """Owner of the states met so far of a pattern in tracks."""

    def __init__(self, positions: Positions) -> None:
        super().__init__((), positions)


def tracked_machine(root: Node, marks: Sequence[Mark], roots: Sequence[Node]) -> PositionMachine | None:
    """The texts of `root`, in which characters of one byte (`mark_of`) stand for marks; `roots`: the bodies of these.

    None where sets are no way to read it: lookarounds in lookarounds, too many positions or ways, or few subsets.
    """
    if any(size_of(body) >= MAX_POSITIONS for body in roots):
        return None
    try:
        positions = _positions(root, marks, roots)
    except _TooMany:
        return None
    if positions is None:
        return None
    machine = TrackedMachine(positions)
    return None if machine.start == DEAD or is_small(machine) else machine


def _positions(root: Node, marks: Sequence[Mark], roots: Sequence[Node]) -> Positions | None:
    if size_of(root, marked=True) >= 64 * MAX_WORDS:
        return None
    built = _MarkedBuilder()
    ends = built.whole(root)
    n, bodies = len(built.ranges), [_Body(body) for body in roots]
    table = segments_of([*built.ranges, *(ranges for body in bodies for ranges in body.ranges)])
    if len(table.chars) > MAX_CLASSES:
        return None
    at = n
    for body in bodies:
        body.chars = [among >> at & (1 << len(body.ranges)) - 1 for among in table.chars]
        at += len(body.ranges)
    own = [among & (1 << n) - 1 for among in table.chars]
    links = list(built.jumps())
    owing = _Owing(marks, bodies, len(table.chars))
    web = _Web(owing, [passed for passed, _ in links], [kind for kind, among in enumerate(own) if among])
    width = (n + 63) // 64
    if width * len(web.tracks) > MAX_WORDS:
        return None
    moves = [spelled(jumps) for _, jumps in links]
    tracks = Tracks(width, len(web.tracks), moves, web.then, 0)
    found = _laid_out(built.ranges, table, own, tracks, web)
    found = found._replace(ends=_ends(ends, tracks, web, owing))
    live = _live(found)
    if not live & found.first:
        return None
    found = found._replace(
        chars=[among & live for among in found.chars],
        ranges=[ranges if live >> p & 1 else () for p, ranges in enumerate(found.ranges)],
        tracks=tracks._replace(live=live, is_single=not _is_ambiguous(links, own, n)),
        ends=found.ends & live,
    )
    is_cheap = found.cost <= MAX_COST and found.n_words * found.n_wide <= MAX_READ
    return found if is_cheap else None


def _laid_out(ranges: list[Ranges], table: Segments, own: list[int], tracks: Tracks, web: _Web) -> Positions:
    """The positions of all tracks; what ends, and what leads to an end, isn't known yet."""
    n_track, n = 64 * tracks.width, 64 * tracks.width * tracks.n
    laid: list[Ranges] = [()] * n
    chars = [0] * len(own)
    for number, track in enumerate(web.tracks):
        charge(N_BYTES * len(ranges), 2 + len(ranges) // 8)
        read = _ranges(table, track.kinds)
        known: dict[Ranges, Ranges] = {}
        for p, among in enumerate(ranges):
            if among not in known:
                known[among] = read and (read if among == ANY else common(among, read))
            laid[number * n_track + p] = known[among]
        for kind in track.kinds:
            chars[kind] |= own[kind] << number * n_track
    return Positions(n, laid, 1, 0, [], [], table.starts, table.kinds, chars, tracks=tracks)


def _ranges(table: Segments, kinds: frozenset[int]) -> Ranges:
    """The characters of some classes."""
    found: list[tuple[int, int]] = []
    for low, end, kind in zip(table.starts, [*table.starts[1:], 0x110000], table.kinds, strict=True):
        if kind not in kinds:
            continue
        if found and found[-1][1] == low - 1:
            found[-1] = found[-1][0], end - 1
        else:
            found.append((low, end - 1))
    return tuple(found)


def _ends(ends: Spots, tracks: Tracks, web: _Web, owing: _Owing) -> int:
    all_ = 0
    for number, track in enumerate(web.tracks):
        for passed, positions in ends.items():
            owed = owing.crossed(web.owed[track.owed], passed)
            if owed is not None and owing.is_paid(owed):
                all_ |= positions << number * 64 * tracks.width
    return all_


def _live(positions: Positions) -> int:
    """The positions from which an end can be reached."""
    # only what its track reads: a position that no character leads to is none
    read = positions.first
    for among in positions.chars:
        read |= among
    live = near = positions.ends & read
    while near:
        spend(1 + positions.n_ops * positions.n_words // 64)
        near = positions.before(near) & read & ~live
        live |= near
    return live


def _is_ambiguous(links: list[tuple[Marks, list[Jump]]], own: list[int], n: int) -> bool:
    """Whether some position may be followed by two that read the same character, or by one in two ways."""
    following = [0] * n
    for _, jumps in links:
        for source, target in jumps:
            spend(1 + source.bit_count() // 8)
            for p in members(source):
                if following[p] & target:
                    return True
                following[p] |= target
    return any((f & among) & ((f & among) - 1) for f in set(following) for among in own)
