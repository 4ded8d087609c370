"""Anthropic Messages, versions 2023-06-01 and 2026-10-21: request -> ChatRequest, OutputEvents -> message or events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from imp_server.core import (
    CacheIntent,
    ChatRequest,
    ImpError,
    InvalidRequest,
    Message,
    OutputEvent,
    OutputIntent,
    ReasoningIntent,
    ResponseFormat,
    Tool,
    ToolChoice,
    UnsupportedParameter,
)
from imp_server.dialects.anthropic.errors import error_body
from imp_server.dialects.anthropic.events import MessageEvents
from imp_server.dialects.anthropic.input import (
    Block,
    assistant_message,
    for_hour,
    in_turns,
    marked,
    system_parts,
    user_messages,
)
from imp_server.dialects.base import ReplyContext, SseFrame, named_frames
from imp_server.dialects.handler import Call, Generate, JsonReply, Reply, handler
from imp_server.dialects.intents import Body, options_of, present
from imp_server.dialects.openai.sampling import cache_of, sampling_of, whole
from imp_server.dialects.response_formats import response_format_of

STRICT_VERSION = "2026-10-21"
"""From this version on sampling parameters and two shapes of content are errors."""


def parse(body: Body, version: str = "2023-06-01") -> ChatRequest:
    """`version`: the anthropic-version header. Dates compare as text; an unknown one gets the rules of its time."""
    if version >= STRICT_VERSION:
        _check_strict(body)
    messages = _messages(body)
    tools = _tools(body)
    prefilled = bool(messages) and messages[-1].role == "assistant"
    if prefilled and messages[-1].tool_calls:
        raise InvalidRequest(
            "the last tool_use has no tool_result; send its result in a user message",
            param="messages",
            code="invalid_history",
        )
    return ChatRequest(
        messages=messages,
        model=body["model"],
        tools=tools,
        tool_choice=_tool_choice(body, tools),
        reasoning=_reasoning(body),
        reasoning_default_on=False,
        output=OutputIntent(
            response_format_of(body, _format(body)),
            whole(body.get("max_tokens")),
            tuple(present(body, "stop_sequences", ())),
            length_steering=present(body, "length_steering", True),
        ),
        sampling=sampling_of(body),
        cache=_cache(body),
        options=options_of(body),
        template_kwargs=present(body, "chat_template_kwargs", {}),
        add_generation_prompt=not prefilled,
        continue_final_message=prefilled,
    )


def _messages(body: Body) -> tuple[Message, ...]:
    found: list[Message] = []
    if system := system_parts(body.get("system")):
        found.append(Message("system", system))
    for i, message in enumerate(body["messages"]):
        path, content = f"messages[{i}].content", message["content"]
        if message["role"] == "user":
            found += user_messages(content, path)
        elif message["role"] == "assistant":
            found.append(assistant_message(content, path))
        else:
            found.append(Message("system", system_parts(content)))
    return tuple(in_turns(found))


def _tools(body: Body) -> tuple[Tool, ...]:
    """Client tools; the server tools of Anthropic (web_search_..., bash_...) can't run here and are left out."""
    return tuple(
        Tool(
            name=tool["name"],
            description=present(tool, "description", ""),
            parameters=tool["input_schema"],
            strict=present(tool, "strict", False),
            cache_mark=marked(tool),
            for_hour=for_hour(tool),
            param=f"tools[{i}].input_schema",
        )
        for i, tool in enumerate(present(body, "tools", ()))
        if tool.get("type") in {"custom", None}
    )


def _tool_choice(body: Body, tools: Sequence[Tool]) -> ToolChoice:
    choice = present(body, "tool_choice", {"type": "auto"})
    kind, parallel = choice["type"], not present(choice, "disable_parallel_tool_use", False)
    if kind in {"auto", "none"}:
        return ToolChoice(mode=kind, parallel=parallel)
    if kind == "tool":
        name = choice["name"]
        if name not in {tool.name for tool in tools}:
            raise InvalidRequest(
                f'tool_choice names "{name}", which is not in tools', param="tool_choice.name", code="unknown_tool"
            )
        return ToolChoice(mode="required", names=(name,), parallel=parallel, named=True)
    if not tools:
        raise InvalidRequest(
            'tool_choice is "any" but tools has no tool that can be called', param="tool_choice", code="unknown_tool"
        )
    return ToolChoice(mode="required", parallel=parallel)


