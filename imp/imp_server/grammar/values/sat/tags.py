"""Choices that depend on the value of one property, decided by going through its values.

An `if` about a tag, a union in which a tag occurs, a chain of them: as soon as the tag is known, most leaves that speak
of it are true or false, and what is left is settled without a choice. So a chain of n costs n values, not 2^n truths.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, NamedTuple, cast

from imp_server.core.turns import spend
from imp_server.grammar.values.algebra import TYPE_OF_KIND, Algebra
from imp_server.grammar.values.formula import Formula, Leaf, Mapped
from imp_server.grammar.values.json_values import Value, spelled
from imp_server.grammar.values.leaves import (
    ARRAY,
    BOOLEAN,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    BoolIs,
    Count,
    Names,
    NumberLeaf,
    Props,
    Required,
    TextLeaf,
)
from imp_server.grammar.values.sat.found import Found
from imp_server.grammar.values.sat.objects import says_nothing, value_formula
from imp_server.grammar.values.sat.questions import Questions
from imp_server.grammar.values.sat.search import literal, propagated


class TagCase(NamedTuple):
    """What is left of a formula where the property has some of its values, or isn't there (`member` None)."""

    member: Found | None
    rest: Formula


class Tag(NamedTuple):
    """`formula`: the one that was asked about, with what is certain told to the rest."""

    formula: Formula
    name: str
    sure: tuple[Props, ...]
    """Leaves that have to hold."""
    asked: dict[Props, Formula]
    """What the others say of the property's value."""
    is_needed: bool


def tag_of(algebra: Algebra, f: Formula, seen: frozenset[str], order: tuple[str, ...]) -> Tag | None:
    """The property on whose value most of the choices in `f` depend; None if there isn't one."""
    if _n_choices(f) < 2:
        return None
    left, literals = propagated(algebra.formulas, f, ())
    f = algebra.formulas.conj([*(literal(algebra.formulas, *pair) for pair in literals), left])
    parts = f.conjuncts()
    sure = dict.fromkeys(part.leaf for part in parts if part.leaf is not None)
    leaves = dict.fromkeys(f.leaves())
    others = [leaf for leaf in leaves if isinstance(leaf, Props) and leaf not in sure]
    if len(others) < 2 or any(isinstance(leaf, Names) for leaf in leaves):
        return None
    needed = {name for leaf in sure if isinstance(leaf, Required) for name in leaf.names}
    counts: dict[str, int] = {}
    for leaf in others:
        for name in leaf.names:
            counts[name] = counts.get(name, 0) + 1
    first = next((name for name in order if name not in seen), None)
    names = [n for n, count in counts.items() if count > 1 and n not in seen and (not order or n == first)]
    for name in sorted(names, key=lambda n: (n not in needed, -counts[n])):
        spend(1 + len(others))
        asked = {leaf: value_formula(algebra, [leaf], name) for leaf in others}
        told = dict.fromkeys(asked.values())  # in order, so that what is paid for is the same each time
        if len(told) > 2 and all(is_listed(algebra, g) for g in told):
            own = tuple(leaf for leaf in sure if isinstance(leaf, Props))
            return Tag(f, name, own, asked, name in needed)
    return None


def _n_choices(f: Formula) -> int:
    return sum(1 for part in f.conjuncts() if part.leaf is None and not _is_literal(part))


def _is_literal(part: Formula) -> bool:
    return len(part.args) == 1 and part.args[0].leaf is not None


def is_listed(algebra: Algebra, f: Formula) -> bool:
    """Whether nothing but types and constants matters."""
    leaf = f.leaf
    if leaf is not None:
        if leaf.types is not None or isinstance(leaf, BoolIs):
            return True
        return isinstance(leaf, TextLeaf | NumberLeaf) and leaf.kind in ("literals", "listed")
    found = algebra.listed.get(f)
    if found is None:
        spend()
        found = algebra.listed[f] = all(is_listed(algebra, arg) for arg in f.args)
    return found


def cases(solver: Questions, tag: Tag, seen: frozenset[str]) -> Iterator[TagCase]:
    """All of them that are possible."""
    algebra, f = solver.algebra, tag.formula
    fs = algebra.formulas
    own = value_formula(algebra, tag.sure, tag.name)
    changes = _changes(algebra, f, tag, seen | {tag.name})
    against = [part.args[0].leaf for part in f.conjuncts() if _is_literal(part)]
    fatal = {leaf for leaf in against if isinstance(leaf, Props) and changes.get(leaf) is fs.true}
    if not tag.is_needed:
        absent = _without(algebra, f, changes)
        if absent is not fs.false:
            yield TagCase(None, absent)
    key = spelled(("string", tag.name)).encode() + b":"
    told: set[Formula] = {fs.false}
    is_plain = is_listed(algebra, own)
    values = _Values(algebra, tag, changes, fatal)
    for value, kind in _classes(algebra, tag, own):
        spend()
        if is_plain and value is not None and not _holds(algebra, own, kind, value):
            continue
        rest = values.rest(value, kind)
        if rest not in told:
            value_found = solver.value(fs.conj([own, values.said(value, kind)]))
            if value_found is not None:
                told.add(rest)
                yield TagCase(_member(key, value_found), rest)


