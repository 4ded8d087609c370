"""Token counts and token logprobs as OpenAI's routes write them."""

from __future__ import annotations

from typing import Any

import msgspec

from imp_server.core import LogprobEntry, Usage


class UsageSum:
    """Owner of the counts of one reply: the sum over its choices."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(Usage.__struct_fields__, 0)

    def add(self, usage: Usage) -> None:
        for name in self._sums:
            self._sums[name] += getattr(usage, name)

    @property
    def total(self) -> Usage:
        return Usage(**self._sums)


def usage_body(usage: Usage) -> dict[str, Any]:
    prompt: dict[str, int] = {"cached_tokens": usage.cached_tokens, "audio_tokens": 0}
    if usage.cache_write_tokens:
        prompt["cache_write_tokens"] = usage.cache_write_tokens
    if usage.evicted_tokens:
        prompt["evicted_tokens"] = usage.evicted_tokens
    completion: dict[str, int] = {
        "reasoning_tokens": usage.reasoning_tokens,
        "audio_tokens": 0,
        "accepted_prediction_tokens": usage.accepted_prediction_tokens,
        "rejected_prediction_tokens": usage.rejected_prediction_tokens,
    }
    if usage.verify_steps:
        completion["imp_spec_drafted"] = usage.drafted_tokens
        completion["imp_spec_accepted"] = usage.accepted_tokens
        completion["imp_spec_verify_steps"] = usage.verify_steps
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": prompt,
        "completion_tokens_details": completion,
    }


def token_text(data: bytes) -> str:
    """A token's text; bytes that are no whole character are shown as \\x escapes."""
    return data.decode("utf-8", "backslashreplace")


def logprob_body(entry: LogprobEntry) -> msgspec.Raw:
    """One element of logprobs.content, encoded at once: thousands of them must not be encoded at the end."""
    return msgspec.Raw(
        msgspec.json.encode(
            {
                "token": token_text(entry.data),
                "logprob": min(entry.logprob, 0.0),
                "bytes": list(entry.data),
                "top_logprobs": [
                    {"token": token_text(data), "logprob": min(logprob, 0.0), "bytes": list(data)}
                    for _, data, logprob in entry.top
                ],
            }
        )
    )
