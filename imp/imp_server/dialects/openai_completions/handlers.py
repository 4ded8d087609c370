"""POST /v1/completions: raw prompts, one or many, as text or token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imp_server.core import GenerationOptions, InvalidRequest, OutputIntent, PromptRequest
from imp_server.dialects.handler import Call, Generate, Reply, handler
from imp_server.dialects.llamacpp.fields import choices_of, prompts_of, with_bias_by_id
from imp_server.dialects.openai.sampling import (
    adapters_of,
    cache_of,
    limit_of,
    predict_s_of,
    row_of,
    sampling_of,
    speculative_of,
    stop_of,
    whole,
)
from imp_server.dialects.openai_completions.reply import CompletionFold, CompletionStream, logprobs_of
from imp_server.dialects.response_formats import response_format_of
from imp_server.dialects.sampler_names import with_samplers

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default on this route, unlike on all others."""
_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")


@handler
async def create_completion(call: Call) -> Reply:
    requests = await call.worked(completion_requests, await with_bias_by_id(call))
    n = requests[0].options.n
    context = call.reply_context("cmpl-", n=len(requests) * n, per_prompt=n)
    return Generate(requests, context, bool(call.body.get("stream")), CompletionFold, CompletionStream)


def max_tokens_of(body: Mapping[str, Any]) -> int | None:
    """None is the server's own limit."""
    return limit_of(body, _LIMITS) if any(name in body for name in _LIMITS) else DEFAULT_MAX_TOKENS


def completion_requests(body: Mapping[str, Any]) -> tuple[PromptRequest, ...]:
    """One per prompt. Raises InvalidRequest for fields that can't go together."""
    n = choices_of(body)
    best_of = int(body.get("best_of", n))
    _check_together(body, n, best_of)
    logprobs, max_tokens = logprobs_of(body), max_tokens_of(body)
    sampling = sampling_of(with_samplers(body))
    prompt_logprobs = whole(body.get("prompt_logprobs"))
    if body.get("echo") and logprobs is not None:
        prompt_logprobs = max(logprobs, prompt_logprobs or 0)
    # Choices are compared by them, and timings of a stream count tokens as it goes.
    if best_of > n or (body.get("stream") and body.get("timings_per_token")):
        logprobs = logprobs or 0
    options = GenerationOptions(
        n=best_of,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        predict_s=predict_s_of(body),
        speculative=speculative_of(body.get("speculative")),
        adapters=adapters_of(body),
        priority=int(body.get("priority", 0)),
        row_preference=row_of(body.get("id_slot")),
    )
    return tuple(
        PromptRequest(
            prompt=prompt,
            model=body["model"],
            suffix=body.get("suffix") or None,
            output=OutputIntent(
                response_format_of(body),
                max_tokens,
                stop_of(body.get("stop")),
                length_steering=body.get("length_steering", True),
                min_indent=int(body.get("n_indent", 0)),
            ),
            sampling=sampling,
            cache=cache_of(body),
            options=options,
        )
        for prompt in prompts_of(body["prompt"])
    )


def _check_together(body: Mapping[str, Any], n: int, best_of: int) -> None:
    streamed = body.get("stream", False)
    if best_of < n:
        raise InvalidRequest(
            f'"best_of" ({best_of}) must not be less than "n" ({n})', param="best_of", code="unsupported_value"
        )
    if streamed and best_of > n:
        message = '"best_of" greater than "n" can\'t be streamed: the best are known at the end only'
        raise InvalidRequest(message, param="best_of", code="unsupported_value")
    if streamed and "prompt_logprobs" in body:
        message = '"prompt_logprobs" can\'t be streamed; leave out "stream"'
        raise InvalidRequest(message, param="prompt_logprobs", code="unsupported_value")
