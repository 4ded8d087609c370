"""One question to a chat server, and what came back: Chat Completions and Anthropic Messages, streamed or whole."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

MAX_BODY = 64 << 20
_UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, http.client.HTTPException, OSError)
"""What a reply of another shape, or a connection that breaks, ends in."""


class Unreachable(Exception):
    """The server can't be asked at all."""


@dataclass(slots=True)
class Answer:
    """What one request brought; `status` other than 200 is a refusal, whose text is `error`."""

    status: int = 0
    error: str = ""
    content: str = ""
    reasoning: str = ""
    finish: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    """A stream ended with its terminator; a whole reply is always done."""
    blocks: list[str] = field(default_factory=list)
    """Types of the content blocks, Anthropic only."""

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.error


class Client:
    """A server at a base URL (with or without /v1), one connection a request."""

    def __init__(self, url: str, key: str = "", timeout_s: float = 300.0) -> None:
        """Raises Unreachable for what is no URL of a server."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
        except ValueError as wrong:
            raise Unreachable(str(wrong)) from None
        if parts.scheme not in ("http", "https"):
            raise Unreachable("its URL must begin with http:// or https://")
        self._https = parts.scheme == "https"
        self._host = parts.netloc
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        if key:
            self._headers |= {"authorization": f"Bearer {key}", "x-api-key": key}
        self._timeout_s = timeout_s

    def get(self, path: str) -> Any:
        """The JSON of `path`, None if it isn't there. Raises Unreachable."""
        with self._exchange("GET", path, None) as reply:
            body = reply.read(MAX_BODY)
            if reply.status != 200:
                return None
            try:
                return json.loads(body)
            except ValueError:
                return None

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and JSON of the reply; its text where that is none. Raises Unreachable."""
        with self._exchange("POST", path, body) as reply:
            data = reply.read(MAX_BODY)
            try:
                return reply.status, json.loads(data)
            except ValueError:
                return reply.status, data.decode(errors="replace")

    def models(self) -> list[str]:
        listed = self.get("/v1/models")
        data = listed.get("data", []) if isinstance(listed, dict) else []
        return [str(model.get("id", "")) for model in data if isinstance(model, dict)]

    def chat(self, body: dict[str, Any]) -> Answer:
        """Raises Unreachable where there is no answer at all."""
        return self._ask("/v1/chat/completions", body, _chat_stream, _chat_whole)

    def messages(self, body: dict[str, Any]) -> Answer:
        """As `chat`."""
        return self._ask("/v1/messages", body, _messages_stream, _messages_whole)

    def _ask(
        self,
        path: str,
        body: dict[str, Any],
        streamed: Callable[[Iterator[str]], Answer],
        whole: Callable[[dict[str, Any]], Answer],
    ) -> Answer:
        with self._exchange("POST", path, body) as reply:
            if reply.status != 200:
                return Answer(reply.status, error=reply.read(4096).decode(errors="replace"))
            try:
                return streamed(_events(reply)) if body.get("stream") else whole(json.loads(reply.read()))
            except _UNREADABLE as wrong:
                return Answer(200, error=f"the reply can't be read: {type(wrong).__name__}: {wrong}")

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> _Exchange:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        try:
            connection = kind(self._host, timeout=self._timeout_s)
        except http.client.InvalidURL as wrong:
            raise Unreachable(str(wrong)) from None
        try:
            connection.request(
                method, self._prefix + path, json.dumps(body) if body is not None else None, self._headers
            )
            return _Exchange(connection, connection.getresponse())
        except (OSError, http.client.HTTPException) as wrong:
            connection.close()
            raise Unreachable(f"{method} {path}: {wrong or type(wrong).__name__}") from None


class _Exchange:
    """Closes its connection behind the reply."""

    def __init__(self, connection: http.client.HTTPConnection, reply: http.client.HTTPResponse) -> None:
        self._connection, self._reply = connection, reply

    def __enter__(self) -> http.client.HTTPResponse:
        return self._reply

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _events(reply: http.client.HTTPResponse) -> Iterator[str]:
    """The data of each server-sent event."""
    data: list[str] = []
    while line := reply.readline(MAX_BODY):
        text = line.decode("utf-8").rstrip("\r\n")
        if text.startswith("data:"):
            data.append(text[5:].removeprefix(" "))
        elif not text and data:
            yield "\n".join(data)
            data = []


def _chat_whole(reply: dict[str, Any]) -> Answer:
    choice = reply["choices"][0]
    message = choice["message"]
    return Answer(
        200,
        content=message.get("content") or "",
        reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
        finish=choice.get("finish_reason"),
        tool_calls=message.get("tool_calls") or [],
        done=True,
    )


def _chat_stream(events: Iterator[str]) -> Answer:
    answer = Answer(200)
    calls: dict[int, dict[str, Any]] = {}
    for data in events:
        if data == "[DONE]":
            answer.done = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            answer.error = json.dumps(chunk["error"])
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            answer.content += delta.get("content") or ""
            answer.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            answer.finish = choice.get("finish_reason") or answer.finish
            for part in delta.get("tool_calls") or []:
                _join_call(calls.setdefault(part.get("index", 0), {"function": {"name": "", "arguments": ""}}), part)
    answer.tool_calls = [calls[i] for i in sorted(calls)]
    return answer


def _join_call(call: dict[str, Any], part: dict[str, Any]) -> None:
    function = part.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""


def _messages_whole(reply: dict[str, Any]) -> Answer:
    answer = Answer(200, finish=reply.get("stop_reason"), done=True)
    for block in reply["content"]:
        answer.blocks.append(block["type"])
        answer.content += block.get("text") or ""
        answer.reasoning += block.get("thinking") or ""
    return answer


def _messages_stream(events: Iterator[str]) -> Answer:
    answer = Answer(200)
    for data in events:
        event = json.loads(data)
        kind = event.get("type")
        if kind == "content_block_start":
            answer.blocks.append(event["content_block"]["type"])
        elif kind == "content_block_delta":
            answer.content += event["delta"].get("text") or ""
            answer.reasoning += event["delta"].get("thinking") or ""
        elif kind == "message_delta":
            answer.finish = event["delta"].get("stop_reason") or answer.finish
        elif kind == "message_stop":
            answer.done = True
        elif kind == "error":
            answer.error = json.dumps(event.get("error"))
    return answer
