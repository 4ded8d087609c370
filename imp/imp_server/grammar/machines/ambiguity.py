"""How many items a state of an expression's automaton can hold at once: the bound on the work of one step.

Items multiply where the same text can be read in several ways: after a part of variable length its successor may
have been entered at many times, and a counted loop then holds many counts at once.
"""

from __future__ import annotations

from typing import NamedTuple

from imp_server.core.turns import spend
from imp_server.grammar.machines.nodes import INFINITE, Kind, Node

MAX_ITEMS = 2_000
"""Beyond one for each position in the expression, which plain text never reaches."""

MAX_COPIES = 4_000_000
"""Items copied while optional parts in a row are skipped: quadratic in their number."""


class Load(NamedTuple):
    once: int
    """Items alive if the part was entered at one time only."""
    often: int
    """Items alive if it was entered at every time."""
    front: int
    """Largest maximum of a counted loop inside whose minimum is reached: nested ones form a Pareto front."""


_ONE = Load(1, 1, 1)


def excessive(root: Node) -> bool:
    """Whether a step of the automaton of `root` could cost too much."""
    counter = _Counter()
    first = counter.positions(root)
    return load(root).once > MAX_ITEMS + first or counter.copies > MAX_COPIES


class _Counter:
    """Counts positions of an expression, and copies of items made by skipping nullable parts."""

    def __init__(self) -> None:
        self.copies = 0
        self._positions: dict[int, int] = {}
        self._firsts: dict[int, int] = {}

    def positions(self, node: Node) -> int:
        """Characters in the expression, however often a loop repeats them."""
        known = self._positions.get(node.id)
        if known is not None:
            return known
        spend()
        total = 0
        start = node
        while node.kind is Kind.SEQUENCE:
            total += self.positions(node.first)
            node = node.rest
        if node.kind is Kind.EITHER:
            total += sum(self.positions(option) for option in node.options)
        elif node.kind is Kind.LOOP:
            total += self.positions(node.first)
        else:
            total += 1
        self._positions[start.id] = total
        self.firsts(start)
        return total

    def firsts(self, node: Node) -> int:
        """Items with which the expression can begin."""
        known = self._firsts.get(node.id)
        if known is not None:
            return known
        if node.kind is Kind.SEQUENCE:
            spine = []
            while node.kind is Kind.SEQUENCE:
                spine.append(node)
                node = node.rest
            found = self.firsts(node)
            for pair in reversed(spine):
                found = self.firsts(pair.first) + (found if pair.first.nullable else 0)
                self.copies += found
                self._firsts[pair.id] = found
            return found
        if node.kind is Kind.EITHER:
            found = sum(self.firsts(option) for option in node.options)
        elif node.kind is Kind.LOOP:
            found = self.firsts(node.first)
        else:
            found = 1
        self._firsts[node.id] = found
        return found


def load(node: Node, known: dict[int, Load] | None = None) -> Load:
    """Upper bounds for `node`; exact for patterns without counted ambiguity."""
    memo = {} if known is None else known
    found = memo.get(node.id)
    if found is None:
        spend()
        found = memo[node.id] = _load(node, memo)
    return found


def _load(node: Node, memo: dict[int, Load]) -> Load:
    if node.kind is Kind.EITHER:
        parts = [load(option, memo) for option in node.options]
        return Load(sum(p.once for p in parts), sum(p.often for p in parts), max(p.front for p in parts))
    if node.kind is Kind.SEQUENCE:
        return _sequence(node, memo)
    if node.kind is Kind.LOOP:
        body = load(node.first, memo)
        rounds = node.low + 1
        if node.high != INFINITE:
            rounds *= max(1, min(body.front, node.high))
        fixed = node.first.spread.low == node.first.spread.high
        front = body.front if node.high == INFINITE else max(body.front, node.high)
        return Load(body.once if fixed else body.often * rounds, body.often * rounds, front)
    return _ONE


def _sequence(node: Node, memo: dict[int, Load]) -> Load:
    """From the right, so that long patterns need no deep recursion."""
    spine: list[Node] = []
    while node.kind is Kind.SEQUENCE:
        spine.append(node.first)
        node = node.rest
    whole = load(node, memo)
    for part in reversed(spine):
        first = load(part, memo)
        fixed = part.spread.low == part.spread.high
        once = max(first.once, whole.once) if fixed else first.once + whole.often
        whole = Load(once, first.often + whole.often, max(first.front, whole.front))
    return whole
