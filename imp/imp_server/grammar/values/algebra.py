"""Formulas, leaves and subschemas of one space, and the formulas that several parts make."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from imp_server.core.turns import charge
from imp_server.grammar.machines.giving_up import dropped, emptied
from imp_server.grammar.machines.machine import Machine
from imp_server.grammar.values.exclusive import Exclusive
from imp_server.grammar.values.formula import Formula, Formulas, Leaf
from imp_server.grammar.values.json_values import Value
from imp_server.grammar.values.leaves import (
    ARRAY,
    BOOLEAN,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    BoolIs,
    Items,
    Leaves,
    Length,
    NumberLeaf,
    Props,
    Required,
    TextLeaf,
    TypeIs,
)
from imp_server.grammar.values.subschema import Sub

N_BYTES_SUB = 500
"""Memory of a subschema."""
MAX_LOOKED_AT = 2_000
"""Parts of a formula among which one is looked for whose place is known."""
TYPE_OF_KIND = {
    "null": NULL,
    "bool": BOOLEAN,
    "number": NUMBER,
    "string": STRING,
    "array": ARRAY,
    "object": OBJECT,
}


class Algebra:
    """Owner of everything interned below the automata."""

    def __init__(self) -> None:
        self.formulas = Formulas()
        self._exclusive = Exclusive(self.formulas)
        self.leaves = Leaves()
        self._subs: dict[Hashable, Sub] = {}
        self.places: dict[Formula, str] = {}
        """Where in its document a formula was first met, as a JSON pointer."""
        self._constants: dict[Value, Formula] = {}
        self.string_machines: dict[Formula, Machine] = {}
        self.number_machines: dict[Formula, Machine] = {}
        self.finite: dict[Formula, bool] = {}
        """Memos of scalars.py."""
        self.property_values: dict[tuple[tuple[Props, ...], str], Formula] = {}
        self.part_names: dict[Formula, frozenset[str]] = {}
        self.parts_held: dict[tuple[Formula, frozenset[str]], bool | None] = {}
        """Memos of sat/objects.py."""
        self.held_by_others: dict[tuple[Formula, int], bool] = {}
        self.listed: dict[Formula, bool] = {}
        """Memos of sat/tags.py."""
        self.any = self.sub_of(self.formulas.true)
        self.never = self.sub_of(self.formulas.false)

    def given_up(self) -> Iterator[None]:
        """Take everything apart, a piece at each step. Nobody uses it any more."""
        yield from dropped(self.places, self._constants, self.string_machines, self.number_machines, self.finite)
        yield from dropped(self.property_values, self.part_names, self.parts_held, self.held_by_others, self.listed)
        yield from self._exclusive.given_up()
        yield from emptied(self._subs)
        yield from self.leaves.given_up()
        yield from self.formulas.given_up()

    def stands(self, f: Formula, pointer: str) -> None:
        """Take note of the place of a formula, and of what it is made of, as far as that isn't met everywhere."""
        for part in (f, *f.conjuncts()):
            if part.args or (part.leaf is not None and (part is f or part.leaf.types is None)):
                self.places.setdefault(part, pointer)

    def place_of(self, f: Formula) -> str | None:
        """Where a formula stands, or the first of what it is made of that stands somewhere."""
        todo, seen = [f], {f}
        while todo and len(seen) < MAX_LOOKED_AT:
            part = todo.pop()
            if part in self.places:
                return self.places[part]
            # free of charge: who asks has often nothing left to spend
            below = [arg for arg in reversed(part.args[:MAX_LOOKED_AT]) if arg not in seen]
            seen.update(below)
            todo += below
        return None

    def settled(self, f: Formula) -> Formula:
        """A formula of the same values, as the automata use it: branches that shut each other out aren't counted."""
        settled = self._exclusive.settled(f)
        if settled is not f and f in self.places:
            self.stands(settled, self.places[f])
        return settled

    def sub(self, key: Hashable, make: Callable[[], Formula]) -> Sub:
        """The subschema known by `key`; `make` must depend on the key alone."""
        found = self._subs.get(key)
        if found is None:
            charge(N_BYTES_SUB)
            found = self._subs[key] = Sub(make, self.settled)
        return found

    def sub_of(self, formula: Formula) -> Sub:
        return self.sub(formula, lambda: formula)

    def order(self, leaves: Iterable[Leaf]) -> tuple[str, ...]:
        """Names in the order in which they have to come; empty if it is free."""
        props = {leaf for leaf in leaves if isinstance(leaf, Props) and leaf.ordered}
        ranked = sorted(props, key=lambda leaf: self.formulas.leaf(leaf).uid)
        return tuple(dict.fromkeys(name for leaf in ranked for name in leaf.names))

    def type_is(self, mask: int) -> Formula:
        return self.formulas.leaf(self.leaves.get(TypeIs, mask))

    def is_integer(self, spelling: str = "digits") -> Formula:
        """`spelling` any: 1.0 may be written for 1 where nothing but the value matters."""
        integral = self.formulas.leaf(self.leaves.get(NumberLeaf, "integer", spelling))
        return self.formulas.conj([self.type_is(NUMBER), integral])

    def text(self, kind: str, what: Hashable) -> Formula:
        return self.formulas.leaf(self.leaves.get(TextLeaf, kind, what))

    def number(self, kind: str, what: Hashable) -> Formula:
        return self.formulas.leaf(self.leaves.get(NumberLeaf, kind, what))

    def props(
        self, names: dict[str, Sub], patterns: Iterable[tuple[str, Sub]], rest: Sub, ordered: bool = False
    ) -> Formula:
        patterns = tuple(patterns)
        ordered = ordered and bool(names)
        if (
            not ordered
            and rest is self.any
            and all(s is self.any for s in names.values())
            and all(s is self.any for _, s in patterns)
        ):
            return self.formulas.true
        return self.formulas.leaf(self.leaves.props(names, patterns, rest, ordered))

    def required(self, names: Iterable[str]) -> Formula:
        missing = frozenset(names)
        return self.formulas.leaf(self.leaves.get(Required, missing)) if missing else self.formulas.true

    def equals(self, value: Value) -> Formula:
        """The value itself, structurally: any key order, any spelling of a number."""
        found = self._constants.get(value)
        if found is None:
            found = self._constants[value] = self.formulas.conj([self.type_is(TYPE_OF_KIND[value[0]]), self._is(value)])
        return found

    def one_of_values(self, values: Iterable[Value]) -> Formula:
        """Any of the values; all strings become one leaf, and all numbers."""
        values = list(values)
        strings = frozenset(data.encode() for kind, data in values if kind == "string" and not has_surrogates(data))
        numbers = frozenset(data for kind, data in values if kind == "number")
        parts = [self.equals(v) for v in values if v[0] not in ("string", "number")]
        if strings:
            parts.append(self.formulas.conj([self.type_is(STRING), self.text("literals", strings)]))
        if numbers:
            parts.append(self.formulas.conj([self.type_is(NUMBER), self.number("listed", numbers)]))
        return self.formulas.disj(parts)

    def _is(self, value: Value) -> Formula:
        kind, data = value
        fs = self.formulas
        if kind == "null":
            return fs.true
        if kind == "bool":
            return fs.leaf(self.leaves.get(BoolIs, data))
        if kind == "number":
            return self.number("listed", frozenset([data]))
        if kind == "string":
            return fs.false if has_surrogates(data) else self.text("literals", frozenset([data.encode()]))
        if kind == "array":
            prefix = tuple(self._sub_equals(v) for v in data)
            items = fs.leaf(self.leaves.get(Items, prefix, self.never))
            return fs.conj([fs.leaf(self.leaves.get(Length, len(data), None)) if data else fs.true, items])
        names = {k: self._sub_equals(v) for k, v in data}
        return fs.conj([self.props(names, (), self.never), self.required(names)])

    def _sub_equals(self, value: Value) -> Sub:
        return self.sub(("equals", value), lambda: self.equals(value))


def has_surrogates(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)
