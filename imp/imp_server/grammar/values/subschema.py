"""A reference to a subschema whose formula is made when somebody asks: recursion costs nothing until then."""

from __future__ import annotations

from collections.abc import Callable

from imp_server.grammar.values.formula import Formula


class Sub:
    """Interned (compared by identity) by whoever makes it."""

    __slots__ = ("_formula", "_make", "_raw", "_settle")

    def __init__(self, make: Callable[[], Formula], settle: Callable[[Formula], Formula]) -> None:
        """`settle`: brings a formula into the form in which it is used; it may look at other subschemas."""
        self._make: Callable[[], Formula] | None = make
        self._settle = settle
        self._raw: Formula | None = None
        self._formula: Formula | None = None

    @property
    def raw(self) -> Formula:
        """The formula as it was read."""
        if self._raw is None:
            assert self._make is not None
            self._raw = self._make()
            self._make = None
        return self._raw

    @property
    def formula(self) -> Formula:
        if self._formula is None:
            self._formula = self._settle(self.raw)
        return self._formula
