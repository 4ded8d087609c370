"""Turns: how much work a thread may do at a stretch, in units, so that nobody's hard question keeps others waiting.

Owner of each thread's units. Code that may take long pays as it goes along (`spend`) and keeps what it has found; in a
turn that is used up `spend` raises OutOfTurn, and asking again later goes on from there. A unit is about ten
microseconds of Python. Outside turns work is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

ENDLESS = 1 << 62


class OutOfTurn(TimeoutError):
    """The turn's units are used up."""


class _Turns(local):
    left: int = ENDLESS
    n_kept: int = 0


_turns = _Turns()


def spend(n: int = 1) -> None:
    """Pay for work that is about to be done. Raises OutOfTurn."""
    _turns.left -= n
    if _turns.left < 0:
        raise OutOfTurn


def kept() -> None:
    """Something was found that the next turn won't have to do again."""
    _turns.n_kept += 1


def n_kept() -> int:
    """How often this thread has kept something."""
    return _turns.n_kept


@contextmanager
def turn(n_units: int) -> Iterator[None]:
    """Within it at most `n_units` are spent, and no more than a turn around it has left."""
    outer = _turns.left
    _turns.left = given = min(n_units, outer)
    try:
        yield
    finally:
        _turns.left = outer - (given - _turns.left)
