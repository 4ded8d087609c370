"""What the values of a formula can be at most: types, listed constants, names that are there or can't be.

Two formulas whose extents are apart have no value in common. That is how the branches of a `oneOf` are told apart by a
tag, at any depth, or by the names that they demand and forbid.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import reduce
from typing import NamedTuple, cast

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.giving_up import dropped
from imp_server.grammar.values.formula import AND, NOT, ONE, OR, Formula, Formulas, Leaf
from imp_server.grammar.values.leaves import (
    ANY_TYPE,
    ARRAY,
    BOOLEAN,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    BoolIs,
    Items,
    Length,
    NumberLeaf,
    Props,
    Required,
    TextLeaf,
    TypeIs,
)

MAX_WAYS = 64
"""Kinds of objects told apart in one extent."""
MAX_COMPARED = 64
"""Pairs of kinds compared to tell two extents apart."""
N_BYTES = 200
"""Memory of what is known of a property's value."""
N_BYTES_WAY, N_BYTES_PART = 400, 16
"""Memory of one kind, and of each name and leaf in it."""
MAX_DEPTH = 6
"""Levels of objects in which a tag is looked for."""


class ListedConstants(NamedTuple):
    """Some constants, or all others."""

    values: frozenset[Hashable] = frozenset()
    is_rest: bool = True

    def both(self, other: ListedConstants) -> ListedConstants:
        if self.is_rest and other.is_rest:
            return ListedConstants(self.values | other.values)
        if self.is_rest:
            return other.both(self)
        return ListedConstants(self.values - other.values if other.is_rest else self.values & other.values, False)

    def either(self, other: ListedConstants) -> ListedConstants:
        if not self.is_rest and not other.is_rest:
            return ListedConstants(self.values | other.values, False)
        if not self.is_rest:
            return other.either(self)
        return ListedConstants(self.values & other.values if other.is_rest else self.values - other.values)

    @property
    def is_empty(self) -> bool:
        return not self.is_rest and not self.values


ANY = ListedConstants()
NONE = ListedConstants(is_rest=False)


