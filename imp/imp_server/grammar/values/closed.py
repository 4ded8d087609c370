"""A schema's formula with its objects closed (schema/closing.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula, Leaf
from imp_server.grammar.values.leaves import ARRAY, OBJECT, Items, Props
from imp_server.grammar.values.sat.solver import Solver
from imp_server.grammar.values.schema.closing import ValuePlace, closing
from imp_server.grammar.values.schema.document import Document
from imp_server.grammar.values.schema.expand import Expander
from imp_server.grammar.values.subschema import Sub


def closed_formula(solver: Solver, expander: Expander, digest: str) -> Formula:
    """What is left of a document's root where it is closed; the root itself where nothing would be."""
    algebra = solver.algebra
    fs = algebra.formulas
    n_made = 0

    def second(schema: Any) -> Formula:
        nonlocal n_made
        n_made += 1
        return Expander(Document(schema), algebra, f"{digest}/closing/{n_made}").raw_root()

    def leaves_values(place: ValuePlace, schema: Any) -> bool:
        own = fs.conj(expander.formula(p.schema, p.at) for p in place.parts if not p.is_constant)
        parts = [expander.formula(n.schema, n.at) for n in place.nodes if not n.is_constant]
        shut = second(schema)
        for kind in (OBJECT, ARRAY):
            for part in (fs.true, *parts):
                wanted = fs.conj([algebra.type_is(kind), own, part])
                if solver.value(wanted) is not None and solver.value(fs.conj([wanted, shut])) is None:
                    return False
        return True

    root = expander.root()
    schema = closing(expander, leaves_values)
    if schema is True:
        return root
    both = algebra.settled(narrowed(algebra, expander.raw_root(), second(schema)))
    return root if solver.value(both) is None and solver.value(root) is not None else both


def narrowed(algebra: Algebra, f: Formula, shut: Formula) -> Formula:
    """Both, with the leaves of the second schema put into those of the first that say the same of the same members.

    So a schema that is closed is the same, frames and masks included, as one that says so itself.
    """
    fs = algebra.formulas
    if shut is fs.true:
        return f
    parts = list(f.conjuncts())
    for part in shut.conjuncts():
        made = [_put(algebra, own.leaf, part.leaf) for own in parts]
        at = next((i for i, leaf in enumerate(made) if leaf is not None), -1)
        leaf = made[at] if at >= 0 else None
        if leaf is None:
            parts.append(part)
        else:
            parts[at] = fs.leaf(leaf)
    return fs.conj(parts)


def _put(algebra: Algebra, own: Leaf | None, shut: Leaf | None) -> Leaf | None:
    """One leaf for both; None where they speak of different members."""
    if isinstance(own, Props) and isinstance(shut, Props):
        if own.patterns or shut.patterns or own.rest is not algebra.any or own.names.keys() != shut.names.keys():
            return None
        names = {name: _both(algebra, sub, shut.names[name]) for name, sub in own.names.items()}
        return algebra.leaves.props(names, (), shut.rest, own.ordered)
    if isinstance(own, Items) and isinstance(shut, Items) and len(own.prefix) == len(shut.prefix):
        prefix: Sequence[Sub] = [_both(algebra, a, b) for a, b in zip(own.prefix, shut.prefix)]
        return algebra.leaves.get(Items, tuple(prefix), _both(algebra, own.rest, shut.rest))
    return None


def _both(algebra: Algebra, own: Sub, shut: Sub) -> Sub:
    if shut is algebra.any:
        return own
    if own is algebra.any:
        return shut
    return algebra.sub(("both", own, shut), lambda: narrowed(algebra, own.raw, shut.raw))
