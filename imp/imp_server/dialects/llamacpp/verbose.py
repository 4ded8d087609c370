"""llama-server's `__verbose`: beside a chat's reply, what its raw completion would have told."""

from __future__ import annotations

from typing import Any

from imp_server.core import Finish, SamplingParams, Timings, Usage
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.handler import Call
from imp_server.dialects.llamacpp.settings import settings_body
from imp_server.dialects.timings import timings_body

VERBOSE = "__verbose"
_FLAG = "verbose"
_STOP_TYPES = {"length": "limit", "cancelled": "none"}


def note_verbose(call: Call, context: ReplyContext) -> None:
    """Of a server with llama-server's habits only: elsewhere the field has no effect."""
    server = call.services.config.server
    if server.habits == "llama-server":
        context.extra[_FLAG] = bool(call.body.get("verbose", server.verbose_replies))
        context.extra["most_tokens"] = server.most_tokens


def verbose(context: ReplyContext, text: str, finish: Finish | None) -> dict[str, Any]:
    """The field, where it is wanted; of the first choice. `text`: that of the answer."""
    if not context.extra.get(_FLAG):
        return {}
    accepted = context.accepted
    sampling = accepted.sampling[0] if accepted.sampling else SamplingParams()
    usage = finish.usage if finish is not None else Usage()
    stopped_by = finish.stop_sequence if finish is not None else None
    reason = finish.reason if finish is not None else "cancelled"
    told = {
        "index": 0,
        "content": text,
        "stop": True,
        "model": context.model,
        "tokens_predicted": usage.completion_tokens,
        "tokens_evaluated": usage.prompt_tokens,
        "tokens_cached": usage.cached_tokens,
        "generation_settings": settings_body(sampling, context.body, most=int(context.extra.get("most_tokens", 0))),
        "prompt": accepted.prompt_texts[0] if accepted.prompt_texts else "",
        "has_new_line": "\n" in text,
        "stop_type": "word" if stopped_by is not None else _STOP_TYPES.get(reason, "eos"),
        "stopping_word": stopped_by or "",
        "timings": timings_body(usage, finish.timings if finish is not None else Timings()),
    }
    return {VERBOSE: told}
