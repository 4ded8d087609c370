"""unevaluatedProperties and unevaluatedItems, rewritten into ordinary leaves.

What a schema's in-place parts evaluate depends on which of them hold. If the parts c1..cn hold under conditions,
the keyword means: for some subset of them, all its members hold and everything that neither they nor the
unconditional parts evaluate obeys the keyword's schema. (What is evaluated grows with the subset, so the
conditions need no negation.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

from imp_server.core import GrammarRefused
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.leaves import Items
from imp_server.grammar.values.schema.document import At
from imp_server.grammar.values.schema.reading import Expanding
from imp_server.grammar.values.subschema import Sub

MAX_CONDITIONS = 8


class Evaluated(NamedTuple):
    """What one in-place part evaluates. `everything`: all properties (or items)."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    n_items: int = 0
    contains: frozenset[Sub] = frozenset()
    everything: bool = False

    def __or__(self, other: Evaluated) -> Evaluated:
        return Evaluated(
            self.names | other.names,
            self.patterns | other.patterns,
            max(self.n_items, other.n_items),
            self.contains | other.contains,
            self.everything or other.everything,
        )


def properties(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    if "unevaluatedProperties" not in schema or at.draft < 2019:
        return e.algebra.formulas.true
    rest = e.sub(schema["unevaluatedProperties"], at.down("unevaluatedProperties"))

    def leaf(seen: Evaluated) -> Formula:
        anything = e.algebra.any
        names = dict.fromkeys(sorted(seen.names), anything)
        return e.algebra.props(names, [(p, anything) for p in sorted(seen.patterns)], rest)

    return _choose(e, schema, at.down("unevaluatedProperties"), at, False, leaf)


def items(e: Expanding, schema: dict[str, Any], at: At) -> Formula:
    if "unevaluatedItems" not in schema or at.draft < 2019:
        return e.algebra.formulas.true
    rest = e.sub(schema["unevaluatedItems"], at.down("unevaluatedItems"))

    def leaf(seen: Evaluated) -> Formula:
        last = rest
        if seen.contains:
            # a lazy disjunction: expanding here would recurse
            parts = (rest, *sorted(seen.contains, key=id))
            last = e.algebra.sub(("any of", *parts), lambda: e.algebra.formulas.disj(s.formula for s in parts))
        return e.algebra.formulas.leaf(e.algebra.leaves.get(Items, (e.algebra.any,) * seen.n_items, last))

    return _choose(e, schema, at.down("unevaluatedItems"), at, True, leaf)


def _choose(e: Expanding, schema: dict[str, Any], keyword_at: At, at: At, arrays: bool, leaf: Any) -> Formula:
    fs = e.algebra.formulas
    always = Evaluated()
    conditional: dict[Formula, Evaluated] = {}
    for condition, seen in _parts(e, schema, at, fs.true, arrays, top=True):
        if condition is fs.true:
            always |= seen
        elif condition is not fs.false:
            conditional[condition] = conditional.get(condition, Evaluated()) | seen
    if always.everything:
        return fs.true
    if len(conditional) > MAX_CONDITIONS:
        raise GrammarRefused(
            f"{keyword_at.pointer.rpartition('/')[2]} beside more than {MAX_CONDITIONS} alternatives isn't supported "
            f"(at #{keyword_at.pointer})",
            pointer=keyword_at.pointer,
        )
    choices = []
    for size in range(len(conditional) + 1):
        for subset in combinations(conditional.items(), size):
            seen = always
            for _, more in subset:
                seen |= more
            rest = fs.true if seen.everything else leaf(seen)
            choices.append(fs.conj([*(c for c, _ in subset), rest]))
    return fs.disj(choices)


def _parts(
    e: Expanding, schema: Any, at: At, condition: Formula, arrays: bool, top: bool = False
) -> Iterator[tuple[Formula, Evaluated]]:
    """(condition, what it evaluates) of a schema and of everything applied in place."""
    if not isinstance(schema, dict):
        return
    at = e.document.place(schema, at)
    own = _own_items(e, schema, at, top) if arrays else _own_properties(schema, top)
    if own != Evaluated():
        yield condition, own
    fs = e.algebra.formulas

    def below(sub: Any, place: At, extra: Formula) -> Iterator[tuple[Formula, Evaluated]]:
        yield from _parts(e, sub, place, fs.conj([condition, extra]), arrays)

    for name in ("$ref", "$dynamicRef", "$recursiveRef"):
        if name in schema:
            target, place = e.target(name, schema[name], at.down(name))
            yield from below(target, place, fs.true)
    for i, sub in enumerate(schema.get("allOf", ())):
        yield from below(sub, at.down("allOf", i), fs.true)
    for name in ("anyOf", "oneOf"):
        for i, sub in enumerate(schema.get(name, ())):
            place = at.down(name, i)
            yield from below(sub, place, e.formula(sub, place))
    if "if" in schema:
        holds = e.formula(schema["if"], at.down("if"))
        yield from below(schema["if"], at.down("if"), holds)
        yield from below(schema.get("then"), at.down("then"), holds)
        yield from below(schema.get("else"), at.down("else"), fs.neg(holds))
    for name in ("dependentSchemas", "dependencies"):
        for key, sub in schema.get(name, {}).items():
            yield from below(sub, at.down(name, key), e.algebra.required([key]))


def _own_properties(schema: dict[str, Any], top: bool) -> Evaluated:
    everything = "additionalProperties" in schema or (not top and "unevaluatedProperties" in schema)
    return Evaluated(
        frozenset(schema.get("properties", ())), frozenset(schema.get("patternProperties", ())), everything=everything
    )


def _own_items(e: Expanding, schema: dict[str, Any], at: At, top: bool) -> Evaluated:
    prefix = schema.get("prefixItems", ())
    items_ = schema.get("items")
    everything = not top and "unevaluatedItems" in schema
    if isinstance(items_, list) and "prefixItems" not in schema:
        prefix = items_
        everything |= "additionalItems" in schema
    else:
        everything |= items_ is not None
    contains: frozenset[Sub] = frozenset()
    if "contains" in schema and at.draft >= 2020:
        contains = frozenset([e.sub(schema["contains"], at.down("contains"))])
    return Evaluated(n_items=len(prefix), contains=contains, everything=everything)
