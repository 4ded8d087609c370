"""OpenAI Responses (and Open Responses): request -> ChatRequest, OutputEvents -> resource or event stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from imp_server.core import (
    ChatRequest,
    ImpError,
    Message,
    MissingParameter,
    OutputEvent,
    ReasoningIntent,
    ResponseFormat,
    TextPart,
)
from imp_server.dialects.base import ReplyContext, SseFrame
from imp_server.dialects.intents import Body, extensions, present
from imp_server.dialects.openai_responses_events import ResponseEvents
from imp_server.dialects.openai_responses_input import Conversation, Item, items_of
from imp_server.dialects.openai_responses_tools import tool_choice, tool_table

_encode = msgspec.json.Encoder().encode

_FRACTIONS = {"none": 0.0, "minimal": 0.1, "low": 0.25, "medium": 0.5, "high": 0.8, "xhigh": 0.9, "max": 1.0}
"""Share of max_output_tokens that `reasoning.effort` grants to thinking."""

_OTHER_NAME = {"regex": "pattern", "grammar": "gbnf"}


def parse(body: Body, history: Sequence[Item] = ()) -> ChatRequest:
    """`history`: the items of the conversation that previous_response_id names, oldest first.

    Instructions, tools and sampling are never inherited from it (OpenAI's rule).
    """
    table = tool_table(body)
    conversation = Conversation(table)
    if instructions := present(body, "instructions"):
        conversation.messages.append(Message("system", (TextPart(instructions),)))
    for i, item in enumerate(history):
        conversation.add(item, f"previous_response_id[{i}]")
    for i, item in enumerate(items_of(body.get("input"))):
        conversation.add(item, f"input[{i}]")
    messages = conversation.done()
    if not any(message.role != "system" for message in messages):
        raise MissingParameter("input holds no message; send a string or at least one message item", param="input")
    return ChatRequest(
        messages=messages,
        model=body["model"],
        tools=table.tools,
        tool_choice=tool_choice(body, table),
        response_format=_format(present(body, "text", {}).get("format")),
        reasoning=_reasoning(body),
        max_tokens=body.get("max_output_tokens"),
        logprobs=_logprobs(body),
        **extensions(body),
    )


def _format(wanted: Mapping[str, Any] | None) -> ResponseFormat:
    if not wanted or wanted["type"] == "text":
        return ResponseFormat()
    kind, param = wanted["type"], "text.format"
    if kind == "json_schema":
        return ResponseFormat(kind, schema=wanted["schema"], name=wanted["name"], param=param)
    if kind in {"regex", "grammar"}:
        return ResponseFormat(kind, text=present(wanted, kind) or wanted[_OTHER_NAME[kind]], param=param)
    return ResponseFormat("json_object", param=param)


def _reasoning(body: Body) -> ReasoningIntent:
    effort = present(body, "reasoning", {}).get("effort")
    kwargs = present(body, "chat_template_kwargs", {})
    enabled = body.get("enable_thinking", kwargs.get("enable_thinking"))
    return ReasoningIntent(
        enabled=effort != "none" if effort else enabled,
        effort=effort,
        budget_fraction=present(body, "think_budget", _FRACTIONS.get(effort or "")),
    )


def _logprobs(body: Body) -> int | None:
    top = body.get("top_logprobs")
    asked = top is not None or "message.output_text.logprobs" in present(body, "include", ())
    return (top or 0) if asked else None


class Fold:
    def __init__(self, ctx: ReplyContext) -> None:
        self.events = ResponseEvents(ctx)

    def feed(self, event: OutputEvent) -> None:
        self.events.feed(event)

    def body(self) -> dict[str, Any]:
        return self.events.response()


class Stream:
    def __init__(self, ctx: ReplyContext) -> None:
        self.events = ResponseEvents(ctx)

    def open(self) -> list[SseFrame]:
        return _frames(self.events.open())

    def feed(self, event: OutputEvent) -> list[SseFrame]:
        return _frames(self.events.feed(event))

    def close(self) -> list[SseFrame]:
        return [*_frames(self.events.close()), SseFrame(b"[DONE]")]

    def fail(self, error: ImpError) -> list[SseFrame]:
        return [*_frames(self.events.fail(error)), SseFrame(b"[DONE]")]


def _frames(events: list[dict[str, Any]]) -> list[SseFrame]:
    return [SseFrame(_encode(event), event["type"]) for event in events]
