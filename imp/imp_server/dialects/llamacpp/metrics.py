"""Counters, gauges and histograms in Prometheus' text format: our names, llama.cpp's and vLLM's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from imp_server.dialects.handler import ServerState
from imp_server.dialects.openai_responses.kept import KeptTotals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STARTED = time.monotonic()
STARTED_UNIX = str(int(time.time()))
"""llama.cpp tells it in a header."""
Counters = Mapping[str, float]


class _Once(Collector):
    """The metrics of one scrape, each name once."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        seen: set[str] = set()
        for metric in self._metrics:
            if metric.name not in seen:
                seen.add(metric.name)
                yield metric


_POSITIONS = "spec_accepted_per_position_total"
_LLAMACPP = {
    "spec_decode_num_drafts_total": ("Verification steps.", "spec_verify_steps_total"),
    "spec_decode_num_draft_tokens_total": ("Drafted tokens.", "spec_drafted_total"),
    "spec_decode_num_accepted_tokens_total": ("Accepted drafted tokens.", "spec_accepted_total"),
    "prompt_tokens_cached_total": ("Prompt tokens taken from the prefix cache.", "prefix_cache_hit_tokens_total"),
    "tokens_predicted_total": ("Generated tokens.", "completion_tokens_total"),
    "n_decode_total": ("Steps.", "steps_total"),
    "n_tokens_max": ("The longest row so far, in tokens.", "longest_row_tokens"),
    "requests_processing": ("Rows in use.", "rows_running"),
    "requests_deferred": ("Requests that wait for a row.", "requests_waiting"),
    "prompt_tokens_seconds": ("Prompt tokens per second, of the last 10 s.", "recent_prompt_tokens_per_s"),
    "predicted_tokens_seconds": ("Generated tokens per second, of the last 10 s.", "recent_written_tokens_per_s"),
    "n_busy_slots_per_decode": ("Rows per step, of the last 10 s.", "recent_rows_per_step"),
}
"""llama.cpp's name -> what it counts, and our counter of that."""
_VLLM_GAUGES = {
    "num_requests_running": ("Rows in use.", "rows_running"),
    "num_requests_waiting": ("Requests that wait for a row.", "requests_waiting"),
}
_VLLM_COUNTERS = {
    "prefix_cache_queries_total": ("Prompt tokens looked up in the prefix cache.", "prefix_cache_queried_tokens_total"),
    "prefix_cache_hits_total": ("Of them, those that it had.", "prefix_cache_hit_tokens_total"),
    "num_preemptions_total": ("Rows that gave up their memory or place.", "preemptions_total"),
}
_OF_THE_ENGINE = ("requests_total", "requests_failed_total", "requests_rejected_total")
"""Counts of the engine whose names mean the server's requests: a request may be several of its."""
_ALWAYS_ZERO = {
    "kv_pressure_rejections_total": "Requests refused for lack of KV memory: they wait instead.",
    "kv_pool_growths_total": "The pool has its size from the start.",
    "kv_pool_bandwidth_gbps": "Not measured on this backend.",
    "streaming_kv_auto_enables_total": "Nothing is dropped from a conversation.",
    "vram_untracked_bytes": "Of a GPU; there is none.",
    **{
        f"spec_mtp_{name}_total": "Of drafts by the model's own head; there is none."
        for name in ("verify_steps", "drafted", "accepted", "emitted", "verify_wall_ms")
    },
    "kv_host_spill_bytes": "In the lower tier; there is none.",
    "kv_host_spill_blocks": "In the lower tier; there is none.",
}
"""Names of the original for what can't happen here, or not on this backend. The engine's own counts come first."""


def exposition(
    counters: Counters,
    state: ServerState,
    kept: KeptTotals,
    engines: Mapping[str, Counters] | None = None,
    measured: Iterable[Metric] = (),
) -> bytes:
    """`counters`: of all models together, or of the one that is meant; `engines`: of each model that is loaded.

    `measured`: what the process counts itself, of replies and requests.
    """
    registry = CollectorRegistry()
    registry.register(_Once(chain(_ours(counters, state, kept), measured, _llamacpp(counters), _vllm(engines or {}))))
    return b"\n".join(_whole(line) for line in generate_latest(registry).split(b"\n"))


