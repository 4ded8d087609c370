"""Thinking, broken in each dialect. Judged with a scripted model that thinks: the real one of the tests doesn't."""

from __future__ import annotations

from typing import Any

from imp_server.core import ReasoningDelta, TextDelta
from imp_server.dialects.anthropic import messages as anthropic_messages
from imp_server.dialects.anthropic.events import MessageEvents
from imp_server.dialects.openai_chat import reply as openai_chat_reply
from imp_server.dialects.openai_chat.reply import ChatStream
from imp_server.dialects.openai_responses.events import ResponseEvents
from imp_server.dialects.openai_responses.items import ReasoningItem

from tests.conformance.breaking import Json, after, drop, events, in_events, instead

CHAT, RESPONSES, MESSAGES = "openai-chat/reasoning", "openai-responses/reasoning", "anthropic-messages/thinking"


def _one_name(message: Json) -> None:
    message.pop("reasoning", None)


def _in_the_answer(message: Json) -> None:
    thought = message.pop("reasoning_content", "")
    message.pop("reasoning", None)
    message["content"] = f"<think>{thought}</think>{message['content']}"


def _streamed_as_text(original: Any = ChatStream.feed) -> Any:
    def feed(self: ChatStream, event: Any) -> Any:
        return original(self, TextDelta(event.choice, event.text) if isinstance(event, ReasoningDelta) else event)

    return feed


def _uncounted(body: Json) -> None:
    body["completion_tokens_details"]["reasoning_tokens"] = 0


def _own_names(told: list[Json]) -> None:
    for event in told:
        event["type"] = event["type"].replace("response.reasoning_text.", "response.reasoning.")


def _other_index(told: list[Json]) -> None:
    for event in told:
        if event["type"] == "response.reasoning_text.done":
            event["output_index"] += 1


def _no_signature(told: list[Json]) -> list[Json]:
    return [event for event in told if event.get("delta", {}).get("type") != "signature_delta"]


def _started_full(event: Json) -> None:
    if event["content_block"]["type"] == "thinking":
        event["content_block"]["thinking"] = "x"


THINKING_BREAKS = [
    after("thinking: one name of two", CHAT, openai_chat_reply, "_message", _one_name),
    after("thinking: inside the answer", CHAT, openai_chat_reply, "_message", _in_the_answer),
    instead("thinking: streamed as text", CHAT, ChatStream, "feed", _streamed_as_text()),
    after("thinking: its tokens aren't counted", CHAT, openai_chat_reply, "usage_body", _uncounted),
    events("thinking: events of no published name", RESPONSES, ResponseEvents, "_numbered", _own_names),
    events("thinking: an event with another index", RESPONSES, ResponseEvents, "_numbered", _other_index),
    events("thinking: no done event", RESPONSES, ResponseEvents, "_numbered", drop("response.reasoning_text.done")),
    after(
        "thinking: the item has no text",
        RESPONSES,
        ReasoningItem,
        "snapshot",
        lambda i: i.update(content=[], summary=[]),
    ),
    events("thinking: no signature in the stream", MESSAGES, anthropic_messages, "named_frames", _no_signature),
    events(
        "thinking: the block starts full",
        MESSAGES,
        anthropic_messages,
        "named_frames",
        in_events("content_block_start", _started_full),
    ),
    after(
        "thinking: the block comes last",
        MESSAGES,
        MessageEvents,
        "_message",
        lambda m: m.update(content=m["content"][::-1]),
    ),
]
