"""One streamed request over a connection of its own, with the time of each event."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools


@dataclass(slots=True)
class Timing:
    """What one client saw. Times are seconds behind the moment of asking."""

    shape: str
    asked_at_s: float
    """Behind the run's start."""
    status: int = 0
    error: str = ""
    first_token_s: float | None = None
    """None where nothing was written (an embedding, an error)."""
    end_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    """Between one event with text and the next."""
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.error

    @property
    def per_token_s(self) -> float | None:
        """Time per output token behind the first (TPOT); None for answers of less than two tokens."""
        if self.first_token_s is None or self.n_output < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.n_output - 1)


class BenchTarget:
    """Where requests go: a base URL with or without /v1, a key, a model."""

    def __init__(self, url: str, key: str, model: str, timeout_s: float) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._key, self.model, self.timeout_s = key, model, timeout_s

    def head(self, method: str, path: str, n_bytes: int) -> bytes:
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"host: {self._host}:{self._port}", "connection: close"]
        lines += ["content-type: application/json", f"content-length: {n_bytes}"]
        lines += [f"authorization: Bearer {self._key}"] if self._key else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls)

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body; status 0 where there is no answer."""
        reader = _TimedReply(lambda _: None)
        try:
            async with asyncio.timeout(10):
                await self._run(self.head("GET", path, 0), reader)
        except (OSError, TimeoutError, httptools.HttpParserError):
            return 0, b""
        return reader.status, bytes(reader.body)

    async def _run(self, sent: bytes, reply: _TimedReply) -> None:
        incoming, outgoing = await self.open()
        try:
            outgoing.write(sent)
            while not reply.complete and (data := await incoming.read(65536)):
                reply.feed(data)
        finally:
            outgoing.close()

    async def ask(self, path: str, body: dict[str, Any], timing: Timing) -> None:
        """Fills in `timing`; never raises for what the server does."""
        payload = json.dumps({"model": self.model, **body}).encode()
        begin = time.perf_counter()
        events = _Events(timing, begin)
        reply = _TimedReply(events.feed)
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._run(self.head("POST", path, len(payload)) + payload, reply)
        except TimeoutError:
            timing.error = f"no end after {self.timeout_s:g} s"
        except (OSError, httptools.HttpParserError) as wrong:
            timing.error = str(wrong) or type(wrong).__name__
        timing.end_s = time.perf_counter() - begin
        timing.status = reply.status
        if not timing.error:
            timing.error = _fault(reply, events, streamed=bool(body.get("stream")))
        if timing.ok and not body.get("stream"):
            _take_usage(timing, json.loads(reply.body or b"{}").get("usage"))


def _fault(reply: _TimedReply, events: _Events, *, streamed: bool) -> str:
    if not reply.complete:
        return "the reply was cut off"
    if reply.status != 200:
        return reply.body[:200].decode(errors="replace")
    if streamed and not events.done:
        return events.error or "the stream has no [DONE]"
    return events.error


class _TimedReply:
    """Callbacks of the parser. Owner of status and body."""

    def __init__(self, on_data: Any) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._on_data = on_data
        self.status = 0
        self.body = bytearray()
        self.complete = False

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if len(self.body) < 1 << 22:
            self.body += data
        if self.status == 200:
            self._on_data(data)

    def on_message_complete(self) -> None:
        self.complete = True


class _Events:
    """Server-sent events as they arrive: when text came, and the usage that the last ones tell."""

    def __init__(self, timing: Timing, begin: float) -> None:
        self._timing, self._begin = timing, begin
        self._rest = b""
        self._last_s: float | None = None
        self.done = False
        self.error = ""

    def feed(self, data: bytes) -> None:
        now = time.perf_counter() - self._begin
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            self.error = "an event is no JSON"
            return
        if "error" in event:
            self.error = str(event["error"])[:200]
        _take_usage(self._timing, event.get("usage"))
        if any(_writes(choice) for choice in event.get("choices") or []):
            if self._last_s is None:
                self._timing.first_token_s = now
            else:
                self._timing.gaps_s.append(now - self._last_s)
            self._last_s = now


def _writes(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    names = ("content", "reasoning_content", "reasoning", "tool_calls")
    return any(delta.get(name) for name in names) or bool(choice.get("text"))


def _take_usage(timing: Timing, usage: Any) -> None:
    if isinstance(usage, dict):
        timing.n_prompt = int(usage.get("prompt_tokens") or 0)
        timing.n_output = int(usage.get("completion_tokens") or 0)
        details = usage.get("prompt_tokens_details") or {}
        timing.n_cached = int(details.get("cached_tokens") or 0)
