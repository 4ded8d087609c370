"""The search through a formula against its truth table; formulas of a few Required leaves, whose truths are free."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core.turns import Budget, OverBudget
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula, Leaf
from imp_server.grammar.values.leaves import Required, Watched
from imp_server.grammar.values.sat.search import Literals, Search
from imp_server.grammar.values.sat.solver import Solver, cube_of

ALGEBRA = Algebra()
FS = ALGEBRA.formulas
NAMES = [ALGEBRA.leaves.get(Required, frozenset([name])) for name in "abcd"]
WATCHES = [ALGEBRA.leaves.get(Watched, i) for i in range(3)]


def formulas(leaves: list[Leaf]) -> st.SearchStrategy[Formula]:
    def larger(inner: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
        several = st.lists(inner, min_size=1, max_size=4)
        return st.one_of(inner.map(FS.neg), several.map(FS.conj), several.map(FS.disj), several.map(FS.one))

    return st.recursive(st.sampled_from(leaves).map(FS.leaf), larger, max_leaves=12)


def models(f: Formula, leaves: list[Leaf]) -> set[tuple[bool, ...]]:
    """The truths of the leaves under which `f` holds."""
    return {
        bits
        for bits in product((False, True), repeat=len(leaves))
        if FS.evaluate(f, dict(zip(leaves, bits)).__getitem__)
    }


def search(is_possible: bool = True) -> Search:
    return Search(FS, lambda _: is_possible, 10**6)


@settings(deadline=None, max_examples=300)
@given(formulas([*NAMES]))
def test_solutions_are_what_the_formula_says(f: Formula) -> None:
    covered: set[tuple[bool, ...]] = set()
    for literals in search().solutions(f):
        truth = dict(literals)
        assert len(truth) == len(literals)
        covered |= {
            bits
            for bits in product((False, True), repeat=len(NAMES))
            if all(truth.get(leaf, bit) == bit for leaf, bit in zip(NAMES, bits))
        }
    assert covered == models(f, [*NAMES])


@settings(deadline=None, max_examples=200)
@given(formulas([*NAMES]), st.sets(st.sampled_from(list(product((False, True), repeat=4)))))
def test_what_is_cut_off_holds_no_solution(f: Formula, possible: set[tuple[bool, ...]]) -> None:
    """`possible`: the truths that the leaves can have together."""

    def is_possible(literals: Literals) -> bool:
        truth = dict(literals)
        return any(all(truth.get(leaf, bit) == bit for leaf, bit in zip(NAMES, bits)) for bits in possible)

    hunt = Search(FS, is_possible, 10**6)
    found = False
    for literals in hunt.solutions(f):
        if is_possible(literals):
            found = True
        else:
            hunt.n_failed += 1
    assert found == bool(possible & models(f, [*NAMES]))


@settings(deadline=None, max_examples=300)
@given(formulas([*NAMES[:3], *WATCHES]))
def test_cubes_are_what_a_value_may_obey(f: Formula) -> None:
    solver = Solver(ALGEBRA)
    cubes = solver.cubes(f, lambda rest: solver.members(rest, frozenset()), lambda cube: True)
    allowed = {bits[3:] for bits in models(f, [*NAMES[:3], *WATCHES])}
    pleased = {
        bits
        for bits in product((False, True), repeat=len(WATCHES))
        if any(all(bits[i] == sign for i, sign in cube) for cube in cubes)
    }
    assert pleased == allowed


def test_a_search_is_broken_off_behind_so_many_failures() -> None:
    names = [FS.leaf(ALGEBRA.leaves.get(Required, frozenset([f"n{i}"]))) for i in range(40)]
    f = FS.conj(FS.disj([a, b]) for a in names[:20] for b in names[20:])
    hunt = Search(FS, lambda _: True, 3)
    n_found = 0
    for _ in hunt.solutions(f):
        hunt.n_failed += 1
        n_found += 1
    assert hunt.is_broken_off and n_found == 3
    with pytest.raises(OverBudget), Budget(50).spent():
        list(Search(FS, lambda _: True, 10**6).solutions(f))
    assert cube_of(((WATCHES[1], False), (NAMES[0], True))) == {(1, False)}
