"""Machines that all grammars of a process share: known by what makes them, and forgotten together.

A machine grows as it is used, so how many there are says nothing of their memory. What they are charged counts for the
generation whose lock is held (generations.py); when one is given up, all are forgotten, and whatever still stands on a
machine keeps its own. In checks, which have no generations, they are forgotten after so many bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

CHECKED = 64 << 20
"""Bytes charged by checks of one thread after which machines are forgotten."""
_caches: list[Any] = []


def remembered(maxsize: int) -> Callable[[F], F]:
    """As functools.lru_cache, until everything is forgotten."""

    def decorate(function: F) -> F:
        cached = lru_cache(maxsize=maxsize)(function)
        _caches.append(cached)
        return cast(F, cached)

    return decorate


def forget() -> None:
    for cached in _caches:
        cached.cache_clear()


class Forgetting:
    """Owner of when checks have charged so much that machines are forgotten."""

    def __init__(self) -> None:
        self._n_bytes = 0

    def add(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        if self._n_bytes > CHECKED:
            self._n_bytes = 0
            forget()


FORGETTING = Forgetting()
"""Of this process."""
