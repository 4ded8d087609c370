"""Chat Completions, broken in its chunks and its whole replies."""

from __future__ import annotations

from itertools import count
from typing import Any

from imp_server.core import Finish, TextDelta
from imp_server.dialects.base import SseFrame
from imp_server.dialects.openai_chat import reply as openai_chat_reply
from imp_server.dialects.openai_chat import request as openai_chat_request
from imp_server.dialects.openai_chat.reply import ChatFold, ChatStream
from imp_server.text.tools import enforce

from tests.asked import sampling
from tests.conformance.breaking import (
    Json,
    after,
    before,
    frames,
    instead,
    without,
)

CHAT, STREAM = "openai-chat", "openai-chat/streaming"


def _chat_index() -> Any:
    numbers = count()

    def change(self: ChatStream, choices: list[Json], *rest: Any) -> Any:
        for choice in choices:
            choice["index"] = next(numbers)
        return (self, choices, *rest)

    return change


def _in_choices(key: str, value: Any) -> Any:
    def edit(data: Json) -> None:
        for choice in data["choices"]:
            choice[key] = value(choice) if callable(value) else value

    return edit


def _in_deltas(edit: Any) -> Any:
    def change(data: Json) -> None:
        for choice in data["choices"]:
            edit(choice["delta"])

    return change


def _in_calls(edit: Any) -> Any:
    return _in_deltas(lambda delta: [edit(call) for call in delta.get("tool_calls", ())])


def _twice(result: list[Any]) -> list[Any]:
    return [*result, *result]


def _swallowing(kind: type) -> Any:
    """Every third event of the kind is lost."""
    numbers = count(1)
    original = ChatStream.feed

    def feed(self: ChatStream, event: Any) -> list[SseFrame]:
        lost = isinstance(event, kind) and next(numbers) % 3 == 0
        return [] if lost else original(self, event)

    return feed


def _finish_twice(original: Any = ChatStream.feed) -> Any:
    def feed(self: ChatStream, event: Any) -> list[SseFrame]:
        made: list[SseFrame] = original(self, event)
        return _twice(made) if isinstance(event, Finish) else made

    return feed


