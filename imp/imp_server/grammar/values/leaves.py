"""The leaves of formulas: one question each about a value of one type. Interned by `Leaves`; compared by identity."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from imp_server.core.turns import charge
from imp_server.grammar.machines.giving_up import emptied
from imp_server.grammar.values.formula import Leaf
from imp_server.grammar.values.subschema import Sub

NULL, BOOLEAN, NUMBER, STRING, OBJECT, ARRAY = 1, 2, 4, 8, 16, 32
ANY_TYPE = 63


@dataclass(eq=False, slots=True)
class TypeIs(Leaf):
    about = ANY_TYPE
    mask: int

    @property
    def types(self) -> int | None:
        return self.mask


@dataclass(eq=False, slots=True)
class BoolIs(Leaf):
    about = BOOLEAN
    value: bool


@dataclass(eq=False, slots=True)
class TextLeaf(Leaf):
    """A string whose decoded text a machine accepts. kind: pattern | format | definition | length | literals."""

    about = STRING
    kind: str
    what: Hashable


@dataclass(eq=False, slots=True)
class NumberLeaf(Leaf):
    """kind: integer | range | multiple | listed (any of these numbers)."""

    about = NUMBER
    kind: str
    what: Hashable


@dataclass(eq=False, slots=True)
class ObjectLeaf(Leaf):
    about = OBJECT


@dataclass(eq=False, slots=True)
class Props(ObjectLeaf):
    """Each property obeys the schemas of its name and of the patterns it matches, or `rest` if there are none."""

    names: dict[str, Sub]
    patterns: tuple[tuple[str, Sub], ...]
    rest: Sub
    ordered: bool = False
    """The names come in their order, undeclared ones after them. A rule for whoever writes, not about the value."""


@dataclass(eq=False, slots=True)
class Required(ObjectLeaf):
    """All of these (still missing) names appear."""

    names: frozenset[str]


@dataclass(eq=False, slots=True)
class Count(ObjectLeaf):
    """At least `low` and at most `high` (None: any number of) more properties."""

    low: int
    high: int | None


@dataclass(eq=False, slots=True)
class Names(ObjectLeaf):
    """Every property name, as a string, obeys `sub`."""

    sub: Sub


@dataclass(eq=False, slots=True)
class ArrayLeaf(Leaf):
    about = ARRAY


@dataclass(eq=False, slots=True)
class Items(ArrayLeaf):
    """The next items obey `prefix` in order, the items after those `rest`."""

    prefix: tuple[Sub, ...]
    rest: Sub


@dataclass(eq=False, slots=True)
class Length(ArrayLeaf):
    low: int
    high: int | None


@dataclass(eq=False, slots=True)
class Contains(ArrayLeaf):
    """At least `low`, at most `high` more items obey `sub`."""

    sub: Sub
    low: int
    high: int | None


@dataclass(eq=False, slots=True)
class Unique(ArrayLeaf):
    """No further item equals one of `seen` (canonical values, values.py) or another one."""

    seen: frozenset[Any]


@dataclass(eq=False, slots=True)
class Watched(Leaf):
    """Whether the member or item that is being read obeys its watch number `index` (frames/goals.py)."""

    about = OBJECT | ARRAY
    is_watch = True
    index: int


AnyLeaf = TypeVar("AnyLeaf", bound=Leaf)


N_BYTES, N_BYTES_NAME, N_BYTES_MEMBER = 350, 250, 100
"""Memory of a leaf, of each of its properties, and of each member of what it holds."""


def _n_bytes(field: Hashable) -> int:
    return N_BYTES_MEMBER * len(field) if isinstance(field, frozenset | tuple | str) else 0


class Leaves:
    """Owner of the interned leaves of one space."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Any] = {}

    def given_up(self) -> Iterator[None]:
        return emptied(self._made)

    def get(self, kind: type[AnyLeaf], *fields: Any) -> AnyLeaf:
        key = (kind, *fields)
        found: AnyLeaf | None = self._made.get(key)
        if found is None:
            charge(N_BYTES + sum(_n_bytes(field) for field in fields), 2)
            found = self._made[key] = kind(*fields)
        return found

    def props(
        self, names: dict[str, Sub], patterns: tuple[tuple[str, Sub], ...], rest: Sub, ordered: bool = False
    ) -> Props:
        listed = list(names.items()) if ordered else sorted(names.items(), key=lambda i: i[0])
        key = (Props, tuple(listed), patterns, rest, ordered)
        found: Props | None = self._made.get(key)
        if found is None:
            charge(N_BYTES + N_BYTES_NAME * len(names), 2 + len(names) // 8)
            found = self._made[key] = Props(names, patterns, rest, ordered)
        return found
