"""Token counts and token logprobs as OpenAI's routes write them."""

from __future__ import annotations

from typing import Any

import msgspec

from imp_server.core import Finish, LogprobEntry, Timings, Usage
from imp_server.dialects.timings import speculation_details, timings_body


class UsageSum:
    """Owner of the counts of one reply: the sum over its choices, which run side by side."""

    def __init__(self, n_choices: int) -> None:
        self._sum = Usage()
        self._longest = dict.fromkeys(Timings.__struct_fields__, 0.0)
        self._n_open = n_choices

    def add(self, finish: Finish) -> None:
        self._sum += finish.usage
        for name in self._longest:
            self._longest[name] = max(self._longest[name], getattr(finish.timings, name))
        self._n_open -= 1

    @property
    def is_complete(self) -> bool:
        return self._n_open == 0

    @property
    def total(self) -> Usage:
        return self._sum

    def timings(self) -> dict[str, Any]:
        """Tokens of all choices, milliseconds of the slowest."""
        return timings_body(self.total, Timings(**self._longest))


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
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": prompt,
        "completion_tokens_details": completion | speculation_details(usage),
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
