"""Boolean combinations of many ranges of numbers, as a union of disjoint ranges: no product is explored.

All bounds cut the number line into pieces: points, and what lies between two of them. A formula over ranges is the same
all over a piece, so it is a set of pieces, an integer with one bit for each. Steps (integer, multipleOf) must not be
negated: then the formula is the union, over sets of steps that hold, of the pieces it has if no other step does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import combinations
from typing import Any, cast

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.combine import union
from imp_server.grammar.machines.machine import Machine
from imp_server.grammar.values.formula import AND, FALSE_OP, NOT, ONE, OR, TRUE_OP, Formula
from imp_server.grammar.values.leaves import NumberLeaf
from imp_server.grammar.values.text_machines import number_leaf_machine, typed_range

MAX_STEPS = 3
"""Different steps in one formula; their sets are gone through."""
MAX_RANGES = 2048
"""Leaves of one formula; each disjoint range is a part that every first digit asks."""
N_BYTES = 200
"""Memory of a set of pieces, but for its bits."""

Span = tuple[tuple[Decimal, bool] | None, tuple[Decimal, bool] | None]
"""What a range leaf holds: bounds, each with whether it is excluded itself."""


def ranges_machine(f: Formula, *, point: bool) -> Machine | None:
    """The plain decimals that satisfy `f`, a formula over numbers; None where it isn't of this kind.

    `point`: whether they may be written with a fraction.
    """
    leaves = {leaf for leaf in f.leaves() if isinstance(leaf, NumberLeaf)}
    steps = sorted((leaf for leaf in leaves if leaf.kind not in ("range", "listed")), key=lambda leaf: str(leaf.what))
    if len(leaves) > MAX_RANGES or len(steps) > MAX_STEPS or (steps and not _Steps().may_hold_more(f, True)):
        return None
    pieces = _Pieces(leaves)
    found: dict[frozenset[NumberLeaf], int] = {}
    machines: list[Machine] = []
    for n in range(len(steps) + 1):
        for chosen in combinations(steps, n):
            holding = frozenset(chosen)
            mask = pieces.of(f, holding)
            # what fewer steps suffice for is there already
            new = mask & ~_joined(m for fewer, m in found.items() if fewer < holding)
            found[holding] = mask
            wanted = [(leaf.kind, leaf.what) for leaf in chosen]
            machines += [_machine(wanted, span, point) for span in pieces.spans(new)]
    return union(machines)


def _machine(steps: Sequence[tuple[str, Any]], span: Span, point: bool) -> Machine:
    if point and not steps:
        return number_leaf_machine("range", span)
    return typed_range(steps, span, point=point)


def _joined(masks: Iterable[int]) -> int:
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


class _Steps:
    """Formulas, and their negations, looked at once each: parts may be shared again and again."""

    def __init__(self) -> None:
        self._known: dict[tuple[Formula, bool], bool] = {}

    def may_hold_more(self, f: Formula, sign: bool) -> bool:
        """Whether more steps that hold never make it false."""
        if isinstance(f.leaf, NumberLeaf):
            return sign or f.leaf.kind in ("range", "listed")
        found = self._known.get((f, sign))
        if found is None:
            spend()
            signs = (True, False) if f.op == ONE else (sign != (f.op == NOT),)
            found = self._known[f, sign] = all(self.may_hold_more(a, own) for a in f.args for own in signs)
        return found


class _Pieces:
    """The pieces of the number line: 2i lies below point i and above the one before, 2i + 1 is the point."""

    def __init__(self, leaves: Iterable[NumberLeaf]) -> None:
        values = {value for leaf in leaves for value in _values(leaf)}
        self._points = sorted(values)
        self._all = (1 << (2 * len(self._points) + 1)) - 1
        self._known: dict[tuple[Formula, frozenset[NumberLeaf]], int] = {}

    def of(self, f: Formula, holding: frozenset[NumberLeaf]) -> int:
        """The pieces on which `f` is true if just these steps hold."""
        if f.leaf is not None:
            return self._of_leaf(cast(NumberLeaf, f.leaf), holding)
        found = self._known.get((f, holding))
        if found is None:
            charge(N_BYTES + len(self._points) // 4, 1 + len(f.args) // 4)
            found = self._known[f, holding] = self._combined(f, holding)
        return found

    def _combined(self, f: Formula, holding: frozenset[NumberLeaf]) -> int:
        if f.op in (TRUE_OP, FALSE_OP):
            return self._all if f.op == TRUE_OP else 0
        parts = [self.of(a, holding) for a in f.args]
        if f.op == NOT:
            return self._all & ~parts[0]
        if f.op == OR:
            return _joined(parts)
        if f.op == AND:
            return self._all & ~_joined(self._all & ~part for part in parts)
        once = twice = 0
        for part in parts:
            twice |= once & part
            once |= part
        return once & ~twice

    def _of_leaf(self, leaf: NumberLeaf, holding: frozenset[NumberLeaf]) -> int:
        what: Any = leaf.what
        if leaf.kind == "listed":
            return _joined(1 << (2 * self._at(value) + 1) for value in what)
        if leaf.kind != "range":
            return self._all if leaf in holding else 0
        low, high = what
        first = 0 if low is None else 2 * self._at(low[0]) + 1 + bool(low[1])
        behind = 2 * len(self._points) + 1 if high is None else 2 * self._at(high[0]) + 2 - bool(high[1])
        return (1 << behind) - (1 << first) if first < behind else 0

    def _at(self, value: Decimal) -> int:
        return bisect_left(self._points, value)

    def spans(self, mask: int) -> Iterator[Span]:
        """The longest ranges made of these pieces, in order."""
        at = 0
        while mask:
            skipped = (mask & -mask).bit_length() - 1
            mask >>= skipped
            size = (~mask & (mask + 1)).bit_length() - 1
            mask >>= size
            first, last = at + skipped, at + skipped + size - 1
            at = last + 1
            low = (self._points[(first - 1) // 2], first % 2 == 0) if first else None
            high = (self._points[last // 2], last % 2 == 0) if last < 2 * len(self._points) else None
            yield low, high


def _values(leaf: NumberLeaf) -> Iterator[Decimal]:
    what: Any = leaf.what
    if leaf.kind == "listed":
        yield from what
    elif leaf.kind == "range":
        yield from (bound[0] for bound in what if bound is not None)
