"""Fields that OpenAI's generation routes share: sampling, stop strings, limits, cache, draft hints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imp_server.core import AdapterUse, CacheIntent, SamplingIntent

_PLAIN = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "dry_multiplier",
    "dry_base",
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_range",
    "dynatemp_exponent",
    "xtc_probability",
    "xtc_threshold",
)
_WHOLE = ("dry_allowed_length", "mirostat")
_SWITCHES = ("top_k", "repeat_last_n", "dry_penalty_last_n")
"""Integers that -1 switches off like 0."""


def whole(value: Any) -> int | None:
    """JSON Schema takes 3.0 for an integer; None stays None."""
    return None if value is None else int(value)


def adapters_of(body: Mapping[str, Any]) -> tuple[AdapterUse, ...] | None:
    """The name of an adapter, or a list of numbers with scales; nothing and an empty list leave it to the server."""
    wanted = body.get("lora")
    if not wanted:
        return None
    if isinstance(wanted, str):
        return (AdapterUse(wanted),)
    return tuple(AdapterUse(int(one["id"]), float(one["scale"])) for one in wanted)


def sampling_of(body: Mapping[str, Any]) -> SamplingIntent:
    fields: dict[str, Any] = {name: float(body[name]) for name in _PLAIN if name in body}
    fields |= {name: int(body[name]) for name in _WHOLE if name in body}
    fields |= {name: max(0, int(body[name])) for name in _SWITCHES if name in body}
    if "dry_sequence_breakers" in body:
        fields["dry_sequence_breakers"] = tuple(body["dry_sequence_breakers"])
    if "top_n_sigma" in body:  # -1 is off
        fields["top_n_sigma"] = max(0.0, float(body["top_n_sigma"]))
    seed = whole(body.get("seed"))
    if seed is not None and seed != -1:  # -1 asks for a random one
        fields["seed"] = seed
    return SamplingIntent(
        fields,
        logit_bias={int(token): float(value) for token, value in (body.get("logit_bias") or {}).items()},
        stop_token_ids=tuple(int(i) for i in body.get("stop_token_ids", ())),
        min_tokens=int(body.get("min_tokens", 0)),
        ignore_eos=bool(body.get("ignore_eos", False)),
    )


ALL_TOKENS = 2**31 - 1
"""More than any context holds."""


def keep_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp's n_keep and n_discard, as GenerationOptions has them."""
    return {"n_keep": whole(body.get("n_keep")), "n_discard": whole(body.get("n_discard")) or 0}


def limit_of(body: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The limit of an answer by the first of its `names` that is there; None is the server's own.

    -1 is no limit at all, but as n_predict, of a raw completion, the server's own.
    """
    name = next((name for name in names if name in body), None)
    limit = None if name is None else int(body[name])
    if limit != -1:
        return limit
    return None if name == "n_predict" else ALL_TOKENS


def budget_tokens_of(body: Mapping[str, Any]) -> int | None:
    """llama.cpp's limit of thinking in tokens, by both its names; -1 leaves it to the server."""
    budget = whole(body.get("reasoning_budget_tokens", body.get("thinking_budget_tokens")))
    return None if budget == -1 else budget


def predict_s_of(body: Mapping[str, Any]) -> float | None:
    """llama.cpp's t_max_predict_ms; 0 and -1 are off."""
    limit_ms = whole(body.get("t_max_predict_ms")) or 0
    return limit_ms / 1e3 if limit_ms > 0 else None


def stop_of(value: Any) -> tuple[str, ...]:
    """Empty strings can't end anything and are left out."""
    strings = [value] if isinstance(value, str) else value or []
    return tuple(s for s in strings if s)


def cache_of(body: Mapping[str, Any]) -> CacheIntent:
    return CacheIntent(bool(body.get("cache_prompt", False)), body.get("session_id"), body.get("cache_salt") or "")


def prediction_of(value: Any) -> str | None:
    """The text of OpenAI's `prediction`; None for every other shape, which is only a hint that wasn't understood."""
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, str):
        return content or None
    if isinstance(content, list):
        texts = [p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)]
        return "".join(texts) or None
    return None


def speculative_of(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def row_of(value: Any) -> int | None:
    """llama.cpp's id_slot; -1 is any row."""
    slot = whole(value)
    return None if slot is None or slot < 0 else slot
