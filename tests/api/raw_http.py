"""Requests written byte by byte, for what no HTTP library would send."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def connect(url: str, timeout: float = 10) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    return socket.create_connection((parts.hostname, parts.port), timeout=timeout)


def head(path: str = CHAT, *fields: str, method: str = "POST", version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "host: localhost", *fields, "", ""]).encode()


def posted(body: Any, *fields: str, path: str = CHAT, version: str = "1.1") -> bytes:
    """A whole request with a JSON body."""
    data = json.dumps(body).encode()
    sized = head(path, "content-type: application/json", f"content-length: {len(data)}", *fields, version=version)
    return sized + data


def to_end(sock: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    try:
        while part := sock.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def answer(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer with a content-length: status, headers, body. What comes behind it is left for the next call."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += _received(sock, 1, head)
    first, *fields = head[:-4].decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in fields)
    body, n_bytes = b"", int(headers.get("content-length", "0"))
    while len(body) < n_bytes:
        body += _received(sock, n_bytes - len(body), head)
    return int(first.split()[1]), headers, body


def _received(sock: socket.socket, at_most: int, before: bytes) -> bytes:
    part = sock.recv(at_most)
    assert part, f"the connection ended after {before!r}"
    return part
