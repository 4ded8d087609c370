"""Machines that all grammars of a process share: known by what makes them, and forgotten together.

A machine grows as it is used, so how many there are says nothing of their memory. What they are charged counts for the
generation whose lock is held (generations.py); when one is given up, all are forgotten, and whatever still stands on a
machine keeps its own. A check works with machines of its own, so that its verdict doesn't depend on what is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from threading import Lock, local
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

Known = OrderedDict[tuple[Any, ...], Any]
_memos: list[_Memo] = []


class _Own(local):
    tables: dict[_Memo, Known] | None = None


_own = _Own()


class _Memo:
    """A function of hashable arguments, and what it has made last."""

    def __init__(self, function: Callable[..., Any], most: int) -> None:
        self._function, self._most = function, most
        self._known: Known = OrderedDict()
        self._lock = Lock()
        update_wrapper(self, function)

    def __call__(self, *args: Any, **options: Any) -> Any:
        key = (*args, *options.items()) if options else args
        if _own.tables is not None:
            return self._own(key, _own.tables.setdefault(self, OrderedDict()), args, options)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        made = self._function(*args, **options)
        with self._lock:
            self._known[key] = made
            oldest = self._known.popitem(last=False) if len(self._known) > self._most else None
        del oldest  # without the lock: it may be large
        return made

    def _own(self, key: Any, known: Known, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The same in a table of this thread."""
        if key in known:
            known.move_to_end(key)
            return known[key]
        made = known[key] = self._function(*args, **options)
        if len(known) > self._most:
            known.popitem(last=False)
        return made

    def forget_one(self) -> bool:
        """Whether there was one to forget."""
        with self._lock:
            oldest = self._known.popitem(last=False) if self._known else None
        return oldest is not None


def remembered(maxsize: int) -> Callable[[F], F]:
    """As functools.lru_cache, until everything is forgotten."""

    def decorate(function: F) -> F:
        memo = _Memo(function, maxsize)
        _memos.append(memo)
        return cast(F, memo)

    return decorate


def forgotten() -> Iterator[None]:
    """Forget everything, one thing at each step."""
    for memo in _memos:
        while memo.forget_one():
            yield


@contextmanager
def alone() -> Iterator[None]:
    """Within it this thread meets no machine that was made before, and leaves none: what it does costs the same.

    Inside another one machines are that one's: what the values of an envelope have in common counts once.
    """
    outer = _own.tables
    _own.tables = {} if outer is None else outer
    try:
        yield
    finally:
        _own.tables = outer
