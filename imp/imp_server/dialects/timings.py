"""What a reply took: llama.cpp's `timings`, and what became of drafts."""

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
        body |= {f"draft_{name}": value for name, value in _acceptance(usage).items()}
    return body


def speculation_details(usage: Usage) -> dict[str, Any]:
    """What drafts came to, for the details of a usage; nothing if there were none."""
    declined = {name: getattr(usage, f"declined_{name}") for name in ("cost", "masks", "memory")}
    if not usage.verify_steps and not any(declined.values()):
        return {}
    found: dict[str, Any] = {
        "imp_spec_drafted": usage.drafted_tokens,
        "imp_spec_accepted": usage.accepted_tokens,
        "imp_spec_emitted": usage.verified_tokens,
        "imp_spec_verify_steps": usage.verify_steps,
    }
    if usage.verify_steps:
        found |= {f"imp_spec_{name}": value for name, value in _acceptance(usage).items()}
    if any(declined.values()):
        found["imp_spec_declined"] = max(declined, key=declined.__getitem__)
        found["imp_spec_declined_detail"] = ", ".join(f"{name} {n}" for name, n in declined.items() if n)
    return found


def _acceptance(usage: Usage) -> dict[str, Any]:
    """Tokens that a verifying step brings on average, its own one included, and how far drafts were right."""
    return {
        "mean_acceptance_length": 1.0 + _ratio(usage.accepted_tokens, usage.verify_steps),
        "accepted_per_position": list(usage.accepted_by_position),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