def _ours(counters: Counters, state: ServerState, kept: KeptTotals) -> Iterator[Metric]:
    yield _metric("imp_uptime_seconds", "Since the process started.", time.monotonic() - _STARTED)
    loaded = GaugeMetricFamily("imp_model_loaded", "1 if the model answers.", labels=["model"])
    own = {state.model: state.state == "ready"} if state.model else {}
    for model, is_loaded in (own if state.loaded is None else state.loaded).items():
        loaded.add_metric([model], float(is_loaded))
    yield loaded
    yield _metric("imp_queue_depth", "Choices in flight: those that run and those that wait.", state.queue_depth)
    yield _metric("imp_queue_running", "Rows in use.", counters.get("rows_running", 0.0))
    yield _metric("imp_queue_waiting", "Requests that wait for a row.", counters.get("requests_waiting", 0.0))
    yield _metric("imp_kv_blocks_reserved", "KV blocks that rows hold.", counters.get("blocks_held", 0.0))
    yield from _told({_renamed(name): value for name, value in counters.items()})
    for name, text in _ALWAYS_ZERO.items():
        yield _metric(f"imp_{name}", text, 0.0)
    memory = GaugeMetricFamily("imp_vram_allocator_bytes", "Of a GPU; there is none.", labels=["tag"])
    memory.add_metric(["weights"], 0.0)
    memory.add_metric(["kv"], 0.0)
    yield memory
    yield _metric("imp_responses_store_entries", "Stored responses.", kept.entries)
    yield _metric("imp_responses_store_bytes", "Bytes of stored responses.", kept.n_bytes)
    yield _metric("imp_responses_store_evictions_total", "Evicted by a cap.", kept.evictions)
    yield _metric("imp_responses_store_expired_total", "Ended by their time to live.", kept.expired)


def _renamed(name: str) -> str:
    return f"engine_{name}" if name in _OF_THE_ENGINE else name


def _told(counters: Counters) -> Iterator[Metric]:
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


def _llamacpp(counters: Counters) -> Iterator[Metric]:
    """Positions of drafts count from 0 and appear with their first draft."""
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


def _vllm(engines: Mapping[str, Counters]) -> Iterator[Metric]:
    """What routers and dashboards made for vLLM read; tokens, where vLLM counts tokens."""
    for names, kind in ((_VLLM_GAUGES, GaugeMetricFamily), (_VLLM_COUNTERS, CounterMetricFamily)):
        for name, (text, ours) in names.items():
            family = kind(f"vllm:{name}", text, labels=["model_name"])
            for model, counters in engines.items():
                family.add_metric([model], counters.get(ours, 0.0))
            yield family
    usage = GaugeMetricFamily(
        "vllm:kv_cache_usage_perc", "Of the KV blocks, what rows hold: 1 is all.", labels=["model_name"]
    )
    config = GaugeMetricFamily(
        "vllm:cache_config_info", "The KV cache.", labels=["model_name", "block_size", "num_gpu_blocks"]
    )
    for model, counters in engines.items():
        held = counters.get("blocks_held", 0.0)
        n_blocks = held + counters.get("blocks_cached", 0.0) + counters.get("blocks_free", 0.0)
        usage.add_metric([model], held / n_blocks if n_blocks else 0.0)
        config.add_metric([model, f"{counters.get('kv_block_tokens', 0):.0f}", f"{n_blocks:.0f}"], 1.0)
    adapters = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Adapters; which of them run isn't told (GET /lora-adapters lists them).",
        labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    adapters.add_metric(["0", "", ""], float(STARTED_UNIX))
    yield from (usage, config, adapters)


def _metric(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return family(name, text, value=value)


def _whole(line: bytes) -> bytes:
    """Counters are whole numbers, and read as such: 12, not 12.0 or 1.2e+07.

    llama.cpp calls a gauge of its a counter."""
    if line == b"# TYPE llamacpp:n_tokens_max gauge":
        return b"# TYPE llamacpp:n_tokens_max counter"
    sample, _, value = line.rpartition(b" ")
    if not sample or line.startswith(b"#"):
        return line
    number = float(value)
    return b"%b %d" % (sample, number) if number.is_integer() else line
