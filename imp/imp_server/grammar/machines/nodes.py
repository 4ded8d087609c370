"""Hash-consed expressions over code points: the common form of regexes, formats and GBNF rules.

A `Nodes` owns its expressions; equal ones are one object. Expressions without a match simplify to
`never` while they are built, so what is left always matches something.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import reduce
from typing import NamedTuple

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.codepoints import ANY, Ranges, normal, of_text, utf8_size

INFINITE = 1 << 60
"""A count without an upper bound. Sums and products of it stay above every real length."""


N_BYTES, N_BYTES_PART = 650, 16
"""Memory of an expression, and of each of its options or ranges."""
FEW_RANGES = 16
"""Ranges of characters that are looked through for the price of one unit."""


class Kind(IntEnum):
    EMPTY = 0
    NEVER = 1
    CLASS = 2
    """One code point out of `ranges`."""
    REST = 3
    """`low` continuation bytes that encode a value out of `ranges`."""
    SEQUENCE = 4
    """`first`, then `rest`."""
    EITHER = 5
    """One of `options`."""
    LOOP = 6
    """`first`, `low` to `high` times."""
    RULE = 7
    """The rule numbered `low`."""


class Node:
    """One expression. `nullable`: matches nothing at all, too. `size`: fewest bytes it matches."""

    first: Node
    """Of a sequence or a loop alone: a node that refers to itself would never be freed."""
    rest: Node
    """Of a sequence alone."""

    __slots__ = (
        "first", "high", "id", "kind", "low", "nullable", "options", "ranges", "reach", "rest", "size", "spread",
    )  # fmt: skip

    def __init__(self, number: int, kind: Kind, nullable: bool, size: int, spread: Spread) -> None:
        self.id = number
        self.kind = kind
        self.nullable = nullable
        self.size = size
        self.spread = spread
        self.reach = spread.low
        """Bound on the fewest code points still missing, wherever in the expression one stands."""
        self.low = 0
        self.high = 0
        self.ranges: Ranges = ()
        self.options: tuple[Node, ...] = ()

    def __lt__(self, other: Node) -> bool:
        return self.id < other.id


class Spread(NamedTuple):
    """The lengths of an expression's words in code points: fewest, most, and a bound on the gaps between."""

    low: int
    high: int
    gap: int
    """No two lengths that follow each other lie further apart."""

    def then(self, other: Spread) -> Spread:
        return Spread(
            min(self.low + other.low, INFINITE), min(self.high + other.high, INFINITE), max(self.gap, other.gap)
        )

    def either(self, other: Spread) -> Spread:
        apart = max(self.low, other.low) - min(self.high, other.high)
        return Spread(min(self.low, other.low), max(self.high, other.high), max(self.gap, other.gap, apart))

    def times(self, low: int, high: int) -> Spread:
        top = 0 if self.high == 0 else min(self.high * high, INFINITE)
        overlapping = low > 0 and (low == high or (low + 1) * self.low <= low * self.high + 1)
        return Spread(min(low * self.low, INFINITE), top, self.gap if overlapping else max(self.gap, self.low))


NOTHING = Spread(0, 0, 1)
ONE = Spread(1, 1, 1)


