"""Sampling in force: what the request says, else the model's generation config, else its family's, else ours."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from imp_server.config.generating import SamplingSettings
from imp_server.core import InvalidRequest, SamplingIntent, SamplingParams

# What the model cards of these families recommend; keys as in generation_config.json.
_FAMILIES: dict[str, dict[str, float]] = {
    "qwen2": {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    "qwen3": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "qwen3moe": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "gemma2": {"temperature": 1.0, "top_p": 0.95, "top_k": 64},
    "gemma3": {"temperature": 1.0, "top_p": 0.95, "top_k": 64},
    "gpt-oss": {"temperature": 1.0, "top_p": 1.0, "top_k": 0},
    "deepseek2": {"temperature": 0.6, "top_p": 0.95},
    "glm4": {"temperature": 0.6, "top_p": 0.95},
}
_ALIASES = {"gpt_oss": "gpt-oss", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "deepseek_v3": "deepseek2"}
_OURS: dict[str, float] = {
    "temperature": 0.7,
    "top_p": 0.95,
    "top_k": 40,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
}
_MORE: dict[str, type] = {
    "repeat_last_n": int,
    "xtc_probability": float,
    "xtc_threshold": float,
    "mirostat": int,
    "mirostat_tau": float,
    "mirostat_eta": float,
}
"""What a model file may say besides; off where it doesn't."""
_CONFIGURED = (
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_n_sigma",
)
"""What a server may be started with besides."""
_PENALTIES = ("presence_penalty", "frequency_penalty")
ORIGINAL_REPETITION_PENALTY = 1.05


def default_sampling(architecture: str, generation: Mapping[str, Any], *, original: bool = False) -> dict[str, float]:
    """Values of the parameters that a model may have an opinion on, by name: the six of ours, others where it has."""
    values = dict(_OURS)
    if original:
        values["repetition_penalty"] = ORIGINAL_REPETITION_PENALTY
    values |= _FAMILIES.get(_ALIASES.get(architecture, architecture), {})
    for name in _OURS:
        value = generation.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            values[name] = float(value)
    for name, kind in _MORE.items():
        value = generation.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            values[name] = kind(value)
    if "repeat_last_n" in values:  # in files 0 penalises nothing and -1 looks at everything, which is 0 here
        if values["repeat_last_n"] == 0:
            values["repetition_penalty"] = 1.0
        values["repeat_last_n"] = max(0, int(values["repeat_last_n"]))
    return values


def configured(values: Mapping[str, float], sampling: SamplingSettings) -> dict[str, float]:
    """`values` of the model, overlaid with what the server was started with."""
    chosen = dict(values)
    for name in SamplingSettings.__struct_fields__:
        value = getattr(sampling, name)
        if name == "seed":
            if value >= 0:
                chosen[name] = value
        elif name in _PENALTIES:
            if value:
                chosen[name] = value
        elif value >= 0 and not (name in _ABOVE_ZERO and value == 0):
            chosen[name] = value
    return chosen


_ABOVE_ZERO = ("typical_p", "repetition_penalty")
"""0 isn't a value that a request may send, and means nothing here."""


def sampling_params(
    intent: SamplingIntent, defaults: Mapping[str, float], *, end_ids: tuple[int, ...], vocab_size: int
) -> SamplingParams:
    """`end_ids`: of the model. Raises InvalidRequest for a token outside the vocabulary."""
    for name, ids in (("logit_bias", intent.logit_bias), ("stop_token_ids", intent.stop_token_ids)):
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"{name} names token {token_id}; ids go from 0 to {vocab_size - 1}",
                    param=name,
                    code="unknown_token",
                )
    chosen: dict[str, Any] = {
        name: value
        for name, value in defaults.items()
        if name in _OURS or name in _MORE or name in (*_PENALTIES, *_CONFIGURED, "seed")
    }
    chosen |= {name: value for name, value in intent.asked.items() if value is not None}
    chosen["top_k"] = max(0, int(chosen["top_k"]))
    seed = int(chosen.get("seed", -1))
    chosen["seed"] = (secrets.randbits(63) if seed == -1 else seed) & 0xFFFFFFFFFFFFFFFF
    return SamplingParams(
        **chosen,
        logit_bias=tuple(sorted(intent.logit_bias.items())),
        banned_ids=tuple(i for i in end_ids if i not in intent.stop_token_ids) if intent.ignore_eos else (),
        min_tokens=intent.min_tokens,
        held_ids=(*end_ids, *intent.stop_token_ids) if intent.min_tokens else (),
    )
