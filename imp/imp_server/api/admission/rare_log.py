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

    def due(self, kind: str) -> int | None:
        """How many of this kind were left out since its last line, if another is due; else None."""
        now = self._clock()
        last, n_silent = self._seen.get(kind, (now - 1, 0))
        if now - last < 1:
            self._seen[kind] = (last, n_silent + 1)
            return None
        self._seen[kind] = (now, 0)
        return n_silent

    def note(self, kind: str, detail: str = "") -> None:
        """`kind` is a fixed text of ours; `detail` may differ from line to line."""
        n_silent = self.due(kind)
        if n_silent is not None:
            self._log.warning("%s%s%s", kind, detail, left_out(n_silent))


def left_out(n: int) -> str:
    """For the end of a line."""
    return f" ({n} more of these since the last line)" if n else ""
