"""One HTTP exchange with the target, kept exactly: status, headers, body, and server-sent events with their times."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit


class Box:
    """A JSON value with attribute access for expressions: `json.choices[0].delta`. A missing key is MISSING."""

    __slots__ = ("value",)

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        return box(self.value[name]) if name in self.value else MISSING

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self.value

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Box) else other)

    def __hash__(self) -> int:
        return hash(json.dumps(self.value, sort_keys=True))

    def __iter__(self) -> Any:
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return json.dumps(self.value, ensure_ascii=False)


class _Missing:
    """What a missing key evaluates to: falsy, equal to nothing, with every attribute missing as well."""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return self

    def __getitem__(self, name: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "(missing)"


MISSING = _Missing()


def box(value: Any) -> Any:
    """JSON value -> value for expressions."""
    if isinstance(value, dict):
        return Box(value)
    if isinstance(value, list):
        return [box(v) for v in value]
    return value


def unbox(value: Any) -> Any:
    """The inverse of `box`."""
    if isinstance(value, Box):
        return value.value
    if isinstance(value, list | tuple):
        return [unbox(v) for v in value]
    return None if value is MISSING else value


@dataclass(slots=True)
class Frame:
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
    frames: list[Frame] = field(default_factory=list)
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
                reply.frames.append(Frame(event, payload, _parse(payload)))
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