def _format(body: Body) -> ResponseFormat:
    wanted = present(body, "output_config", {}).get("format")
    if not wanted:
        return ResponseFormat()
    return ResponseFormat("json_schema", schema=wanted["schema"], param="output_config.format")


def _reasoning(body: Body) -> ReasoningIntent:
    thinking = present(body, "thinking", {})
    return ReasoningIntent(
        enabled=present(thinking, "type", "disabled") != "disabled",
        effort=present(body, "output_config", {}).get("effort"),
        budget_tokens=whole(thinking.get("budget_tokens")),
        budget_message=body.get("reasoning_budget_message"),
        shown=thinking.get("display") != "omitted",
    )


def _cache(body: Body) -> CacheIntent:
    """A mark on the body itself means: cache all of this prompt."""
    found = cache_of(body)
    return msgspec.structs.replace(found, pin_prompt=True, for_hour=for_hour(body)) if marked(body) else found


def _check_strict(body: Body) -> None:
    for name in ("temperature", "top_p", "top_k"):
        if body.get(name) is not None:
            raise UnsupportedParameter(
                f"{name} was removed in anthropic-version {STRICT_VERSION}; leave it out or send version 2023-06-01",
                param=name,
            )
    for i, message in enumerate(body["messages"]):
        if isinstance(message["content"], list):
            for j, block in enumerate(message["content"]):
                _check_strict_block(message["role"], block, f"messages[{i}].content[{j}]")


def _check_strict_block(role: str, block: Block, path: str) -> None:
    if role == "assistant" and block["type"] == "document":
        raise InvalidRequest(
            "a document block can't be part of an assistant message", param=path, code="invalid_history"
        )
    if role == "user" and block["type"] == "text" and block.get("citations"):
        raise InvalidRequest(
            "a text block of the user can't carry citations", param=f"{path}.citations", code="invalid_history"
        )


@handler
async def create_message(call: Call) -> Reply:
    context = call.reply_context("msg_imp")
    request = await call.services.in_pool(parse, call.body, _version(call))
    with suppress(ImpError):  # what is wrong with the request is said before that there is no model
        context.extra["context_length"] = call.services.card(request.model).context_length
    streamed = present(call.body, "stream", False)
    return Generate((request,), context, streamed, MessageFold, MessageStream, headers=_echoed(call))


@handler
async def count_tokens(call: Call) -> Reply:
    """Counts what the same body would prefill: the request is prepared exactly as for an answer."""
    request = await call.services.in_pool(parse, call.body, _version(call))
    return JsonReply({"input_tokens": await call.services.count_tokens(request)}, headers=_echoed(call))


def _echoed(call: Call) -> dict[str, str]:
    """What the client said of the API's version comes back; nothing of it is enforced but the version's own rules."""
    sent = {name: call.headers[name] for name in ("anthropic-version", "anthropic-beta") if name in call.headers}
    return {name: "".join(c for c in value[:512] if " " <= c <= "~") for name, value in sent.items()}


def _version(call: Call) -> str:
    return call.headers.get("anthropic-version", "2023-06-01")


class MessageFold:
    def __init__(self, ctx: ReplyContext) -> None:
        self._events = MessageEvents(ctx)

    def feed(self, event: OutputEvent) -> None:
        self._events.feed(event)

    def body(self) -> dict[str, Any]:
        return self._events.message()


class MessageStream:
    """Every frame is named by its type; there is no sentinel."""

    opening_wait_s = 1.0

    def __init__(self, ctx: ReplyContext) -> None:
        self._ctx = ctx
        self._events = MessageEvents(ctx)

    def open(self) -> list[SseFrame]:
        """message_start counts what was read from the cache, so it waits for the prompt's turn."""
        return []

    def open_now(self) -> list[SseFrame]:
        return named_frames(self._events.open())

    def ping(self) -> list[SseFrame]:
        return named_frames([{"type": "ping"}])

    def feed(self, event: OutputEvent) -> list[SseFrame]:
        return named_frames(self._events.feed(event))

    def close(self) -> list[SseFrame]:
        return named_frames(self._events.close())

    def fail(self, error: ImpError) -> list[SseFrame]:
        return named_frames([*self._events.open(), error_body(error, self._ctx.request_id)])
