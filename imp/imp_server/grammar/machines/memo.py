"""Machines that all grammars of a process share: known by what makes them, and forgotten together.

A machine grows as it is used, so how many there are says nothing of their memory. What they are charged counts for the
generation whose lock is held (generations.py); when one is given up, all are forgotten, and whatever still stands on a
machine keeps its own. In checks, which have no generations, they are forgotten after so many bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import update_wrapper
from threading import Lock
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

CHECKED = 64 << 20
"""Bytes charged by checks of one thread after which machines are forgotten."""
_memos: list[_Memo] = []


class _Memo:
    """A function of hashable arguments, and what it has made last."""

    def __init__(self, function: Callable[..., Any], most: int) -> None:
        self._function, self._most = function, most
        self._known: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._lock = Lock()
        update_wrapper(self, function)

    def __call__(self, *args: Any, **options: Any) -> Any:
        key = (*args, *options.items()) if options else args
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


def forget() -> None:
    for _ in forgotten():
        pass


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
