"""What the outside may know of an engine: counters, gauges, one dict per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from imp_server.backends.base import Counting
from imp_server.engine.constrained.masking import MaskThread
from imp_server.engine.counters import row_facts, scheduler_counters, zeros
from imp_server.engine.parts import EngineParts


class Telling:
    """Reads all owners of counts; owns none."""

    def __init__(self, parts: EngineParts, n_starting: Callable[[], int], masks: MaskThread) -> None:
        """`n_starting`: requests whose grammar is being started."""
        self._scheduler, self._counters = parts.scheduler, parts.counters
        self._n_starting, self._masks = n_starting, masks
        self.sources: list[Callable[[], Mapping[str, float]]] = [lambda: parts.speculation.counters()]
        if isinstance(parts.backend, Counting):
            self.sources.append(parts.backend.counters)

    def gauges(self) -> dict[str, float]:
        counts = self._scheduler.memory.counts()
        return {
            "rows_running": float(len(self._scheduler.rows)),
            "requests_waiting": float(self._scheduler.n_waiting + self._n_starting()),
            "blocks_free": float(sum(c.free for c in counts)),
            "blocks_held": float(sum(c.held for c in counts)),
            "blocks_cached": float(sum(c.cached for c in counts)),
        }

    def stats(self) -> tuple[Mapping[str, float], tuple[dict[str, Any], ...]]:
        """Counters and gauges by name, and one dict per admitted row."""
        counters = zeros() | dict(self._counters) | scheduler_counters(self._scheduler)
        for source in (self._scheduler.index.counters, *self.sources):
            counters |= source()
        counters |= dict(self._masks.seconds) | self.gauges()
        return counters, tuple(map(row_facts, self._scheduler.rows))
