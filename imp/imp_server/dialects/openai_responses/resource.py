"""The Response object: the union of the keys that OpenAI's SDK, its OpenAPI and Open Responses require."""

from __future__ import annotations

from typing import Any

from imp_server.core import ImpError, SamplingParams, Usage
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.intents import Body, present
from imp_server.dialects.openai_responses.tools import echo
from imp_server.dialects.timings import speculation_details

Json = dict[str, Any]

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "user",
)
_IN_FORCE = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Sampling as it is done, whoever chose it: the client, the model's own defaults or the server."""


def resource(ctx: ReplyContext, status: str, output: list[Json], **late: Any) -> Json:
    """`late`: what only the end knows (usage, completed_at, error, incomplete_details)."""
    body = ctx.body
    sampling = ctx.accepted.sampling[0] if ctx.accepted.sampling else SamplingParams()
    reasoning = present(body, "reasoning", {})
    return {
        "id": ctx.id,
        "object": "response",
        "created_at": ctx.created,
        "completed_at": None,
        "status": status,
        "background": bool(present(body, "background", False)),
        "error": None,
        "incomplete_details": None,
        **{key: body.get(key) for key in _ECHOED},
        "metadata": present(body, "metadata", {}),
        "model": ctx.model,
        "output": output,
        "parallel_tool_calls": present(body, "parallel_tool_calls", True),
        **{name: getattr(sampling, name) for name in _IN_FORCE},
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "service_tier": "default",
        "store": ctx.extra.get("stored", False),
        "text": {"format": {"type": "text"}, "verbosity": "medium"} | present_keys(present(body, "text", {})),
        "tool_choice": present(body, "tool_choice", "auto"),
        "tools": echo(present(body, "tools", ())),
        "top_logprobs": present(body, "top_logprobs", 0),
        "truncation": present(body, "truncation", "disabled"),
        "usage": None,
        **_conversation(body),
    } | late


def conversation_of(body: Body) -> str | None:
    """The id of the conversation that the request names, in either form."""
    named = present(body, "conversation")
    name: str | None = named["id"] if isinstance(named, dict) else named
    return name


def _conversation(body: Body) -> Json:
    name = conversation_of(body)
    return {} if name is None else {"conversation": {"id": name}}


def present_keys(value: Json) -> Json:
    return {key: item for key, item in value.items() if item is not None}


def usage(counts: Usage) -> Json:
    details = {"cached_tokens": counts.cached_tokens, "cache_write_tokens": counts.cache_write_tokens}
    if counts.evicted_tokens:
        details["evicted_tokens"] = counts.evicted_tokens
    return {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": details,
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning_tokens, **speculation_details(counts)},
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
    }


def failure(error: ImpError) -> Json:
    """`error` of a failed resource; its code is from OpenAI's closed list, the message is ours."""
    if error.status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if error.status < 500 else "server_error"
    return {"code": code, "message": error.message}
