"""Choices that depend on the value of one property, decided by going through its values.

An `if` about a tag, a union in which a tag occurs, a chain of them: as soon as the tag is known, most leaves that speak
of it are true or false, and what is left is settled without a choice. So a chain of n costs n values, not 2^n truths.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from imp_server.core.turns import spend
from imp_server.grammar.values.algebra import TYPE_OF_KIND
from imp_server.grammar.values.formula import Formula
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
    Leaf,
    Names,
    NumberLeaf,
    Props,
    Required,
    TextLeaf,
)
from imp_server.grammar.values.sat.found import Found
from imp_server.grammar.values.sat.objects import says_nothing, value_formula
from imp_server.grammar.values.sat.search import literal, propagated

if TYPE_CHECKING:
    from imp_server.grammar.values.algebra import Algebra
    from imp_server.grammar.values.sat.solver import Solver


class Case(NamedTuple):
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
    sure = {part.leaf for part in parts if part.leaf is not None}
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
        if all(map(is_listed, asked.values())) and len(set(asked.values())) > 2:
            own = tuple(leaf for leaf in sure if isinstance(leaf, Props))
            return Tag(f, name, own, asked, name in needed)
    return None


def _n_choices(f: Formula) -> int:
    return sum(1 for part in f.conjuncts() if part.leaf is None and not _is_literal(part))


def _is_literal(part: Formula) -> bool:
    return len(part.args) == 1 and part.args[0].leaf is not None


def is_listed(f: Formula) -> bool:
    """Whether nothing but types and constants matters."""
    leaf = f.leaf
    if leaf is None:
        return all(map(is_listed, f.args))
    if leaf.types is not None or isinstance(leaf, BoolIs):
        return True
    return isinstance(leaf, TextLeaf | NumberLeaf) and leaf.kind in ("literals", "listed")


def cases(solver: Solver, tag: Tag, seen: frozenset[str]) -> Iterator[Case]:
    """All of them that are possible."""
    algebra, f = solver.algebra, tag.formula
    fs = algebra.formulas
    own = value_formula(algebra, tag.sure, tag.name)
    changes = _changes(algebra, f, tag, seen | {tag.name})
    against = [part.args[0].leaf for part in f.conjuncts() if _is_literal(part)]
    fatal = [leaf for leaf in against if isinstance(leaf, Props) and changes.get(leaf) is fs.true]
    if not tag.is_needed:
        absent = _without(algebra, f, changes)
        if absent is not fs.false:
            yield Case(None, absent)
    key = spelled(("string", tag.name)).encode() + b":"
    told: set[Formula] = {fs.false}
    is_plain = is_listed(own)
    for value, kind, formula in _classes(algebra, tag, own):
        spend()
        if is_plain and value is not None and not _holds(algebra, own, kind, value):
            continue
        spend(1 + len(tag.asked))
        truths = {g: _holds(algebra, g, kind, value) for g in set(tag.asked.values())}
        truth = {leaf: truths[g] for leaf, g in tag.asked.items()}
        if any(truth[leaf] for leaf in fatal):
            continue
        rest = fs.map_leaves(f, {**changes, **{leaf: fs.false for leaf, holds in truth.items() if not holds}})
        if rest not in told:
            value_found = solver.value(fs.conj([own, formula]))
            if value_found is not None:
                told.add(rest)
                yield Case(_member(key, value_found), rest)


def _member(key: bytes, value: Found) -> Found:
    return Found(len(key) + value.size, lambda: key + value.text())


def _classes(algebra: Algebra, tag: Tag, own: Formula) -> Iterator[tuple[Value | None, int, Formula]]:
    """(the constant, or None for all others of a type; the type; what says so) of values that leaves tell apart.

    `own`: what has to hold of the value anyway.
    """
    fs = algebra.formulas
    constants: dict[Value, None] = {}
    for f in dict.fromkeys(tag.asked.values()):
        for leaf in f.leaves():
            if isinstance(leaf, BoolIs):
                constants.update(dict.fromkeys([("bool", True), ("bool", False)]))
            elif isinstance(leaf, TextLeaf):
                texts = sorted(cast("frozenset[bytes]", leaf.what))
                constants.update(dict.fromkeys(("string", text.decode()) for text in texts))
            elif isinstance(leaf, NumberLeaf):
                constants.update(dict.fromkeys(("number", n) for n in sorted(cast("frozenset[Any]", leaf.what))))
    for value in constants:
        yield value, TYPE_OF_KIND[value[0]], algebra.equals(value)
    for kind in (NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT):
        if fs.restrict(own, kind) is fs.false:
            continue
        named = [v for v in constants if TYPE_OF_KIND[v[0]] == kind]
        yield None, kind, fs.conj([algebra.type_is(kind), fs.neg(algebra.one_of_values(named))])


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
