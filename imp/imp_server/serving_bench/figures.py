"""From timings to figures: percentiles, tokens per second, goodput under a promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from imp_server.serving_bench.exchange import Timing

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Promise:
    """A request is good if it keeps all of these (milliseconds); 0 = not promised."""

    first_token_ms: float = 0.0
    per_token_ms: float = 0.0
    end_ms: float = 0.0

    def kept(self, timing: Timing) -> bool:
        pairs = (
            (self.first_token_ms, timing.first_token_s),
            (self.per_token_ms, timing.per_token_s),
            (self.end_ms, timing.end_s),
        )
        return timing.ok and all(not limit or value is None or 1000 * value <= limit for limit, value in pairs)


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


_LATENCIES: dict[str, Callable[[Timing], list[float]]] = {
    "first_token_ms": lambda t: [t.first_token_s] if t.first_token_s is not None else [],
    "per_token_ms": lambda t: [t.per_token_s] if t.per_token_s is not None else [],
    "between_events_ms": lambda t: t.gaps_s,
    "end_to_end_ms": lambda t: [t.end_s],
}


def figures(timings: Sequence[Timing], promise: Promise) -> dict[str, Any]:
    """The run in numbers. `seconds`: from the first asking to the last end; latencies of answered requests only."""
    good = [t for t in timings if t.ok]
    seconds = max((t.asked_at_s + t.end_s for t in timings), default=0.0)
    seconds -= min((t.asked_at_s for t in timings), default=0.0)
    per_s = (lambda n: n / seconds) if seconds > 0 else (lambda _: 0.0)
    n_prompt = sum(t.n_prompt for t in good)
    return {
        "requests": len(timings),
        "failed": len(timings) - len(good),
        "seconds": seconds,
        "requests_per_s": per_s(len(good)),
        "output_tokens_per_s": per_s(sum(t.n_output for t in good)),
        "prompt_tokens": n_prompt,
        "output_tokens": sum(t.n_output for t in good),
        "cached_share": sum(t.n_cached for t in good) / n_prompt if n_prompt else 0.0,
        "goodput_per_s": per_s(sum(promise.kept(t) for t in timings)),
        "promise_kept_share": sum(promise.kept(t) for t in timings) / len(timings) if timings else 0.0,
        **{name: _spread([1000 * v for t in good for v in values(t)]) for name, values in _LATENCIES.items()},
    }


def _spread(values: list[float]) -> dict[str, float]:
    mean = sum(values) / len(values) if values else 0.0
    return {"mean": mean, **{f"p{p}": percentile(values, p) for p in PERCENTILES}}


def errors(timings: Sequence[Timing], most: int = 5) -> list[tuple[int, str]]:
    """How often each error came, the most frequent first."""
    counts: dict[str, int] = {}
    for timing in timings:
        if not timing.ok:
            told = f"HTTP {timing.status}: {timing.error}"
            counts[told] = counts.get(told, 0) + 1
    return sorted(((n, told) for told, n in counts.items()), reverse=True)[:most]