class Nodes:
    """Factory and owner of expressions."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Node] = {}
        self.all: list[Node] = []
        self.empty = self._make((Kind.EMPTY,), Kind.EMPTY, True, 0, NOTHING)
        self.never = self._make((Kind.NEVER,), Kind.NEVER, False, INFINITE, Spread(INFINITE, 0, 1))
        self.any = self.chars(ANY)
        self.anything = self.loop(self.any, 0, INFINITE)

    def _make(self, key: tuple[object, ...], kind: Kind, nullable: bool, size: int, spread: Spread) -> Node:
        charge(N_BYTES + N_BYTES_PART * len(key), 2 + len(key) // 8)
        node = Node(len(self.all), kind, nullable, min(size, INFINITE), spread)
        self.all.append(node)
        self._made[key] = node
        return node

    def chars(self, ranges: Ranges) -> Node:
        """One code point out of the set."""
        if not ranges:
            return self.never
        if len(ranges) > FEW_RANGES:
            spend(len(ranges) // FEW_RANGES)
        key = (Kind.CLASS, ranges)
        node = self._made.get(key)
        if node is None:
            charge(N_BYTES_PART * len(ranges), len(ranges) // FEW_RANGES)
            node = self._make(key, Kind.CLASS, False, utf8_size(ranges[0][0]), ONE)
            node.ranges = ranges
        return node

    def remainder(self, width: int, ranges: Ranges) -> Node:
        """The continuation bytes of a code point whose first bytes were read."""
        if not ranges:
            return self.never
        key = (Kind.REST, width, ranges)
        node = self._made.get(key)
        if node is None:
            node = self._make(key, Kind.REST, False, width, NOTHING)
            node.low, node.ranges = width, ranges
        return node

    def sequence(self, parts: Iterable[Node]) -> Node:
        """One after the other. Right-nested, whatever the nesting of the parts."""
        flat: list[Node] = []
        for part in parts:
            while part.kind is Kind.SEQUENCE:
                flat.append(part.first)
                part = part.rest
            if part.kind is Kind.NEVER:
                return self.never
            if part.kind is not Kind.EMPTY:
                flat.append(part)
        if not flat:
            return self.empty
        spend(1 + len(flat) // 4)
        node = flat.pop()
        for part in reversed(flat):
            node = self._pair(part, node)
        return node

    def _pair(self, first: Node, rest: Node) -> Node:
        key = (Kind.SEQUENCE, first.id, rest.id)
        node = self._made.get(key)
        if node is None:
            spread = first.spread.then(rest.spread)
            node = self._make(key, Kind.SEQUENCE, first.nullable and rest.nullable, first.size + rest.size, spread)
            node.reach = max(first.reach + rest.spread.low, rest.reach)
            node.first, node.rest = first, rest
        return node

    def either(self, options: Iterable[Node]) -> Node:
        """One of the options; single characters among them become one class."""
        found: dict[int, Node] = {}
        single: list[tuple[int, int]] = []
        for option in options:
            for part in option.options if option.kind is Kind.EITHER else (option,):
                if part.kind is Kind.CLASS:
                    single.extend(part.ranges)
                elif part.kind is not Kind.NEVER:
                    found[part.id] = part
        if single:
            chars = self.chars(normal(single))
            found[chars.id] = chars
        parts = tuple(sorted(found.values()))
        spend(1 + len(parts) // 4)
        if len(parts) < 2:
            return parts[0] if parts else self.never
        key = (Kind.EITHER, *(p.id for p in parts))
        node = self._made.get(key)
        if node is None:
            spread = reduce(Spread.either, sorted(p.spread for p in parts))
            nullable = any(p.nullable for p in parts)
            node = self._make(key, Kind.EITHER, nullable, min(p.size for p in parts), spread)
            node.options = parts
            node.reach = max(p.reach for p in parts)
        return node

    def loop(self, body: Node, low: int, high: int) -> Node:
        """`body`, `low` to `high` times (INFINITE = no upper bound)."""
        if high == 0 or body.kind is Kind.EMPTY:
            return self.empty
        if body.kind is Kind.NEVER:
            return self.empty if low == 0 else self.never
        if low == 1 and high == 1:
            return body
        if body.nullable:
            low = 0
        high = min(high, INFINITE)
        if body.kind is Kind.LOOP and ((body.low == low == 0) or (body.low == body.high and low == high)):
            return self.loop(body.first, body.low * low, body.high * high)
        key = (Kind.LOOP, body.id, low, high)
        node = self._made.get(key)
        if node is None:
            nullable = low == 0 or body.nullable
            node = self._make(key, Kind.LOOP, nullable, low * body.size, body.spread.times(low, high))
            node.first, node.low, node.high = body, low, high
            node.reach = min(body.reach + max(low - 1, 0) * body.spread.low, INFINITE)
        return node

    def optional(self, body: Node) -> Node:
        return self.loop(body, 0, 1)

    def rule(self, number: int, nullable: bool, size: int, spread: Spread) -> Node:
        """A reference to a rule whose properties the caller has found."""
        key = (Kind.RULE, number)
        node = self._made.get(key)
        if node is None:
            node = self._make(key, Kind.RULE, nullable, size, spread)
            node.low = number
        return node

    def text(self, text: str) -> Node:
        """The characters of `text`, in order."""
        return self.sequence([self.chars(of_text(c)) for c in text])

    def texts(self, texts: Sequence[str]) -> Node:
        return self.either([self.text(t) for t in texts])
