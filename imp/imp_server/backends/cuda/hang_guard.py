"""Ends the process when a card doesn't answer: whoever waits for it inside the driver can't be told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HANG_S = 60.0
"""Longer than any step takes."""


class HangGuard:
    """Owner of the thread that looks at how long somebody has been waiting."""

    def __init__(self, give_up: Callable[[], None], limit_s: float = HANG_S) -> None:
        """`give_up` is called by that thread, once."""
        self._give_up, self._limit_s = give_up, limit_s
        self._waits_since_s: float | None = None
        self._is_over = threading.Event()
        threading.Thread(target=self._look, name="imp-hang-guard", daemon=True).start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self._waits_since_s = time.monotonic()
        try:
            yield
        finally:
            self._waits_since_s = None

    def close(self) -> None:
        self._is_over.set()

    def _look(self) -> None:
        while not self._is_over.wait(self._limit_s / 10):
            since_s = self._waits_since_s
            if since_s is not None and time.monotonic() - since_s > self._limit_s:
                self._give_up()
                return
