"""A native llama.cpp completion body as PromptRequests, one per prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from imp_server.core import PromptRequest, ResponseFormat, SamplingIntent, VisionUnavailable
from imp_server.dialects.openai_sampling import predict_s_of, row_of, sampling_of, speculative_of, stop_of, whole
from imp_server.dialects.sampler_names import with_samplers

Prompt = tuple[str | int, ...]
Bias = tuple[int | str, float]
"""(token id or text, value)."""

BANNED = -1e6
"""logit_bias `false`."""
_LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")


def prompts_of(value: Any) -> list[Prompt]:
    """Text, an object, or a list with an id at its top is one prompt; any other list is several."""
    if isinstance(value, str):
        return [(value,)]
    if isinstance(value, dict):
        return [(_text_of(value),)]
    if any(not isinstance(item, str | list | dict) for item in value):
        return [tuple(item if isinstance(item, str) else int(item) for item in value)]
    return [prompt for item in value for prompt in prompts_of(item)]


def _text_of(prompt: Mapping[str, Any]) -> str:
    """Of a prompt with media. Raises VisionUnavailable if it has any."""
    if prompt.get("multimodal_data"):
        raise VisionUnavailable("this model reads text only", param="prompt.multimodal_data")
    text: str = prompt["prompt_string"]
    return text


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
            predict_s=predict_s_of(body),
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
    fields = {name: value for name, value in with_samplers(body).items() if name != "logit_bias"}
    return msgspec.structs.replace(sampling_of(fields), logit_bias=dict(logit_bias))


def _format(body: Mapping[str, Any]) -> ResponseFormat:
    if grammar := body.get("grammar"):
        return ResponseFormat("grammar", text=grammar, param="grammar")
    if "json_schema" in body:
        return ResponseFormat("json_schema", schema=body["json_schema"] or {"type": "object"}, param="json_schema")
    return ResponseFormat()
