"""What the tests of resumable streams share: posts that survive, readers, and waiting for something to be so."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx
from imp_server.engine.client.script import Action
from imp_server.engine.client.scripted import ScriptGate, Wait, text_ids

from tests.api import raw_http
from tests.api.live_server import LiveServer

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
DIALECTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "stream": True},
    "/v1/completions": {"prompt": "hi", "stream": True},
    "/v1/responses": {"input": "hi", "stream": True},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 64, "stream": True},
    "/completion": {"prompt": "hi", "stream": True},
    "/generate_stream": {"inputs": "hi"},
    "/": {"inputs": "hi", "stream": True},
}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "toy", "messages": MESSAGES, "stream": True, **fields}


def post(server: LiveServer, name: str, path: str = CHAT, **fields: Any) -> httpx.Response:
    """The whole answer."""
    asked = {"model": "toy"} | DIALECTS[path] | fields
    return httpx.post(server.url + path, json=asked, headers={"x-conversation-id": name}, timeout=20)


@contextmanager
def attached(server: LiveServer, name: str, **fields: Any) -> Iterator[httpx.Response]:
    """A stream whose client stays until the end of the block."""
    headers = {"x-conversation-id": name}
    with httpx.stream("POST", server.url + CHAT, json=body(**fields), headers=headers, timeout=20) as response:
        yield response


def begin(server: LiveServer, name: str, path: str = CHAT, **more: Any) -> socket.socket:
    """Sends the request and waits for nothing."""
    sock = raw_http.connect(server.url)
    sock.sendall(raw_http.posted(body(**more), f"x-conversation-id: {name}", path=path))
    return sock


def leave_behind(server: LiveServer, name: str, **more: Any) -> None:
    """A stream that has been accepted and whose client has gone."""
    sock = begin(server, name, **more)
    sock.recv(1)
    sock.close()


def url(server: LiveServer, name: str) -> str:
    return f"{server.url}/v1/stream/{quote(name, safe='')}"


def read(server: LiveServer, name: str, **query: Any) -> httpx.Response:
    return httpx.get(url(server, name), params=query, timeout=20)


def stop(server: LiveServer, name: str) -> int:
    return httpx.delete(url(server, name), timeout=20).status_code


def look_up(server: LiveServer, *names: str) -> list[dict[str, Any]]:
    reply = httpx.post(f"{server.url}/v1/streams/lookup", json={"conversation_ids": names}, timeout=20)
    assert reply.status_code == 200, reply.text
    rows: list[dict[str, Any]] = reply.json()
    return rows


def until(condition: Callable[[], Any], seconds: float = 5) -> float:
    """Seconds until the condition held."""
    start = time.perf_counter()
    while not condition():
        assert time.perf_counter() - start < seconds, "it didn't happen in time"
        time.sleep(0.005)
    return time.perf_counter() - start


def endless(n: int = 2000, seconds: float = 0.01) -> list[Any]:
    return [action for _ in range(n) for action in (*text_ids("x"), Wait(seconds))]


def gated(server: LiveServer, *texts: str) -> list[Any]:
    """Plays the texts with a gate before each; returns their events."""
    events = [server.on_loop(asyncio.Event) for _ in texts]
    actions: list[Action] = []
    for event, text in zip(events, texts):
        actions += [ScriptGate(event), *text_ids(text)]
    server.engine.play(*actions)
    return events


def code_of(response: httpx.Response) -> str:
    found: str = response.json()["error"]["code"]
    return found
