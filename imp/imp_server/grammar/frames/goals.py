"""What a value has to achieve, and what its parent wants to know about it besides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imp_server.grammar.formula import Formula
from imp_server.grammar.leaves import Leaf, Watched
from imp_server.grammar.sat.solver import Ask, Cube, Solver

Bits = tuple[bool, ...]
MAX_RESULTS = 256
"""Results index a row of the transition table."""


class Judge:
    """Numbers the combinations of watched truths that the parent can live with. Owner of that numbering."""

    def __init__(self, solver: Solver, allows: Callable[[Bits], bool], future: Callable[[], Formula], ask: Ask) -> None:
        """`allows`: whether the parent can be completed behind a value with these truths.

        `future`: what has to hold of the rest of the parent and of the Watched leaves; `ask`: a shortest such rest.
        """
        self._solver = solver
        self._allows = allows
        self._future, self._ask = future, ask
        self._cubes: dict[tuple[bool | None, ...], tuple[list[Cube], bool]] = {}
        self._numbers: dict[Bits, int] = {}
        self.vectors: list[Bits] = []

    def allowed(self, watches: Sequence[Formula]) -> Formula:
        """What a value has to satisfy for the parent's sake."""
        solver = self._solver
        fs, leaves = solver.algebra.formulas, solver.algebra.leaves
        known = tuple(None if w.args or w.leaf else w is fs.true for w in watches)
        found = self._cubes.get(known)
        if found is None:
            truth: dict[Leaf, Formula] = {
                leaves.get(Watched, i): fs.constant(w) for i, w in enumerate(known) if w is not None
            }
            with solver.doubting() as doubt:
                cubes = solver.cubes(fs.map_leaves(self._future(), truth.get), self._ask)
            found = self._cubes[known] = cubes, doubt.was_raised
        cubes, is_doubtful = found
        solver.gave_up = solver.gave_up or is_doubtful
        return fs.disj(fs.conj(watches[i] if sign else fs.neg(watches[i]) for i, sign in cube) for cube in cubes)

    def number(self, bits: Bits) -> int:
        """The result that stands for `bits`; -1 if the parent can't go on from them."""
        found = self._numbers.get(bits)
        if found is None:
            if len(self.vectors) < MAX_RESULTS and self._allows(bits):
                found = len(self.vectors)
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

    def result(self, bits: Bits) -> int:
        return 0 if self.judge is None else self.judge.number(bits)