class ExtentWay(NamedTuple):
    """One kind of object, or of array: leaves that all hold of it."""

    needed: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    props: tuple[Props, ...] = ()
    items: tuple[Items, ...] = ()
    low: int = 0
    """Fewest items."""

    def and_(self, other: ExtentWay) -> ExtentWay:
        if other is EVERY_WAY:
            return self
        if self is EVERY_WAY:
            return other
        n = sum(map(len, (*self[:4], *other[:4])))
        charge(N_BYTES_WAY + N_BYTES_PART * n, 2 + n // 4)
        return ExtentWay(
            self.needed | other.needed,
            self.absent | other.absent,
            tuple(dict.fromkeys((*self.props, *other.props))),
            tuple(dict.fromkeys((*self.items, *other.items))),
            max(self.low, other.low),
        )


Ways = tuple[ExtentWay, ...]
EVERY_WAY = ExtentWay()
FREE: Ways = (EVERY_WAY,)


class Extent(NamedTuple):
    """`constants`: booleans, numbers and strings by type."""

    types: int = ANY_TYPE
    booleans: ListedConstants = ANY
    numbers: ListedConstants = ANY
    strings: ListedConstants = ANY
    objects: Ways = FREE
    arrays: Ways = FREE

    def both(self, other: Extent) -> Extent:
        return Extent(
            self.types & other.types,
            self.booleans.both(other.booleans),
            self.numbers.both(other.numbers),
            self.strings.both(other.strings),
            _crossed(self.objects, other.objects),
            _crossed(self.arrays, other.arrays),
        ).trimmed()

    def either(self, other: Extent) -> Extent:
        return Extent(
            self.types | other.types,
            self.booleans.either(other.booleans),
            self.numbers.either(other.numbers),
            self.strings.either(other.strings),
            _joined(self.objects, other.objects),
            _joined(self.arrays, other.arrays),
        )

    def trimmed(self) -> Extent:
        """Without what its types rule out."""
        types = self.types
        for kind, listed in ((BOOLEAN, self.booleans), (NUMBER, self.numbers), (STRING, self.strings)):
            types &= ~kind if listed.is_empty else ANY_TYPE
        return Extent(
            types,
            self.booleans if types & BOOLEAN else NONE,
            self.numbers if types & NUMBER else NONE,
            self.strings if types & STRING else NONE,
            self.objects if types & OBJECT else (),
            self.arrays if types & ARRAY else (),
        )

    @property
    def constants(self) -> frozenset[Hashable] | None:
        """All values, if they are listed and no objects or arrays."""
        lists = ((1, self.booleans), (2, self.numbers), (3, self.strings))
        if self.types & (OBJECT | ARRAY) or any(listed.is_rest for _, listed in lists):
            return None
        null = {None} if self.types & NULL else set()
        return frozenset([*null, *((kind, value) for kind, listed in lists for value in listed.values)])


EVERYTHING = Extent()
NOTHING = EVERYTHING._replace(types=0).trimmed()


def _crossed(a: Ways, b: Ways) -> Ways:
    if len(a) * len(b) > MAX_WAYS:
        return max(a, b, key=len)
    return tuple(dict.fromkeys(x.and_(y) for x in a for y in b))


def _joined(a: Ways, b: Ways) -> Ways:
    both = tuple(dict.fromkeys((*a, *b)))
    return both if len(both) <= MAX_WAYS else FREE


class Extents:
    """Owner of the extents of one space's formulas."""

    def __init__(self, formulas: Formulas) -> None:
        self._fs = formulas
        self._known: dict[tuple[Formula, bool], Extent] = {}
        self._values: dict[tuple[tuple[Props, ...], str], Extent] = {}

    def given_up(self) -> Iterator[None]:
        return dropped(self._known, self._values)

    def of(self, f: Formula, sign: bool = True) -> Extent:
        """The extent of `f`, or of its negation."""
        key = f, sign
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._made(f, sign).trimmed()
        return found

    def _made(self, f: Formula, sign: bool) -> Extent:
        if f.leaf is not None:
            return _of_leaf(f.leaf) if sign else _of_no_leaf(f.leaf)
        if f.op == NOT:
            return self.of(f.args[0], not sign)
        if f.op == ONE:
            return reduce(Extent.either, (self.of(a) for a in f.args), NOTHING) if sign else EVERYTHING
        if f.op in (AND, OR):
            parts = [self.of(a, sign) for a in f.args]
            if (f.op == AND) == sign:
                return reduce(Extent.both, parts, EVERYTHING)
            return reduce(Extent.either, parts, NOTHING)
        return EVERYTHING if (f is self._fs.true) == sign else NOTHING

    def are_apart(self, a: Extent, b: Extent, depth: int = MAX_DEPTH) -> bool:
        """Whether no value is in both, as far as few kinds of objects, or arrays, have to be compared."""
        both = a.types & b.types
        spend()
        for kind, x, y in (
            (BOOLEAN, a.booleans, b.booleans),
            (NUMBER, a.numbers, b.numbers),
            (STRING, a.strings, b.strings),
        ):
            if both & kind and x.both(y).is_empty:
                both &= ~kind
        if both & ~(OBJECT | ARRAY) or not depth:
            return not both
        if len(a.objects) * len(b.objects) > MAX_COMPARED or len(a.arrays) * len(b.arrays) > MAX_COMPARED:
            return False
        if both & OBJECT and not all(self._objects_apart(x, y, depth - 1) for x in a.objects for y in b.objects):
            return False
        return not both & ARRAY or all(self._arrays_apart(x, y, depth - 1) for x in a.arrays for y in b.arrays)

    def _objects_apart(self, a: ExtentWay, b: ExtentWay, depth: int) -> bool:
        if not a.needed.isdisjoint(b.absent) or not b.needed.isdisjoint(a.absent):
            return True
        return any(
            self.are_apart(self.member(a.props, name), self.member(b.props, name), depth)
            for name in sorted(a.needed | b.needed)
        )

    def _arrays_apart(self, a: ExtentWay, b: ExtentWay, depth: int) -> bool:
        return any(
            self.are_apart(self._item(a.items, at), self._item(b.items, at), depth)
            for at in range(min(max(a.low, b.low), MAX_DEPTH))
        )

    def member(self, props: tuple[Props, ...], name: str) -> Extent:
        """Of the value of a property."""
        key = props, name
        found = self._values.get(key)
        if found is None:
            subs = (leaf.names.get(name) or (None if leaf.patterns else leaf.rest) for leaf in props)
            parts = [self.of(sub.raw) for sub in subs if sub is not None and sub.raw is not self._fs.true]
            charge(N_BYTES, 1 + 8 * len(parts))
            found = self._values[key] = reduce(Extent.both, parts[1:], parts[0]) if parts else EVERYTHING
        return found

    def _item(self, items: Iterable[Items], at: int) -> Extent:
        subs = (leaf.prefix[at] if at < len(leaf.prefix) else leaf.rest for leaf in items)
        return reduce(Extent.both, (self.of(sub.raw) for sub in subs), EVERYTHING)

    def tags(self, extent: Extent, depth: int = 3) -> dict[tuple[str, ...], frozenset[Hashable]]:
        """Paths of needed names -> the constants that may stand there."""
        constants = extent.constants
        if constants is not None:
            return {(): constants}
        if extent.types != OBJECT or len(extent.objects) != 1 or not depth:
            return {}
        way = extent.objects[0]
        found: dict[tuple[str, ...], frozenset[Hashable]] = {}
        for name in sorted(way.needed):
            below = self.tags(self.member(way.props, name), depth - 1)
            found.update({(name, *path): values for path, values in below.items()})
        return found


def _of_leaf(leaf: Leaf) -> Extent:
    if isinstance(leaf, TypeIs):
        return EVERYTHING._replace(types=leaf.mask)
    if isinstance(leaf, BoolIs):
        return EVERYTHING._replace(booleans=ListedConstants(frozenset([leaf.value]), False))
    if isinstance(leaf, TextLeaf | NumberLeaf) and leaf.kind in ("literals", "listed"):
        listed = ListedConstants(cast("frozenset[Hashable]", leaf.what), False)
        return EVERYTHING._replace(strings=listed) if leaf.about == STRING else EVERYTHING._replace(numbers=listed)
    if isinstance(leaf, Props):
        return EVERYTHING._replace(objects=(ExtentWay(props=(leaf,)),))
    if isinstance(leaf, Required):
        return EVERYTHING._replace(objects=(ExtentWay(needed=leaf.names),))
    if isinstance(leaf, Items):
        return EVERYTHING._replace(arrays=(ExtentWay(items=(leaf,)),))
    return EVERYTHING._replace(arrays=(ExtentWay(low=leaf.low),)) if isinstance(leaf, Length) else EVERYTHING


def _of_no_leaf(leaf: Leaf) -> Extent:
    """A leaf is false of values of its own type alone."""
    own = EVERYTHING._replace(types=leaf.about)
    if isinstance(leaf, TypeIs):
        return EVERYTHING._replace(types=ANY_TYPE & ~leaf.mask)
    if isinstance(leaf, BoolIs):
        return own._replace(booleans=ListedConstants(frozenset([not leaf.value]), False))
    if isinstance(leaf, TextLeaf | NumberLeaf) and leaf.kind in ("literals", "listed"):
        rest = ListedConstants(cast("frozenset[Hashable]", leaf.what))
        return own._replace(strings=rest) if leaf.about == STRING else own._replace(numbers=rest)
    if isinstance(leaf, Required) and len(leaf.names) == 1:
        return own._replace(objects=(ExtentWay(absent=leaf.names),))
    return own