CHAT_BREAKS = [
    before("chat: the index counts chunks", STREAM, ChatStream, "_chunk", _chat_index()),
    after("chat: choice 1 opens before choice 0", "openai-chat/choices", ChatStream, "open", lambda f: f[::-1]),
    after("chat: no opening delta", STREAM, ChatStream, "open", lambda _: []),
    frames(
        "chat: the role in every delta", STREAM, ChatStream, "_chunk", _in_deltas(lambda d: d.update(role="assistant"))
    ),
    frames(
        "chat: finish_reason '' for null",
        STREAM,
        ChatStream,
        "_chunk",
        _in_choices("finish_reason", lambda c: c["finish_reason"] or ""),
    ),
    instead("chat: two chunks with a finish_reason", STREAM, ChatStream, "feed", _finish_twice()),
    after("chat: no [DONE]", STREAM, ChatStream, "close", lambda f: f[:-1]),
    after("chat: [DONE] twice", STREAM, ChatStream, "close", lambda f: [*f, f[-1]]),
    after("chat: no usage chunk", STREAM, ChatStream, "close", lambda f: f[-1:]),
    frames(
        "chat: the usage chunk lacks choices",
        STREAM,
        ChatStream,
        "_chunk",
        lambda d: None if d["choices"] else d.pop("choices") and None,
    ),
    frames(
        "chat: usage is missing, not null, before the end",
        STREAM,
        ChatStream,
        "_chunk",
        lambda d: d.pop("usage", None) and None if d["choices"] else None,
    ),
    frames(
        "chat: a new id in every chunk",
        STREAM,
        ChatStream,
        "_chunk",
        lambda d: d.update(id=f"chatcmpl-{id(d)}-{len(str(d))}"),
    ),
    frames(
        "chat: chunks say chat.completion", STREAM, ChatStream, "_chunk", lambda d: d.update(object="chat.completion")
    ),
    after("chat: chunks have an event name", STREAM, ChatStream, "_chunk", lambda f: SseFrame(f.data, "message")),
    instead("chat: text is lost", STREAM, ChatStream, "feed", _swallowing(TextDelta)),
    frames(
        "chat: calls are numbered from 1",
        "openai-chat/tools",
        ChatStream,
        "_chunk",
        _in_calls(lambda c: c.update(index=c["index"] + 1)),
    ),
    frames(
        "chat: ids of calls are null",
        "openai-chat/tools",
        ChatStream,
        "_chunk",
        _in_calls(lambda c: c.update(id=None) if "id" in c else None),
    ),
    frames(
        "chat: the name in every delta of a call",
        "openai-chat/tools",
        ChatStream,
        "_chunk",
        _in_calls(lambda c: c["function"].update(name="get_weather")),
    ),
    frames(
        "chat: calls lack their type",
        "openai-chat/tools",
        ChatStream,
        "_chunk",
        _in_calls(lambda c: c.pop("type", None)),
    ),
    frames(
        "chat: arguments are doubled",
        "openai-chat/tools",
        ChatStream,
        "_chunk",
        _in_calls(lambda c: c["function"].update(arguments=c["function"]["arguments"] * 2)),
    ),
    after(
        "chat: arguments are an object",
        "openai-chat/tools",
        openai_chat_reply._ChatCall,
        "body",
        lambda c: c["function"].update(arguments={}),
    ),
    instead(
        "chat: length is told as stop",
        "openai-chat/limits",
        openai_chat_reply,
        "finish_reason",
        lambda event, named: "stop",
    ),
    instead(
        "chat: a call ends with stop",
        "openai-chat/tools",
        openai_chat_reply,
        "finish_reason",
        lambda event, named: "length" if event.reason == "length" else "stop",
    ),
    after("chat: the key refusal is missing", "openai-chat/reply", openai_chat_reply, "_message", without("refusal")),
    after("chat: content is null", CHAT, openai_chat_reply, "_message", lambda m: m.update(content=None)),
    after("chat: the key logprobs is missing", "openai-chat/reply", ChatFold, "_choice", without("logprobs")),
    after("chat: every choice has index 0", "openai-chat/choices", ChatFold, "_choice", lambda c: c.update(index=0)),
    after(
        "chat: total_tokens is the prompt's",
        "openai-chat/reply",
        openai_chat_reply,
        "usage_body",
        lambda u: u.update(total_tokens=u["prompt_tokens"]),
    ),
    after(
        "chat: no usage details", "openai-chat/reply", openai_chat_reply, "usage_body", without("prompt_tokens_details")
    ),
    after("chat: created is a string", "openai-chat/reply", ChatFold, "body", lambda b: b.update(created="now")),
    after("chat: no name of the model", "openai-chat/reply", ChatFold, "body", lambda b: b.update(model="")),
    instead(
        "chat: top_logprobs is null",
        "openai-chat/logprobs",
        openai_chat_reply,
        "logprob_body",
        lambda entry: {
            "token": entry.data.decode("utf-8", "replace"),
            "logprob": entry.logprob,
            "bytes": list(entry.data),
            "top_logprobs": None,
        },
    ),
    instead(
        "chat: tokens are raw vocabulary",
        "openai-chat/logprobs",
        openai_chat_reply,
        "logprob_body",
        lambda entry: {
            "token": "\u0120" + entry.data.decode("utf-8", "replace"),
            "logprob": entry.logprob,
            "bytes": None,
            "top_logprobs": [],
        },
    ),
    instead("chat: stop strings are ignored", "openai-chat/stop", openai_chat_request, "stop_of", lambda value: ()),
    instead(
        "chat: the grammar of a tool binds nothing",
        "openai-chat/custom",
        enforce,
        "_with_input_grammar",
        lambda parameters, grammar: dict(parameters),
    ),
    instead("chat: max_tokens is ignored", "openai-chat/limits", openai_chat_request, "_LIMITS", ()),
    instead(
        "chat: sampling is ignored",
        CHAT,
        openai_chat_request,
        "sampling_of",
        lambda body: sampling(temperature=2.0),
    ),
]
