"""One HTTP exchange with the target, kept exactly: status, headers, body and server-sent events."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from imp_server.conformance.boxes import MISSING, box


@dataclass(slots=True)
class SseEvent:
    """One server-sent event."""

    event: str | None
    data: str
    json: Any = MISSING
    """Boxed payload; MISSING if it isn't JSON."""


@dataclass(slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    content: bytes
    frames: list[SseEvent] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    json: Any = MISSING
    took_s: float = 0.0
    broken: str = ""
    """Why there is no answer (then status is 0), or why its body could not be read to its end."""


class ByteSource(Protocol):
    """What a body is read from: a connection, or bytes kept from one."""

    def read(self) -> bytes: ...
    def readline(self) -> bytes: ...


class Sender(Protocol):
    """What cases need of a target: one request, one reply."""

    def send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: dict[str, str],
        auth: bool = True,
        hang_up_after: int = -1,
    ) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Target:
    """The server under test."""

    url: str
    key: str = ""
    timeout_s: float = 60.0

    def send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: dict[str, str],
        auth: bool = True,
        hang_up_after: int = -1,
    ) -> Reply:
        """Send one request on a fresh connection. A target that doesn't answer gives status 0 and the reason."""
        parts = urlsplit(self.url if "//" in self.url else f"http://{self.url}")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=self.timeout_s)
        sent = {k: v for k, v in headers.items() if v != ""}
        if auth and self.key:
            sent.setdefault("authorization", f"Bearer {self.key}")
        try:
            start = time.monotonic()
            connection.request(method, parts.path.rstrip("/") + path, body=body, headers=sent)
            return _read(connection.getresponse(), start, hang_up_after)
        except (OSError, http.client.HTTPException) as error:
            return Reply(0, {}, b"", broken=f"no answer: {str(error) or type(error).__name__}")
        finally:
            connection.close()


def _read(response: http.client.HTTPResponse, start: float, hang_up_after: int) -> Reply:
    return read_reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response, start, hang_up_after)


def read_reply(
    status: int, headers: dict[str, str], response: ByteSource, start: float = 0.0, hang_up_after: int = -1
) -> Reply:
    """The reply whose body `response` yields. `start`: of the request, on the monotonic clock."""
    reply = Reply(status, headers, b"")
    try:
        if headers.get("content-type", "").startswith("text/event-stream"):
            _read_events(response, reply, hang_up_after)
        else:
            reply.content = response.read()
            reply.json = _parse(reply.content.decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        reply.broken = f"{type(error).__name__}: {error}"
    reply.took_s = time.monotonic() - start
    return reply


def _read_events(response: ByteSource, reply: Reply, hang_up_after: int) -> None:
    event: str | None = None
    data: list[str] = []
    while line := response.readline():
        reply.content += line
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not text:
            if data or event is not None:
                payload = "\n".join(data)
                reply.frames.append(SseEvent(event, payload, _parse(payload)))
            event, data = None, []
            if 0 <= hang_up_after <= len(reply.frames):
                return
        elif text.startswith(":"):
            reply.comments.append(text[1:].strip())
        else:
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                event = value
            elif name == "data":
                data.append(value)


def _parse(text: str) -> Any:
    try:
        return box(json.loads(text))
    except (ValueError, RecursionError):
        return MISSING
