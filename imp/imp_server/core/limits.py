"""What the questions about grammars may cost. A verdict by them is a number, the same on every machine.

A unit is one to two microseconds of Python, and bytes are those of what is made and kept: each number stands for a time
and a memory (tests/grammar/test_limits.py measures both).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from imp_server.core.errors import GrammarTooCostly
from imp_server.core.turns import Budget, GaveUp, OverBudget, Spending


class Limit(NamedTuple):
    n_units: int
    n_bytes: int

    def budget(self) -> Budget:
        return Budget(self.n_units, self.n_bytes)


CHECK = Limit(450_000, 48 << 20)
"""The check of one request's grammar: the proof that it has an end, and all that its first start does."""
CLOSED = Limit(350_000, CHECK.n_bytes)
"""The same of a schema whose objects are closed: where that is refused its letter is checked, too, and both have to be
refused quickly."""
START = Limit(8 * CHECK.n_units, 2 * CHECK.n_bytes)
"""The start of a grammar that was checked: the same work, begun again where a turn ended in the middle of it."""
QUESTION = Limit(150_000, CHECK.n_bytes)
"""A mask of an accepted grammar, a verdict on a token, a way to the end."""


class Bounded(Spending):
    """One use of a budget whose end is a fault of the client's."""

    __slots__ = ("_asked",)

    def __init__(self, budget: Budget, asked: Literal["schema", "pattern", "grammar"]) -> None:
        super().__init__(budget)
        self._asked = asked

    def __exit__(self, *raised: object) -> None:
        super().__exit__()
        over = raised[1] if len(raised) > 1 else None
        if isinstance(over, OverBudget):
            raise _too_costly(over, self._asked) from None


def bounded(budget: Budget, asked: Literal["schema", "pattern", "grammar"]) -> Bounded:
    """Pay for what is done within it. Raises GrammarTooCostly, naming the place, of a schema always."""
    return Bounded(budget, asked)


def _too_costly(over: OverBudget, asked: str) -> GrammarTooCostly:
    place = "" if over.pointer is None and asked != "schema" else f" at #{over.pointer or ''}"
    there = " there" if over.pointer else ""
    if isinstance(over, GaveUp):
        message = f"this {asked} is too complex to prove what satisfies it{place}; simplify it{there}"
    else:
        message = f"this {asked} takes too much {over.what}{place}; simplify it{there}"
    return GrammarTooCostly(message, pointer=over.pointer or "")
