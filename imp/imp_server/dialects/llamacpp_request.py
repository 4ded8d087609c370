"""A native llama.cpp completion body as PromptRequests, one per prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from imp_server.core import PromptRequest, ResponseFormat, SamplingIntent
from imp_server.dialects.openai_sampling import row_of, sampling_of, speculative_of, stop_of, whole

Prompt = tuple[str | int, ...]
Bias = tuple[int | str, float]
"""(token id or text, value)."""

BANNED = -1e6
"""logit_bias `false`."""
_LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")
_LETTERS = {"e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p",
            "x": "xtc", "t": "temperature"}  # fmt: skip
_OFF: Mapping[str, Mapping[str, float]] = {
    "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
}
"""Values that make each sampler do nothing."""


def prompts_of(value: Any) -> list[Prompt]:
    """Text, or a list with an id at its top, is one prompt; any other list is several."""
    if isinstance(value, str):
        return [(value,)]
    if any(not isinstance(item, str | list) for item in value):
        return [tuple(item if isinstance(item, str) else int(item) for item in value)]
    return [prompt for item in value for prompt in prompts_of(item)]


def bias_of(value: Any) -> list[Bias]:
    """A key of the object form is an id where it can be read as one."""
    if isinstance(value, dict):
        pairs: Sequence[Any] = [(int(key) if key.isdecimal() else key, bias) for key, bias in value.items()]
    else:
        pairs = [(item if isinstance(item, str) else int(item), bias) for item, bias in value or ()]
    return [(token, BANNED if bias is False else float(bias)) for token, bias in pairs]


def prompt_requests(body: Mapping[str, Any], logit_bias: Mapping[int, float]) -> tuple[PromptRequest, ...]:
    """`logit_bias`: by token id, texts resolved."""
    max_tokens = whole(next((body[name] for name in _LIMITS if name in body), -1))
    return tuple(
        PromptRequest(
            prompt=prompt,
            model=body.get("model", ""),
            n=choices_of(body),
            sampling=_sampling(body, logit_bias),
            response_format=_format(body),
            max_tokens=None if max_tokens == -1 else max_tokens,
            min_indent=int(body.get("n_indent", 0)),
            predict_s=body["t_max_predict_ms"] / 1e3 if body.get("t_max_predict_ms", -1) > 0 else None,
            stop=stop_of(body.get("stop")),
            # A stream counts its tokens as it goes, and one piece of text may be of many.
            logprobs=n_probs_of(body) or (0 if body.get("return_tokens") or body.get("stream") else None),
            logprobs_as_drawn=n_probs_of(body) > 0 and body.get("post_sampling_probs", False),
            speculative=speculative_of(body.get("speculative")),
            priority=int(body.get("priority", 0)),
            row_preference=row_of(body.get("id_slot")),
        )
        for prompt in prompts_of(body["prompt"])
    )


def choices_of(body: Mapping[str, Any]) -> int:
    """Completions per prompt."""
    return int(body.get("n_cmpl", body.get("n", 1)))


def n_probs_of(body: Mapping[str, Any]) -> int:
    return int(body.get("n_probs", body.get("logprobs", 0)))


def _sampling(body: Mapping[str, Any], logit_bias: Mapping[int, float]) -> SamplingIntent:
    fields = {name: value for name, value in body.items() if name != "logit_bias"}
    if "repeat_penalty" in fields:
        fields["repetition_penalty"] = fields["repeat_penalty"]
    for sampler in _OFF.keys() - _samplers(body):
        fields |= _OFF[sampler]
    return msgspec.structs.replace(sampling_of(fields), logit_bias=dict(logit_bias))


def _samplers(body: Mapping[str, Any]) -> set[str]:
    wanted = body.get("samplers")
    if wanted is None:
        return set(_OFF)
    names = [_LETTERS[letter] for letter in wanted] if isinstance(wanted, str) else wanted
    return {"typ_p" if name == "typical_p" else name for name in names}


def _format(body: Mapping[str, Any]) -> ResponseFormat:
    if grammar := body.get("grammar"):
        return ResponseFormat("grammar", text=grammar, param="grammar")
    if "json_schema" in body:
        return ResponseFormat("json_schema", schema=body["json_schema"] or {"type": "object"}, param="json_schema")
    return ResponseFormat()
