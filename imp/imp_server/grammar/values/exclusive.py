"""oneOf as a sum: branches that can't hold together need no counting.

Exactly one of some formulas holds where exactly one of one group does, if formulas of different groups have no value in
common. Groups of one are plain alternatives, so a tagged union costs what its branches cost.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from itertools import combinations

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.giving_up import dropped
from imp_server.grammar.values.extents import EVERYTHING, Extent, Extents
from imp_server.grammar.values.formula import AND, NOT, OR, Formula, Formulas

MAX_PAIRS = 50_000
"""Pairs of branches looked at where no tag tells them apart."""
N_UNITS_PAIR = 8
N_BYTES = 300
"""Memory of what a formula was settled to."""


class Exclusive:
    """Owner of the settled formulas of one space."""

    def __init__(self, formulas: Formulas) -> None:
        self._fs = formulas
        self._extents = Extents(formulas)
        self._settled: dict[tuple[Formula, Extent], Formula] = {}

    def given_up(self) -> Iterator[None]:
        yield from self._extents.given_up()
        yield from dropped(self._settled)

    def settled(self, f: Formula, around: Extent = EVERYTHING) -> Formula:
        """A formula with the same values among those `around`, and fewer branches to count."""
        if not f.args:
            return f
        key = f, around
        found = self._settled.get(key)
        if found is None:
            charge(N_BYTES, 1 + len(around.objects) // 8)  # whose hash is made anew
            found = self._settled[key] = self._made(f, around)
        return found

    def _made(self, f: Formula, around: Extent) -> Formula:
        fs = self._fs
        if f.op == AND:
            if f.is_counting:
                for a in f.args:
                    around = around.both(self._extents.of(a))
            return fs.conj(self.settled(a, around) for a in f.args)
        args = [self.settled(a, around) for a in f.args]
        if f.op == OR:
            return fs.disj(args)
        if f.op == NOT:
            return fs.neg(args[0])
        extents = [around.both(self._extents.of(a)) for a in args]
        return fs.disj(fs.one(args[i] for i in group) for group in _groups(self._overlaps(extents), len(args)))

    def _overlaps(self, extents: Sequence[Extent]) -> list[tuple[int, int]]:
        """The pairs that may have a value in common."""
        pairs = self._pairs(extents)
        if pairs is None:
            return [(0, i) for i in range(1, len(extents))]
        spend(1 + N_UNITS_PAIR * len(pairs))
        return [(i, j) for i, j in pairs if not self._extents.are_apart(extents[i], extents[j])]

    def _pairs(self, extents: Sequence[Extent]) -> Collection[tuple[int, int]] | None:
        """Those that no tag tells apart; None if they are too many."""
        best = len(extents) * (len(extents) - 1) // 2
        chosen: set[tuple[int, int]] | None = None
        tags = [self._extents.tags(extent) for extent in extents]
        for path in tags[0]:
            if all(path in found for found in tags):
                pairs = _sharing([found[path] for found in tags], best)
                if pairs is not None:
                    best, chosen = len(pairs), pairs
        if chosen is not None:
            return chosen
        return list(combinations(range(len(extents)), 2)) if best <= MAX_PAIRS else None


def _sharing(constants: Sequence[frozenset[Hashable]], most: int) -> set[tuple[int, int]] | None:
    """The pairs that share a constant; None if there are more than `most`."""
    owners: dict[Hashable, list[int]] = {}
    pairs: set[tuple[int, int]] = set()
    for i, values in enumerate(constants):
        for value in values:
            others = owners.setdefault(value, [])
            pairs.update((other, i) for other in others)
            if len(pairs) > most:
                return None
            others.append(i)
    return pairs


def _groups(pairs: Iterable[tuple[int, int]], n: int) -> Iterable[list[int]]:
    """Numbers below n that pairs connect, in order."""
    leader = list(range(n))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = i = leader[leader[i]]
        return i

    for i, j in pairs:
        leader[find(j)] = find(i)
    groups: dict[int, list[int]] = {}
    for i in range(n):
        groups.setdefault(find(i), []).append(i)
    return groups.values()
