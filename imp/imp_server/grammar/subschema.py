"""A reference to a subschema whose formula is made when somebody asks: recursion costs nothing until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imp_server.grammar.formula import Formula


class Sub:
    """Interned (compared by identity) by whoever makes it."""

    __slots__ = ("_formula", "_make")

    def __init__(self, make: Callable[[], Formula]) -> None:
        self._make: Callable[[], Formula] | None = make
        self._formula: Formula | None = None

    @property
    def formula(self) -> Formula:
        if self._formula is None:
            assert self._make is not None
            self._formula = self._make()
            self._make = None
        return self._formula
