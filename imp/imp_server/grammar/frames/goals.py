"""What a value has to achieve, and what its parent wants to know about it besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from imp_server.grammar.formula import Formula

Bits = tuple[bool, ...]
MAX_RESULTS = 256
"""Results index a row of the transition table."""


class Judge:
    """Numbers the combinations of watched truths that the parent can live with. Owner of that numbering."""

    def __init__(self, allows: Callable[[Bits], bool]) -> None:
        self._allows = allows
        self._numbers: dict[Bits, int] = {}
        self.vectors: list[Bits] = []

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
