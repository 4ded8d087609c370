"""Requests per minute of one address."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from imp_server.api.admission.addresses import limited_as
from imp_server.core import Overloaded

WINDOW_S = 60.0
MOST_ADDRESSES = 65536
"""Remembered at once; the oldest window is forgotten first."""


class RateLimit:
    """Owner of the count of each address in its current minute, which begins with its first request."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._windows: OrderedDict[str, list[float]] = OrderedDict()
        """Address -> [begin, requests], oldest begin first."""

    def check(self, client: str) -> None:
        """Counts one request. Raises Overloaded from the first that is too many on; refused ones count, too."""
        whom = limited_as(client) if self._per_minute else ""
        if not whom:
            return
        now = self._clock()
        window = self._windows.get(whom)
        if window is None or now - window[0] >= WINDOW_S:
            self._windows.pop(whom, None)
            window = self._windows[whom] = [now, 0]
            if len(self._windows) > MOST_ADDRESSES:
                self._windows.popitem(last=False)
        window[1] += 1
        if window[1] > self._per_minute:
            raise Overloaded(
                f"Rate limit exceeded: {self._per_minute} requests a minute are allowed from one address",
                retry_after_s=window[0] + WINDOW_S - now,
            )
