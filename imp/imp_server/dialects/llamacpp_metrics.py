"""Counters and gauges in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from imp_server.dialects.handler import ServerState
from imp_server.dialects.openai_responses_kept import KeptTotals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STARTED = time.monotonic()


class _Once(Collector):
    """The values of one scrape."""

    def __init__(self, counters: Mapping[str, float], state: ServerState, kept: KeptTotals) -> None:
        self._counters = counters
        self._state = state
        self._kept = kept

    def collect(self) -> Iterator[Metric]:
        yield _metric("imp_uptime_seconds", "Since the process started.", time.monotonic() - _STARTED)
        loaded = GaugeMetricFamily("imp_model_loaded", "1 if the model answers.", labels=["model"])
        if self._state.model:
            loaded.add_metric([self._state.model], float(self._state.state == "ready"))
        yield loaded
        yield _metric("imp_queue_depth", "Requests in flight.", self._state.queue_depth)
        for name, value in sorted(self._counters.items()):
            yield _metric(f"imp_{name.removeprefix('imp_')}", "Told by the engine.", value)
        yield _metric("imp_responses_store_entries", "Stored responses.", self._kept.entries)
        yield _metric("imp_responses_store_bytes", "Bytes of stored responses.", self._kept.n_bytes)
        yield _metric("imp_responses_store_evictions_total", "Evicted by a cap.", self._kept.evictions)
        yield _metric("imp_responses_store_expired_total", "Ended by their time to live.", self._kept.expired)


def _metric(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return family(name, text, value=value)


def exposition(counters: Mapping[str, float], state: ServerState, kept: KeptTotals) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Once(counters, state, kept))
    return generate_latest(registry)
