"""POST /v1/responses/compact: a conversation becomes its user messages and one sealed summary by the model.

Sent back as input, the summary stands where it is as a system message. It isn't stored.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from imp_server.core import (
    ChatRequest,
    Finish,
    Message,
    OutputEvent,
    OutputIntent,
    ReasoningIntent,
    TextDelta,
    TextPart,
    Usage,
    check_media,
)
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.handler import Call, Generate, Reply, handler
from imp_server.dialects.ids import new_id
from imp_server.dialects.intents import Body
from imp_server.dialects.openai_responses.handlers import ResponseStream, parse
from imp_server.dialects.openai_responses.input import Item, items_of
from imp_server.dialects.openai_responses.kept import history_of, resolved
from imp_server.dialects.openai_responses.resource import usage
from imp_server.dialects.openai_responses.stored import with_ids
from imp_server.dialects.openai_responses.truncation import fitting
from imp_server.dialects.sealed import seal

MAX_SUMMARY_TOKENS = 1024
_TASK = (
    "Summarise the conversation so far for whoever continues it without having read it: the goal, what was decided "
    "and why, what was done and found, names and values that matter, and what is left to do. Write only the summary."
)


def summary_request(body: Body, history: Sequence[Item]) -> ChatRequest:
    """The conversation, and the task as its last message. Raises VisionUnavailable."""
    request = parse({"model": body["model"], **_kept_fields(body)}, history)
    check_media(request)
    return msgspec.structs.replace(
        request,
        messages=(*request.messages, Message("user", (TextPart(_TASK),))),
        reasoning=ReasoningIntent(enabled=False),
    )


def summary_tokens(context_length: int) -> int:
    """An eighth of the context at most is kept for the summary."""
    return min(MAX_SUMMARY_TOKENS, max(1, context_length // 8))


def _kept_fields(body: Body) -> dict[str, Any]:
    return {name: body[name] for name in ("input", "instructions") if name in body}


@handler
async def compact_response(call: Call) -> Reply:
    kept, body = call.services.responses, dict(call.body)
    body["input"] = await resolved(kept, items_of(body.get("input")))
    history = await history_of(kept, body)
    request = await call.services.in_pool(summary_request, body, history)
    context_length = (await call.services.ready_card(call.model)).context_length or 0
    output = OutputIntent(max_tokens=summary_tokens(context_length))
    request = msgspec.structs.replace(request, output=output)
    if context_length:
        # A conversation is compacted because it is long: what the summary can't read, the oldest turns, is left out.
        room = context_length - summary_tokens(context_length)
        request = await fitting(request, call.services.count_tokens, room)
    context = ReplyContext(
        id=new_id("resp_imp"), model=call.model, created=int(time.time()), request_id=call.request_id, body=body
    )
    context.extra["said"] = user_messages([*history, *body["input"]], context.id)
    return Generate((request,), context, False, CompactionFold, ResponseStream)


def user_messages(items: Sequence[Item], response_id: str) -> list[dict[str, Any]]:
    """In full and in order, each with an id."""
    said = [item for item in items if item.get("type", "message") == "message" and item["role"] == "user"]
    return with_ids(said, response_id)


class CompactionFold:
    """Events of the summary -> the compacted conversation."""

    def __init__(self, ctx: ReplyContext) -> None:
        self._ctx = ctx
        self._pieces: list[str] = []
        self._usage = Usage()

    def feed(self, event: OutputEvent) -> None:
        match event:
            case TextDelta(text=text):
                self._pieces.append(text)
            case Finish():
                self._usage = event.usage

    def body(self) -> dict[str, Any]:
        compaction: Mapping[str, Any] = {
            "type": "compaction",
            "id": f"cmp_{self._ctx.id.removeprefix('resp_')}",
            "encrypted_content": seal("compaction", "".join(self._pieces).strip()),
        }
        return {
            "id": self._ctx.id,
            "object": "response.compaction",
            "created_at": self._ctx.created,
            "output": [*self._ctx.extra["said"], compaction],
            "usage": usage(self._usage),
        }
