"""What work is done for: a request that somebody waits for, or doesn't any more. It follows the work into threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


class NotWanted(Exception):
    """Nobody waits for the result any more."""


class Errand:
    """Owner of what is to be done when the work isn't wanted any more. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._actions: dict[object, Callable[[], None]] = {}
        self.is_over = False

    def end(self) -> None:
        """The client has left, or the deadline has passed. A second call does nothing."""
        with self._lock:
            self.is_over = True
            actions, self._actions = list(self._actions.values()), {}
        for action in actions:
            action()

    @contextmanager
    def ending_with(self, action: Callable[[], None]) -> Iterator[None]:
        """Within it `action` is called, in any thread, when the work isn't wanted any more; at once if it is so now."""
        key = object()
        with self._lock:
            late = self.is_over
            if not late:
                self._actions[key] = action
        if late:
            action()
        try:
            yield
        finally:
            with self._lock:
                self._actions.pop(key, None)


_current: ContextVar[Errand | None] = ContextVar("errand", default=None)


def current_errand() -> Errand:
    """One that never ends where nobody said what the work is for."""
    return _current.get() or Errand()


@contextmanager
def running(errand: Errand) -> Iterator[None]:
    """Work within it, and what it gives to threads of a pool, is done for the errand."""
    token = _current.set(errand)
    try:
        yield
    finally:
        _current.reset(token)


def carried(function: Callable[[], T]) -> Callable[[], T]:
    """The same work, for another thread: it raises NotWanted if it comes too late."""
    errand = _current.get()
    if errand is None:
        return function

    def call() -> T:
        if errand.is_over:
            raise NotWanted
        with running(errand):
            return function()

    call.__qualname__ = getattr(function, "__qualname__", call.__qualname__)
    return call
