"""Answers for `imp chat --url`: from any server that speaks OpenAI Chat Completions."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from imp_server.cli._chat_answer import ChatAnswer, Write
from imp_server.core import (
    ChatRequest,
    ConfigError,
    ContextLengthExceeded,
    ImpError,
    Message,
    SamplingIntent,
    TextPart,
    UserFault,
)

SILENCE_S = 600.0
"""How long a server may say nothing before we give up: a long prompt on a slow machine takes minutes."""


@dataclass(frozen=True, slots=True)
class ServerModel:
    """A model behind a URL. Each answer takes a connection of its own, so closing it is how one is stopped."""

    url: str
    key: str
    model: str

    @classmethod
    def connect(cls, url: str, key: str, model: str) -> ServerModel:
        """`url` with or without a scheme and /v1. Without `model` the first that the server lists. Raises UserFault."""
        found = cls(_base(url), key, model)
        if model:
            return found
        models = found.models()
        if not models:
            raise UserFault(f"{found.url} lists no model; name one: imp chat --url {found.url} MODEL")
        return cls(found.url, key, str(models[0]["id"]))

    def answer(self, request: ChatRequest, write: Write) -> ChatAnswer:
        """Runs `request` to its end or to Ctrl-C. Raises UserFault."""
        result = ChatAnswer(exact=False)
        started = time.perf_counter()
        try:
            with self._reply("POST", "/v1/chat/completions", _body(self.model, request)) as response:
                for chunk in _chunks(response, self.url):
                    _take(chunk, result, write, time.perf_counter() - started)
        except KeyboardInterrupt:
            result.stopped = True
        return result

    def models(self) -> list[dict[str, Any]]:
        """What the server lists: objects with an `id`. Raises UserFault."""
        with self._reply("GET", "/v1/models") as response:
            try:
                found = json.loads(response.read())["data"]
                return [entry for entry in found if isinstance(entry["id"], str)]
            except (ValueError, LookupError, TypeError):
                raise UserFault(f"{self.url} lists no models as OpenAI's API does") from None

    @contextmanager
    def _reply(self, method: str, path: str, body: dict[str, Any] | None = None) -> Iterator[http.client.HTTPResponse]:
        """A reply with status 200. Raises UserFault."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=SILENCE_S)
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self.key}"} if self.key else {})
        try:
            with _told(self.url):
                connection.request(method, parts.path + path, json.dumps(body).encode() if body else None, headers)
                response = connection.getresponse()
                if response.status != 200:
                    raise _refusal(response.status, response.read())
            yield response
        finally:
            connection.close()


def listed_models(url: str, key: str) -> list[dict[str, Any]]:
    """What the server at `url` lists: objects with an `id`. Raises UserFault."""
    return ServerModel(_base(url), key, "").models()


def _base(url: str) -> str:
    """`url` with a scheme and without /v1. Raises ConfigError."""
    base = (url if "//" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    parts = urlsplit(base)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"--url {url} is no address: give it as http://127.0.0.1:8080")
    return base


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Failures of the connection as a UserFault."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserFault(f"no answer from {url}: {why}; is a server running there? `imp serve` starts one") from None


def _refusal(status: int, body: bytes) -> ImpError:
    """ContextLengthExceeded where the conversation is too long, in OpenAI's words or llama.cpp's."""
    if status == 400 and (b"context_length_exceeded" in body or b"exceed_context_size" in body):
        return ContextLengthExceeded(_reason(body))
    return UserFault(f"the server says {status}: {_reason(body)}")


def _body(model: str, request: ChatRequest) -> dict[str, Any]:
    """Only what was asked for, so that servers with fewer fields than ours serve it, too."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_plain(message) for message in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    unset = msgspec.structs.asdict(SamplingIntent())
    sampling = msgspec.structs.asdict(request.sampling)
    body |= sampling.pop("asked")
    body |= {name: value for name, value in sampling.items() if value != unset[name]}
    if request.output.max_tokens is not None:
        body["max_tokens"] = request.output.max_tokens
    if request.reasoning.enabled is not None:
        body["chat_template_kwargs"] = {"enable_thinking": request.reasoning.enabled}
    return body


def _plain(message: Message) -> dict[str, Any]:
    plain = {"role": message.role, "content": "".join(p.text for p in message.parts if isinstance(p, TextPart))}
    return {**plain, "reasoning_content": message.reasoning} if message.reasoning else plain


def _chunks(response: http.client.HTTPResponse, url: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of an event stream, up to [DONE]. A stream that ends without it was cut off."""
    while True:
        with _told(url):
            line = response.readline()
        if not line:
            raise UserFault("the server's answer breaks off")
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.strip()
        if name == "data" and value == "[DONE]":
            return
        if name == "data":
            yield _chunk(value)
        elif name == "error":  # llama.cpp's own frame
            raise UserFault(f"the server says: {_reason(value.encode())}")


def _chunk(text: str) -> dict[str, Any]:
    try:
        chunk = json.loads(text)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise UserFault(f"the server sent what is no chat completion: {text[:100]}")
    if "error" in chunk:
        raise UserFault(f"the server says: {_reason(text.encode())}")
    return chunk


def _take(chunk: dict[str, Any], result: ChatAnswer, write: Write, now: float) -> None:
    if usage := chunk.get("usage"):
        result.exact = True
        result.tokens = usage.get("completion_tokens") or result.tokens
        result.prompt_tokens = usage.get("prompt_tokens") or 0
        result.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        content = delta.get("content") or ""
        if reasoning or content:
            result.first_s = result.first_s or now
            result.total_s = now
            result.tokens += 1
        if reasoning:
            result.reasoning += reasoning
            write(reasoning, True)
        if content:
            result.text += content
            write(content, False)
        result.finish = choice.get("finish_reason") or result.finish


def _reason(body: bytes) -> str:
    """The message of an error in OpenAI's shape, else the beginning of what came."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        return body[:200].decode("utf-8", "replace").strip() or "nothing"
