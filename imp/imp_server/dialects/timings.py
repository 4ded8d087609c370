"""llama.cpp's `timings`: what a reply took, in tokens and milliseconds."""

from __future__ import annotations

from typing import Any

from imp_server.core import Timings, Usage


def timings_body(usage: Usage, timings: Timings) -> dict[str, Any]:
    """Rates are 0 where nothing was measured; the first token's time belongs to the prompt."""
    prompt_n, n_steps = usage.prompt_tokens - usage.cached_tokens, max(0, usage.completion_tokens - 1)
    body = {
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": timings.prefill_ms,
        "prompt_per_token_ms": _ratio(timings.prefill_ms, prompt_n),
        "prompt_per_second": _ratio(1000.0 * prompt_n, timings.prefill_ms),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": timings.decode_ms,
        "predicted_per_token_ms": _ratio(timings.decode_ms, n_steps),
        "predicted_per_second": _ratio(1000.0 * n_steps, timings.decode_ms),
    }
    if usage.drafted_tokens:
        body |= {"draft_n": usage.drafted_tokens, "draft_n_accepted": usage.accepted_tokens}
    return body


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
