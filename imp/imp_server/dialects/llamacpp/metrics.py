"""Counters and gauges in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from imp_server.dialects.handler import ServerState
from imp_server.dialects.openai_responses.kept import KeptTotals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STARTED = time.monotonic()
STARTED_UNIX = str(int(time.time()))
"""llama.cpp tells it in a header."""


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
        yield _metric(
            "imp_queue_depth", "Choices in flight: those that run and those that wait.", self._state.queue_depth
        )
        yield from _told(self._counters)
        yield from _llamacpp(self._counters)
        yield _metric("imp_responses_store_entries", "Stored responses.", self._kept.entries)
        yield _metric("imp_responses_store_bytes", "Bytes of stored responses.", self._kept.n_bytes)
        yield _metric("imp_responses_store_evictions_total", "Evicted by a cap.", self._kept.evictions)
        yield _metric("imp_responses_store_expired_total", "Ended by their time to live.", self._kept.expired)


_POSITIONS = "spec_accepted_per_position_total"
_LLAMACPP = {
    "spec_decode_num_drafts_total": ("Verification steps.", "spec_verify_steps_total"),
    "spec_decode_num_draft_tokens_total": ("Drafted tokens.", "spec_drafted_total"),
    "spec_decode_num_accepted_tokens_total": ("Accepted drafted tokens.", "spec_accepted_total"),
    "prompt_tokens_cached_total": ("Prompt tokens taken from the prefix cache.", "prefix_cache_hit_tokens_total"),
    "tokens_predicted_total": ("Generated tokens.", "completion_tokens_total"),
    "n_decode_total": ("Steps.", "steps_total"),
    "requests_processing": ("Rows in use.", "rows_running"),
    "requests_deferred": ("Requests that wait for a row.", "requests_waiting"),
}
"""llama.cpp's name -> what it counts, and our counter of that."""


def _told(counters: Mapping[str, float]) -> Iterator[Metric]:
    """A counter named `family{label="value"}` is a sample of its family."""
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for name, value in sorted(counters.items()):
        family, _, label = f"imp_{name.removeprefix('imp_')}".partition("{")
        if not label:
            yield _metric(family, "Told by the engine.", value)
            continue
        key, _, text = label.rstrip("}").partition("=")
        kind = CounterMetricFamily if family.endswith("_total") else GaugeMetricFamily
        found = families.setdefault(family, kind(family, "Told by the engine.", labels=[key]))
        found.add_metric([text.strip('"')], value)
    yield from families.values()


def _llamacpp(counters: Mapping[str, float]) -> Iterator[Metric]:
    """Drafts and cached tokens under llama.cpp's names; positions count from 0 and appear with their first draft."""
    for name, (text, ours) in _LLAMACPP.items():
        yield _metric(f"llamacpp:{name}", text, counters.get(ours, 0.0))
    n_computed = counters.get("prompt_tokens_total", 0.0) - counters.get("prefix_cache_hit_tokens_total", 0.0)
    yield _metric("llamacpp:prompt_tokens_total", "Prompt tokens that weren't cached.", max(0.0, n_computed))
    for name, ours in (("prompt", "prefill_ms_total"), ("tokens_predicted", "decode_ms_total")):
        seconds = counters.get(ours, 0.0) / 1e3
        yield _metric(f"llamacpp:{name}_seconds_total", "Of replies that have ended.", seconds)
    positions = CounterMetricFamily(
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", "Accepted at a position.", labels=["position"]
    )
    for name, value in sorted(counters.items()):
        if name.startswith(_POSITIONS):
            positions.add_metric([name.partition('"')[2].rstrip('"}')], value)
    yield positions


def _metric(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return family(name, text, value=value)


def exposition(counters: Mapping[str, float], state: ServerState, kept: KeptTotals) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Once(counters, state, kept))
    return b"\n".join(_whole(line) for line in generate_latest(registry).split(b"\n"))


def _whole(line: bytes) -> bytes:
    """Counts are whole numbers, and read as such: 12, not 12.0 or 1.2e+07."""
    sample, _, value = line.rpartition(b" ")
    if not sample or line.startswith(b"#"):
        return line
    number = float(value)
    return b"%b %d" % (sample, number) if number.is_integer() else line
