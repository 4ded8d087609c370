"""The memory of request bodies: charged before it is used, from the first byte received to the end of the answer.

What a request names instead of sending it, such as the conversation before it, counts like a part of its body.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from imp_server.core import PayloadTooLarge, Unavailable


class Charge:
    """What one request's body takes. `close` gives it all back; may be called more than once, from any thread."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.n_bytes = 0
        self.most_bytes = 0

    def check(self, n_bytes: int) -> None:
        """Raises what adding `n_bytes` would raise now: a body that is announced needn't be sent in vain."""
        self._memory.check(n_bytes, self.n_bytes)

    def add(self, n_bytes: int, what: str = "the request body") -> None:
        """Raises Unavailable if the others leave too little, PayloadTooLarge if it were too much even alone."""
        self._memory.take(n_bytes, self.n_bytes, what)
        self.n_bytes += n_bytes
        self.most_bytes = max(self.most_bytes, self.n_bytes)

    def give_back(self, n_bytes: int) -> None:
        n_bytes = min(n_bytes, self.n_bytes)
        self.n_bytes -= n_bytes
        self._memory.release(n_bytes)

    def close(self) -> None:
        self.give_back(self.n_bytes)


class BodyMemory:
    """Owner of the number of bytes that bodies may still take."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._n_taken = 0
        self._lock = threading.Lock()

    @property
    def n_taken(self) -> int:
        return self._n_taken

    def charge(self) -> Charge:
        """Of nothing so far."""
        return Charge(self)

    def check(self, n_bytes: int, n_own: int) -> None:
        """Raises what `take` would raise."""
        with self._lock:
            self._check(n_bytes, n_own, "the request body")

    def take(self, n_bytes: int, n_own: int, what: str) -> None:
        with self._lock:
            self._check(n_bytes, n_own, what)
            self._n_taken += n_bytes

    def release(self, n_bytes: int) -> None:
        with self._lock:
            self._n_taken -= n_bytes

    def _check(self, n_bytes: int, n_own: int, what: str) -> None:
        mib = f"{self._limit >> 20} MiB"
        if n_bytes + n_own > self._limit:
            raise PayloadTooLarge(
                f"{what} would take more memory than all bodies may together ({mib}); "
                "send less or raise --max-body-memory-mib"
            )
        if self._n_taken + n_bytes > self._limit:
            raise Unavailable(f"request bodies take all the memory they may ({mib}); try again", retry_after_s=1.0)


_current: ContextVar[Charge | None] = ContextVar("imp_charge", default=None)


@contextmanager
def charging(charge: Charge) -> Iterator[None]:
    """What is read for the request within it counts for its body."""
    token = _current.set(charge)
    try:
        yield
    finally:
        _current.reset(token)


def current_charge() -> Charge:
    """Outside of any request one that counts for nobody."""
    return _current.get() or BodyMemory(1 << 62).charge()
