"""What a value has to achieve, and what its parent wants to know about it besides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from imp_server.core.turns import GaveUp
from imp_server.grammar.values.formula import Formula, Leaf
from imp_server.grammar.values.leaves import NumberLeaf, TextLeaf, Watched
from imp_server.grammar.values.sat.questions import Doubt
from imp_server.grammar.values.sat.solver import Cube, Solver

Bits = tuple[bool, ...]
ROW = 256
"""Results index rows of the transition table, of so many entries each."""
MAX_ROWS = 64
N_TYPES = 8
MAX_FREE = 2
"""Open watches that are taken for independent of each other."""


def is_open(f: Formula) -> bool:
    return bool(f.args) or f.leaf is not None


def n_rows(asked: Iterable[Formula]) -> int:
    """Rows for all results of a value of which so much is asked: constants tell values apart, and types do."""
    n = 0
    for f in dict.fromkeys(asked):
        for leaf in f.leaves():
            n += len(leaf.what) if isinstance(leaf, TextLeaf | NumberLeaf) and isinstance(leaf.what, frozenset) else 1
    return min(1 + (n + N_TYPES) // ROW, MAX_ROWS)


class Judge:
    """Numbers the combinations of watched truths that the parent can live with. Owner of that numbering."""

    def __init__(
        self,
        solver: Solver,
        allows: Callable[[Bits], bool],
        future: Callable[[], Formula],
        cubes: Callable[[Formula, Callable[[Cube], bool]], list[Cube]],
        most: int,
    ) -> None:
        """`allows`: whether the parent can be completed behind a value with these truths. `most`: results at most.

        `future`: what has to hold of the rest of the parent and of the Watched leaves; `cubes`: which of these have to
        be true or false for such a rest, as far as a value can have them so.
        """
        self._solver = solver
        self._allows = allows
        self._most = most
        self._future, self._cubes_of = cache(future), cubes
        self._cubes: dict[tuple[tuple[bool | None, ...], Sequence[Formula]], tuple[list[Cube], Doubt]] = {}
        self._numbers: dict[Bits, int] = {}
        self.vectors: list[Bits] = []

    def allowed(self, watches: Sequence[Formula], ask: Callable[[Formula], object | None] | None = None) -> Formula:
        """What a value has to satisfy for the parent's sake. `ask`: for a value of a formula, if that may be asked."""
        solver = self._solver
        fs, leaves = solver.algebra.formulas, solver.algebra.leaves
        known = tuple(None if is_open(w) else w is fs.true for w in watches)
        ask = ask if known.count(None) > MAX_FREE else None
        key = (known, watches if ask else ())
        found = self._cubes.get(key)
        if found is None:
            truth: dict[Leaf, Formula] = {
                leaves.get(Watched, i): fs.constant(w) for i, w in enumerate(known) if w is not None
            }

            def can_be(cube: Cube) -> bool:
                return ask is None or ask(self._said(watches, cube)) is not None or solver.gave_up

            with solver.doubting() as doubt:
                cubes = self._cubes_of(fs.map_leaves(self._future(), truth), can_be)
            found = self._cubes[key] = cubes, doubt
        cubes, doubt = found
        if doubt.was_raised:
            solver.doubt(doubt.where)
        return fs.disj(self._said(watches, cube) for cube in cubes)

    def _said(self, watches: Sequence[Formula], cube: Cube) -> Formula:
        fs = self._solver.algebra.formulas
        return fs.conj(watches[i] if sign else fs.neg(watches[i]) for i, sign in cube)

    def number(self, bits: Bits) -> int:
        """The result that stands for `bits`; -1 if the parent can't go on from them."""
        found = self._numbers.get(bits)
        if found is None:
            if self._allows(bits):
                found = len(self.vectors)
                if found == self._most:
                    raise GaveUp(self._solver.algebra.place_of(self._future()))
                self.vectors.append(bits)
            else:
                found = -1
            self._numbers[bits] = found
        return found


@dataclass(eq=False, slots=True)
class Goal:
    """`must` has to hold; the truths of `watches` are the result. Without watches the result is 0."""

    must: Formula
    watches: tuple[Formula, ...] = ()
    judge: Judge | None = None

    @property
    def is_wide(self) -> bool:
        """Many watches are open: most combinations of their truths are those of no value."""
        return self.judge is not None and sum(map(is_open, self.watches)) > MAX_FREE

    def result(self, bits: Bits) -> int:
        return 0 if self.judge is None else self.judge.number(bits)
