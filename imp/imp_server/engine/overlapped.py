"""The overlapped loop: step N+1 is launched before step N is collected, so that the host's work hides behind a forward.

Beside the plain loop and under the same tests: rows get the same ids from both. A row whose step is under way is run on
with the token that it is sampling, where nothing on the host has to see that first (ahead.py). The others wait for
their result and hold nobody: what can run is launched without them, and they join the step behind.
"""

from __future__ import annotations

from collections import deque

from imp_server.core import ImpError
from imp_server.engine.ahead import Ahead
from imp_server.engine.flight import Flight
from imp_server.engine.live import LiveRow
from imp_server.engine.loop import EngineLoop
from imp_server.engine.parts import EngineParts
from imp_server.schedule.rows import Chunk


class OverlappedLoop(EngineLoop):
    """Owner of the steps under way: one while the next is planned, two while the host waits for the first."""

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._under_way: deque[Flight] = deque()
        self._ahead = Ahead(parts, overlaps_masks=self._waits.overlaps_masks)
        self.requests.telling.sources += [self._ahead.counters, self._exposed]
        self._idle_since_s: float | None = None
        """Since when the device has had nothing to do, though there is work."""
        self._exposed_us = {"drafts": 0.0, "others": 0.0}

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._under_way)

    def step(self) -> None:
        """One more step is launched, if any row can run, and the oldest one collected once it has company, or nobody
        can run before it is."""
        began_s, self._waited_s = self._clock(), 0.0
        flight = self._launch()
        if flight is not None:
            self._note_exposed(flight)
            self._under_way.append(flight)
        if self._under_way and (flight is None or len(self._under_way) > 1):
            self._land(self._under_way.popleft())
            for other in self._under_way:
                other.ask_late_masks()
            self._idle_since_s = self._landed_s if not self._under_way and self.scheduler.has_work else None
        self._hand_off()
        self._ahead.note_host_time(1e3 * (self._clock() - began_s - self._waited_s))

    def _note_exposed(self, flight: Flight) -> None:
        """The device waited for the host since the last step had landed."""
        if self._idle_since_s is None:
            return
        kind = "drafts" if any(chunk.n_drafts for chunk in flight.plan.chunks) else "others"
        self._exposed_us[kind] += 1e6 * (self._clock() - self._idle_since_s)
        self._idle_since_s = None

    def _exposed(self) -> dict[str, float]:
        return {f'overlap_exposed_us_total{{work="{kind}"}}': round(us) for kind, us in self._exposed_us.items()}

    def close(self, reason: ImpError | None = None) -> None:
        for flight in self._under_way:
            flight.give_up_masks()
        super().close(reason)

    def _propose_drafts(self) -> None:
        super()._propose_drafts()
        self._ahead.decide([live for live in self._admitted() if live.row.awaits_token])

    def _is_alone(self, constrained: list[LiveRow]) -> bool:
        return not self._under_way and super()._is_alone(constrained)

    def _chunks_under_way(self) -> list[Chunk]:
        return [chunk for flight in self._under_way for chunk in flight.plan.chunks]