class _Values:
    """What is left of a tag's formula behind each value. Few leaves name a value: the rest is the same for all."""

    def __init__(self, algebra: Algebra, tag: Tag, changes: dict[Leaf, Formula], fatal: Set[Props]) -> None:
        """`changes`: what becomes of leaves that the value obeys. `fatal`: those that it must not obey."""
        self._algebra, self._tag, self._changes, self._fatal = algebra, tag, changes, fatal
        self._constants = _constants(tag)
        self._naming: dict[Value, list[Formula]] = {}
        for f in dict.fromkeys(tag.asked.values()):
            for value in _named(f):
                self._naming.setdefault(value, []).append(f)
        self._asking: dict[Formula, list[Props]] = {}
        for leaf, f in tag.asked.items():
            self._asking.setdefault(f, []).append(leaf)
        self._others: dict[int, tuple[set[Formula], Mapped]] = {}

    def rest(self, value: Value | None, kind: int) -> Formula:
        """False where the value may not be."""
        fs = self._algebra.formulas
        truths, others = self._of_others(kind)
        naming = self._naming.get(value, []) if value is not None else []
        spend(1 + len(naming))
        odd = [g for g in naming if _holds(self._algebra, g, kind, value) is not (g in truths)]
        own = truths.symmetric_difference(odd)
        if any(self._tag.asked[leaf] in own for leaf in self._fatal):
            return fs.false
        changed: dict[Leaf, Formula] = {leaf: self._after(leaf, g in own) for g in odd for leaf in self._asking[g]}
        return others.but(changed)

    def _of_others(self, kind: int) -> tuple[set[Formula], Mapped]:
        """What holds of a value of that type that no leaf names, and what it leaves."""
        found = self._others.get(kind)
        if found is None:
            spend(1 + len(self._asking) // 4)
            truths = {f for f in self._asking if _holds_of_others(self._algebra, f, kind)}
            changes = dict(self._changes)
            for leaf, g in self._tag.asked.items():
                changes[leaf] = self._after(leaf, g in truths)
            found = self._others[kind] = truths, Mapped(self._algebra.formulas, self._tag.formula, changes)
        return found

    def _after(self, leaf: Props, is_obeyed: bool) -> Formula:
        fs = self._algebra.formulas
        return self._changes.get(leaf, fs.leaf(leaf)) if is_obeyed else fs.false

    def said(self, value: Value | None, kind: int) -> Formula:
        """What says that a value is of this class."""
        algebra = self._algebra
        if value is not None:
            return algebra.equals(value)
        named = [v for v in self._constants if TYPE_OF_KIND[v[0]] == kind]
        return algebra.formulas.conj([algebra.type_is(kind), algebra.formulas.neg(algebra.one_of_values(named))])


def _member(key: bytes, value: Found) -> Found:
    return Found(len(key) + value.size, lambda: key + value.text())


def _classes(algebra: Algebra, tag: Tag, own: Formula) -> Iterator[tuple[Value | None, int]]:
    """(the constant, or None for all others of a type; the type) of values that leaves tell apart.

    `own`: what has to hold of the value anyway.
    """
    for value in _constants(tag):
        yield value, TYPE_OF_KIND[value[0]]
    for kind in (NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT):
        if algebra.formulas.restrict(own, kind) is not algebra.formulas.false:
            yield None, kind


def _constants(tag: Tag) -> dict[Value, None]:
    return dict.fromkeys(value for f in dict.fromkeys(tag.asked.values()) for value in _named(f))


def _named(f: Formula) -> Iterator[Value]:
    """The constants that a formula speaks of."""
    for leaf in f.leaves():
        if isinstance(leaf, BoolIs):
            yield from (("bool", True), ("bool", False))
        elif isinstance(leaf, TextLeaf):
            yield from (("string", text.decode()) for text in sorted(cast("frozenset[bytes]", leaf.what)))
        elif isinstance(leaf, NumberLeaf):
            yield from (("number", n) for n in sorted(cast("frozenset[Any]", leaf.what)))


def _holds_of_others(algebra: Algebra, f: Formula, kind: int) -> bool:
    key = f, kind
    if key not in algebra.held_by_others:
        algebra.held_by_others[key] = _holds(algebra, f, kind, None)
    return algebra.held_by_others[key]


def _holds(algebra: Algebra, f: Formula, kind: int, value: Value | None) -> bool:
    def truth(leaf: Leaf) -> bool:
        if leaf.types is not None:
            return bool(leaf.types & kind)
        if not leaf.about & kind:
            return True
        if value is None:
            return False
        if isinstance(leaf, BoolIs):
            return bool(leaf.value == value[1])
        held = cast("frozenset[Any]", leaf.what) if isinstance(leaf, TextLeaf | NumberLeaf) else frozenset[Any]()
        return (value[1].encode() if kind == STRING else value[1]) in held

    return algebra.formulas.evaluate(f, truth)


def _changes(algebra: Algebra, f: Formula, tag: Tag, seen: frozenset[str]) -> dict[Leaf, Formula]:
    """What becomes of the leaves of `f` behind a member of the tag's name that obeys them all."""
    fs = algebra.formulas
    changes: dict[Leaf, Formula] = {}
    for leaf in f.leaves():
        if isinstance(leaf, Required) and tag.name in leaf.names:
            changes[leaf] = algebra.required(leaf.names - {tag.name})
        elif isinstance(leaf, Count):
            low, high = max(leaf.low - 1, 0), None if leaf.high is None else leaf.high - 1
            after = fs.true if not low and high is None else fs.leaf(algebra.leaves.get(Count, low, high))
            changes[leaf] = fs.false if leaf.high == 0 else after
        elif isinstance(leaf, Props) and says_nothing(fs, leaf, seen):
            changes[leaf] = fs.true
    return changes


def _without(algebra: Algebra, f: Formula, changes: dict[Leaf, Formula]) -> Formula:
    """What is left of `f` where no member has the tag's name. `changes`: what becomes of it behind one."""
    fs = algebra.formulas
    absent: dict[Leaf, Formula] = {leaf: g for leaf, g in changes.items() if isinstance(leaf, Props)}
    absent |= {leaf: fs.false for leaf in changes if isinstance(leaf, Required)}
    return fs.map_leaves(f, absent)
