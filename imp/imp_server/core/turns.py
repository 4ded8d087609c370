"""The meter: what a thread's work costs, in units of work and bytes of memory, charged where things are made.

There are two limits, independent of each other. A *turn* is how much may be done at a stretch, so that nobody's hard
question keeps others waiting: work beyond it raises OutOfTurn, what was found is kept, and asking again goes on from
there. A *budget* is what one question may cost in all its turns: work or memory beyond it raises OverBudget, which is
final and the same on every machine. Outside of both work is free, but counted.

Whoever makes something pays before it is there, so that whatever is raised leaves nothing half made. A unit is about
two microseconds of Python. Owner of each thread's account.
"""

from __future__ import annotations

from threading import local
from typing import Literal

ENDLESS = 1 << 62


class OutOfTurn(TimeoutError):
    """The turn's units are used up."""


class OverBudget(Exception):
    """A question takes more than it may. `pointer`: JSON pointer of the schema that was being looked at, if known."""

    def __init__(self, what: Literal["work", "memory"]) -> None:
        super().__init__(what)
        self.what = what
        self.pointer: str | None = None

    def stands(self, pointer: str | None) -> None:
        """Take note of where the work was done, unless a place further in is known."""
        if self.pointer is None:
            self.pointer = pointer


class GaveUp(OverBudget):
    """A proof ended without an answer: nothing says that what was asked about can't be.

    Whatever in grammar/ stops short of an answer raises this; it never passes for "there is none".
    """

    def __init__(self, pointer: str | None = None) -> None:
        super().__init__("work")
        self.pointer = pointer


class _Account(local):
    units: int = ENDLESS
    """Left until the nearest limit."""
    is_turn: bool = True
    """That limit is a turn's."""
    n_bytes: int = ENDLESS
    """Left until the nearest limit."""
    n_charged: int = 0
    n_kept: int = 0


_account = _Account()


def spend(n: int = 1) -> None:
    """Pay for work that is about to be done. Raises OutOfTurn, OverBudget."""
    left = _account.units = _account.units - n
    if left < 0:
        raise OutOfTurn if _account.is_turn else OverBudget("work")


def charge(n_bytes: int, n_units: int = 1) -> None:
    """Pay for something that is about to be made and kept. Raises OutOfTurn, OverBudget."""
    account = _account
    account.n_charged += n_bytes
    left = account.n_bytes = account.n_bytes - n_bytes
    if left < 0:
        raise OverBudget("memory")
    left = account.units = account.units - n_units
    if left < 0:
        raise OutOfTurn if account.is_turn else OverBudget("work")


def n_charged() -> int:
    """Bytes that this thread was charged for so far."""
    return _account.n_charged


def kept() -> None:
    """Something was found that the next turn won't have to do again."""
    _account.n_kept += 1


def n_kept() -> int:
    """How often this thread has kept something."""
    return _account.n_kept


def turn(n_units: int) -> _Limited:
    """Within it at most `n_units` are spent, and no more than what is around it has left."""
    return _Limited(n_units, is_turn=True)


class _Limited:
    """One use of a limit. Every question opens some, so it is no generator."""

    __slots__ = ("_given", "_is_turn", "_n_units", "_outer", "_outer_is_turn")

    def __init__(self, n_units: int, *, is_turn: bool) -> None:
        self._n_units, self._is_turn = n_units, is_turn

    def __enter__(self) -> None:
        account = _account
        self._given = self._outer = account.units
        self._outer_is_turn = account.is_turn
        if self._n_units < self._outer:
            account.units = self._given = self._n_units
            account.is_turn = self._is_turn

    def __exit__(self, *_: object) -> None:
        account = _account
        account.units = self._outer - (self._given - account.units)
        account.is_turn = self._outer_is_turn


class Budget:
    """What one question may cost, over all its turns: units of work, and bytes of what it makes."""

    __slots__ = ("n_bytes", "n_units")

    def __init__(self, n_units: int = ENDLESS, n_bytes: int = ENDLESS) -> None:
        self.n_units = n_units
        """Left."""
        self.n_bytes = n_bytes

    def spent(self) -> Spending:
        """Work within it is paid from the budget, and from those around it."""
        return Spending(self)


class Spending(_Limited):
    """One use of a budget."""

    __slots__ = ("_budget", "_given_bytes", "_outer_bytes")

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget.n_units, is_turn=False)
        self._budget = budget

    def __enter__(self) -> None:
        super().__enter__()
        account = _account
        self._outer_bytes = account.n_bytes
        account.n_bytes = self._given_bytes = min(self._outer_bytes, self._budget.n_bytes)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        account, budget = _account, self._budget
        budget.n_units -= self._outer - account.units
        n_used = self._given_bytes - account.n_bytes
        budget.n_bytes -= n_used
        account.n_bytes = self._outer_bytes - n_used
