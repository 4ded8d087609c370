"""A native llama.cpp completion body as PromptRequests, one per prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from imp_server.core import CacheIntent, GenerationOptions, OutputIntent, PromptRequest, ResponseFormat, SamplingIntent
from imp_server.dialects.llamacpp.fields import choices_of, prompts_of
from imp_server.dialects.openai.sampling import (
    adapters_of,
    keep_of,
    predict_s_of,
    row_of,
    sampling_of,
    speculative_of,
    stop_of,
    whole,
)
from imp_server.dialects.sampler_names import with_samplers

_LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")


def prompt_requests(body: Mapping[str, Any], logit_bias: Mapping[int, float]) -> tuple[PromptRequest, ...]:
    """`logit_bias`: by token id, texts resolved."""
    max_tokens = whole(next((body[name] for name in _LIMITS if name in body), -1))
    options = GenerationOptions(
        n=choices_of(body),
        # A stream counts its tokens as it goes, and one piece of text may be of many.
        logprobs=n_probs_of(body) or (0 if body.get("return_tokens") or body.get("stream") else None),
        logprobs_as_drawn=n_probs_of(body) > 0 and body.get("post_sampling_probs", False),
        predict_s=predict_s_of(body),
        speculative=speculative_of(body.get("speculative")),
        adapters=adapters_of(body),
        priority=int(body.get("priority", 0)),
        row_preference=row_of(body.get("id_slot")),
        **keep_of(body),
    )
    return tuple(
        PromptRequest(
            prompt=prompt,
            model=body.get("model", ""),
            output=OutputIntent(
                _format(body),
                None if max_tokens == -1 else max_tokens,
                stop_of(body.get("stop")),
                length_steering=body.get("length_steering", True),
                min_indent=int(body.get("n_indent", 0)),
            ),
            sampling=_sampling(body, logit_bias),
            # Its clients send cache_prompt with everything: here it means reuse, which is always on.
            cache=CacheIntent(session_id=body.get("session_id"), salt=body.get("cache_salt") or ""),
            options=options,
        )
        for prompt in prompts_of(body["prompt"])
    )


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
