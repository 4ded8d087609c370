"""Messages, broken in its events and its message."""

from __future__ import annotations

from typing import Any

from imp_server.dialects.anthropic import errors as anthropic_errors
from imp_server.dialects.anthropic import events as anthropic_messages_events
from imp_server.dialects.anthropic import messages as anthropic_messages
from imp_server.dialects.anthropic.events import MessageEvents
from imp_server.dialects.base import SseFrame
from imp_server.dialects.handler import Call

from tests.conformance.breaking import (
    Json,
    after,
    drop,
    events,
    in_events,
    instead,
    swap,
    without,
)

M, M_STREAM = "anthropic-messages", "anthropic-messages/streaming"
WRITTEN = (anthropic_messages, "named_frames")


def _in_start(edit: Any) -> Any:
    return in_events("message_start", lambda event: edit(event["message"]))


def _block_indexes(told: list[Json]) -> None:
    for event in told:
        if "index" in event:
            event["index"] = event["index"] * 2 + 1


MESSAGES_BREAKS = [
    events("messages: message_start lacks type", M_STREAM, *WRITTEN, _in_start(without("type"))),
    events("messages: message_start lacks stop_reason", M_STREAM, *WRITTEN, _in_start(lambda m: m.pop("stop_reason"))),
    events("messages: message_start lacks usage", M_STREAM, *WRITTEN, _in_start(without("usage"))),
    events("messages: block indexes aren't dense", M_STREAM, *WRITTEN, _block_indexes),
    events("messages: blocks aren't stopped", M_STREAM, *WRITTEN, drop("content_block_stop")),
    events("messages: blocks aren't started", M_STREAM, *WRITTEN, drop("content_block_start")),
    events("messages: message_stop before message_delta", M_STREAM, *WRITTEN, swap("message_delta", "message_stop")),
    events("messages: no message_stop", M_STREAM, *WRITTEN, drop("message_stop")),
    events(
        "messages: the last usage is null",
        M_STREAM,
        *WRITTEN,
        in_events("message_delta", lambda e: e.update(usage=None)),
    ),
    events(
        "messages: stop_sequence is missing, not null",
        M_STREAM,
        *WRITTEN,
        in_events("message_delta", lambda e: e["delta"].pop("stop_sequence")),
    ),
    events(
        "messages: text starts filled",
        M_STREAM,
        *WRITTEN,
        in_events("content_block_start", lambda e: e["content_block"].update(text="x")),
    ),
    after(
        "messages: frames have no names",
        M_STREAM,
        anthropic_messages,
        "named_frames",
        lambda f: [SseFrame(x.data) for x in f],
    ),
    after(
        "messages: [DONE] at the end",
        M_STREAM,
        anthropic_messages.MessageStream,
        "close",
        lambda f: [*f, SseFrame(b"[DONE]")],
    ),
    after("messages: stop_reason is end_turn", M, MessageEvents, "_stop", lambda s: s | {"stop_reason": "end_turn"}),
    after(
        "messages: stop_sequence isn't named",
        "anthropic-messages/stop",
        MessageEvents,
        "_stop",
        lambda s: s | {"stop_sequence": None},
    ),
    after(
        "messages: cache counters are no counts",
        "anthropic-messages/reply",
        MessageEvents,
        "_usage",
        lambda u: u.update(cache_creation_input_tokens=0.5, cache_read_input_tokens=0.5),
    ),
    after(
        "messages: an empty block leads",
        "anthropic-messages/reply",
        MessageEvents,
        "_message",
        lambda m: m["content"].insert(0, {"type": "text", "text": ""}),
    ),
    after(
        "messages: ids of another dialect",
        "anthropic-messages/reply",
        Call,
        "reply_context",
        lambda context: setattr(context, "id", "chatcmpl-1"),
    ),
    instead(
        "messages: tool ids of another dialect",
        "anthropic-messages/tools",
        anthropic_messages_events,
        "tool_use_id",
        lambda call_id: call_id,
    ),
    instead("messages: system is ignored", M, anthropic_messages, "system_parts", lambda value: ()),
    instead(
        "messages: tools aren't counted", "anthropic-messages/count", anthropic_messages, "_tools", lambda body: ()
    ),
    after(
        "messages: errors in another shape",
        "anthropic-messages/errors",
        anthropic_errors,
        "error_body",
        lambda b: {"error": b["error"]},
    ),
]
