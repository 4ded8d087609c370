"""How long replies took and what became of requests, counted in this process: it outlives every engine.

Series are told apart by the server's own words alone: the names of its endpoints and of the models that it hosts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from imp_server.core import FinishReason

ENDPOINTS = ("chat_completions", "completions", "messages", "responses", "embeddings", "rerank")
_ENDPOINT_OF = {
    "/v1/chat/completions": "chat_completions",
    "/v1/completions": "completions",
    "/completion": "completions",
    "/completions": "completions",
    "/infill": "completions",
    "/generate": "completions",
    "/generate_stream": "completions",
    "/": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/v1/embeddings": "embeddings",
    "/embeddings": "embeddings",
    "/embedding": "embeddings",
    "/v1/rerank": "rerank",
    "/rerank": "rerank",
    "/reranking": "rerank",
    "/v1/reranking": "rerank",
}
_REASONS: tuple[FinishReason, ...] = ("stop", "length", "tool_calls", "cancelled")
_SECONDS = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    320.0,
)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_OUTCOMES = ("total", "failed_total", "rejected_total", "cancelled_total", "timed_out_total")


def endpoint_of(path: str) -> str:
    """The name of a path of the contract that makes replies; "" for others."""
    return _ENDPOINT_OF.get(path, "")


class Distribution:
    """Owner of a histogram's counts."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, n: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += n
        self.total += n * value

    def add(self, other: Distribution) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, how many are at most that), as the format has it."""
        found, n = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            n += count
            found.append((bound, float(n)))
        return found


class Durations:
    """Of the replies of one endpoint and model, in seconds."""

    __slots__ = ("gap", "queue", "request", "ttft")

    def __init__(self) -> None:
        self.ttft, self.queue, self.request = (Distribution(_SECONDS) for _ in range(3))
        self.gap = Distribution(_GAPS)


class Measures:
    """Owner of all of them. Used from one event loop."""

    def __init__(self) -> None:
        self._durations: dict[tuple[str, str], Durations] = {}
        self._requests = Counter[str](dict.fromkeys(ENDPOINTS, 0))
        self._outcomes = Counter[str](dict.fromkeys(_OUTCOMES, 0))
        self._finishes = Counter[tuple[str, str]]()
        self._prompt, self._completion = Counter[str](), Counter[str]()
        self._n_cached = 0
        self._last_request_s = self._last_ttft_s = 0.0

    # --- what happens ---------------------------------------------------------------------------

    def of(self, endpoint: str, model: str) -> Durations:
        found = self._durations.get((endpoint, model))
        if found is None:
            found = self._durations[endpoint, model] = Durations()
        return found

    def note_request(self, endpoint: str, outcome: str, seconds: float) -> None:
        """One request has been answered, or given up. `outcome`: failed, rejected, cancelled or ""."""
        self._requests[endpoint] += 1
        self._outcomes["total"] += 1
        if outcome:
            self._outcomes[f"{outcome}_total"] += 1
        self._last_request_s = seconds

    def note_timeout(self) -> None:
        self._outcomes["timed_out_total"] += 1

    def note_first_token(self, endpoint: str, model: str, seconds: float) -> None:
        self.of(endpoint, model).ttft.observe(seconds)
        self._last_ttft_s = seconds

    def note_prompt(self, model: str, n_tokens: int, n_cached: int) -> None:
        self._prompt[model] += n_tokens
        self._n_cached += n_cached

    def note_completion(self, model: str, n_tokens: int) -> None:
        self._completion[model] += n_tokens

    def note_finish(self, model: str, reason: str) -> None:
        self._finishes[model, reason] += 1

    # --- what is told ---------------------------------------------------------------------------

    def collect(self, models: Sequence[str]) -> Iterator[Metric]:
        """`models`: those that the server hosts, whose series are there from the start."""
        for name in _OUTCOMES:
            yield _counter(f"imp_requests_{name}", _OUTCOME_TEXTS[name], self._outcomes[name])
        yield _counter("imp_tokens_prompt_total", "Prompt tokens of replies.", sum(self._prompt.values()))
        yield _counter("imp_tokens_completion_total", "Tokens written.", sum(self._completion.values()))
        yield _counter("imp_tokens_cached_total", "Prompt tokens that the prefix cache had.", self._n_cached)
        yield GaugeMetricFamily(
            "imp_last_request_duration_ms", "Of the request that ended last.", self._last_request_s * 1e3
        )
        yield GaugeMetricFamily("imp_last_ttft_ms", "Of the reply that began last.", self._last_ttft_s * 1e3)
        requests = CounterMetricFamily("imp_endpoint_requests_total", "Requests that have ended.", labels=["endpoint"])
        for endpoint in ENDPOINTS:
            requests.add_metric([endpoint], self._requests[endpoint])
        yield requests
        yield from self._by_endpoint()
        yield from self._by_model(models)

    def _by_endpoint(self) -> Iterator[Metric]:
        for name, text in _KINDS.items():
            whole = Distribution(_bounds_of(name))
            labelled = HistogramMetricFamily(f"imp_endpoint_{name}_seconds", text, labels=["endpoint"])
            for endpoint in ENDPOINTS:
                found = self._sum(name, (key for key in self._durations if key[0] == endpoint))
                labelled.add_metric([endpoint], found.buckets(), found.total)
                whole.add(found)
            yield HistogramMetricFamily(f"imp_{name}_seconds", text, whole.buckets(), whole.total)
            yield labelled

    def _by_model(self, models: Sequence[str]) -> Iterator[Metric]:
        names = list(dict.fromkeys([*models, *(model for _, model in self._durations)]))
        for vllm, (kind, text) in _VLLM.items():
            family = HistogramMetricFamily(f"vllm:{vllm}", text, labels=["model_name"])
            for model in names:
                found = self._sum(kind, (key for key in self._durations if key[1] == model))
                family.add_metric([model], found.buckets(), found.total)
            yield family
        success = CounterMetricFamily(
            "vllm:request_success_total", "Choices that came to their end.", labels=["model_name", "finished_reason"]
        )
        prompt = CounterMetricFamily("vllm:prompt_tokens_total", "Prompt tokens.", labels=["model_name"])
        written = CounterMetricFamily("vllm:generation_tokens_total", "Tokens written.", labels=["model_name"])
        for model in names:
            for reason in _REASONS:
                success.add_metric([model, reason], self._finishes[model, reason])
            prompt.add_metric([model], self._prompt[model])
            written.add_metric([model], self._completion[model])
        yield from (success, prompt, written)

    def _sum(self, kind: str, keys: Iterable[tuple[str, str]]) -> Distribution:
        found = Distribution(_bounds_of(kind))
        for key in keys:
            found.add(getattr(self._durations[key], _FIELDS[kind]))
        return found


_OUTCOME_TEXTS = {
    "total": "Requests for replies that have ended.",
    "failed_total": "Of them, failed by the server (5xx, or an error in the stream).",
    "rejected_total": "Of them, refused (4xx).",
    "cancelled_total": "Of them, given up by their client.",
    "timed_out_total": "Choices that their deadline ended.",
}
_KINDS = {
    "request_duration": "From the request's head to the end of its answer.",
    "ttft": "From the request's head to the first token.",
    "inter_token": "Between two tokens of a choice.",
    "queue_time": "From acceptance to the first step.",
}
_FIELDS = {"request_duration": "request", "ttft": "ttft", "inter_token": "gap", "queue_time": "queue"}
_VLLM = {
    "time_to_first_token_seconds": ("ttft", _KINDS["ttft"]),
    "inter_token_latency_seconds": ("inter_token", _KINDS["inter_token"]),
    "time_per_output_token_seconds": ("inter_token", "The older name of inter_token_latency_seconds."),
    "e2e_request_latency_seconds": ("request_duration", _KINDS["request_duration"]),
    "request_queue_time_seconds": ("queue_time", _KINDS["queue_time"]),
}
"""vLLM's name -> ours."""


def _bounds_of(kind: str) -> Sequence[float]:
    return _GAPS if kind == "inter_token" else _SECONDS


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)
