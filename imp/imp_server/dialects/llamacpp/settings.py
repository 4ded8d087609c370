"""llama.cpp's names of the settings in force: `generation_settings` of a reply, `params` of /props."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from imp_server.core import SamplingParams
from imp_server.dialects.llamacpp.fields import BANNED
from imp_server.dialects.openai.sampling import stop_of, whole
from imp_server.dialects.sampler_names import sampler_names

_LISTED = ("logit_bias", "banned_ids", "min_tokens", "held_ids")
_OWN_NAMES = {"repetition_penalty": "repeat_penalty"}


_NEUTRAL: Mapping[str, Any] = {
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
    "chat_format": "Content-only",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "generation_prompt": "",
    "backend_sampling": False,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
}
"""Of what a raw completion has no use for here, at the values that do nothing."""


def settings_body(sampling: SamplingParams, body: Mapping[str, Any], *, most: int = 0) -> dict[str, Any]:
    """Of a request with this body that is sampled so. -1 is no limit of its own. `most`: server.most_tokens."""
    asked = whole(next((body[n] for n in ("n_predict", "max_completion_tokens", "max_tokens") if n in body), -1))
    n_predict = -1 if asked is None else asked
    if most and not 0 <= n_predict <= most:
        n_predict = most
    found = {k: v for k, v in msgspec.to_builtins(sampling).items() if k not in _LISTED}
    return {_OWN_NAMES.get(name, name): value for name, value in found.items()} | {
        **_NEUTRAL,
        "n_predict": n_predict,
        "max_tokens": n_predict,
        "n_keep": int(body.get("n_keep", 0)),
        "n_discard": int(body.get("n_discard", 0)),
        "n_indent": int(body.get("n_indent", 0)),
        "t_max_predict_ms": int(body.get("t_max_predict_ms", -1)),
        "min_keep": int(body.get("min_keep", 0)),
        "n_probs": int(body.get("n_probs", body.get("logprobs", 0))),
        "post_sampling_probs": bool(body.get("post_sampling_probs", False)),
        "ignore_eos": bool(body.get("ignore_eos", False)),
        "logit_bias": _biases(sampling),
        "lora": body["lora"] if isinstance(body.get("lora"), list) else [],
        "samplers": sampler_names(body.get("samplers")),
        "speculative.types": "none" if body.get("speculative") is False else "auto",
        "stream": bool(body.get("stream", False)),
        "stop": list(stop_of(body.get("stop"))),
        "grammar": body.get("grammar", ""),
        "timings_per_token": bool(body.get("timings_per_token", False)),
    }


def _biases(sampling: SamplingParams) -> list[dict[str, Any]]:
    """Those of banned tokens, which ignored ends are, have no number that JSON could write."""
    biases: dict[int, float | None] = {i: None if bias <= BANNED else bias for i, bias in sampling.logit_bias}
    biases |= dict.fromkeys(sampling.banned_ids)
    return [{"token": token, "bias": bias} for token, bias in biases.items()]


def default_settings(defaults: Mapping[str, float]) -> dict[str, Any]:
    """Of a request that names nothing; its seed, -1, is a random one. `defaults`: by our names of the parameters."""
    whole_numbers = {name: int(value) for name, value in defaults.items() if name == "top_k"}
    found = settings_body(SamplingParams(**{**defaults, **whole_numbers}), {})  # type: ignore[arg-type]
    return found | {"seed": int(defaults.get("seed", -1))}
