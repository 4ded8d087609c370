"""Lines that a flood would repeat: one a second at most, with the number of those left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class RareLog:
    """Owner of when each kind of line was last written."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}
        """Kind -> (time of its last line, occurrences since)."""

    def note(self, kind: str, detail: str = "") -> None:
        """`kind` is a fixed text of ours; `detail` may differ from line to line."""
        now = self._clock()
        last, n_silent = self._seen.get(kind, (now - 1, 0))
        if now - last < 1:
            self._seen[kind] = (last, n_silent + 1)
            return
        self._seen[kind] = (now, 0)
        more = f" ({n_silent} more of these since the last line)" if n_silent else ""
        self._log.warning("%s%s%s", kind, detail, more)
