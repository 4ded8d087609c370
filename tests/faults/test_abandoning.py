"""Clients that leave at every stage, that read slowly or not at all, and sockets that say nothing."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from imp_server.api import server

from tests.api.live_server import LiveServer
from tests.api.raw_http import connect, posted
from tests.faults.storm import LIMIT_S, Ask, fulfil, left, storm, storm_server, truths, until_peace
from tests.faults.watched import taken

pytestmark = pytest.mark.timeout(300)
CHAT = "/v1/chat/completions"
GONE_S = 0.25
"""In which work ends whose client has left."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with storm_server(tmp_path_factory.mktemp("model"), scheduler__max_rows=2) as live:
        yield live


def body(n_prompt: int = 4, n_tokens: int = 3000, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "x " * n_prompt}
    own = {"model": "tiny", "messages": [message], "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0}
    return own | more


STREAMED, WHOLE = posted(body(stream=True)), posted(body())
LONG = posted(body(1500, stream=True))
SHOWN = b"\r\n\r\n"


def received(sock: socket.socket, until: bytes) -> bytes:
    data = b""
    while until not in data:
        part = sock.recv(1 << 16)
        assert part, data
        data += part
    return data


def in_flight(live: LiveServer, n: int) -> Callable[[socket.socket], None]:
    """The server works on so many."""

    def wait(_: socket.socket) -> None:
        end = time.monotonic() + 20
        while left(live).replies < n:
            assert time.monotonic() < end
            time.sleep(0.005)

    return wait


def shows(until: bytes) -> Callable[[socket.socket], None]:
    def wait(sock: socket.socket) -> None:
        received(sock, until)

    return wait


def at_once(_: socket.socket) -> None:
    pass


STAGES: dict[str, tuple[bytes, str]] = {
    "connected": (b"", "at once"),
    "in the head": (STREAMED[:40], "at once"),
    "behind the head": (STREAMED[: STREAMED.index(SHOWN) + 4], "at once"),
    "in the body": (STREAMED[:-10], "at once"),
    "behind the body": (STREAMED, "at once"),
    "whole, behind the body": (WHOLE, "at once"),
    "in prefill": (LONG, "in flight"),
    "whole, in the answer": (WHOLE, "in flight"),
    "behind the reply's head": (STREAMED, "head"),
    "behind the first token": (STREAMED, "token"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_who_leaves_at_any_stage_leaves_nothing(live: LiveServer, stage: str) -> None:
    data, point = STAGES[stage]
    before = until_peace(live, left(live))
    with ExitStack() as sockets:
        some = [sockets.enter_context(connect(live.url)) for _ in range(2)]
        for sock in some:
            sock.sendall(data)
        for sock in some:
            if point == "in flight":
                in_flight(live, 2)(sock)
            elif point != "at once":
                received(sock, SHOWN if point == "head" else b'"content":')
    gone_s = time.monotonic()
    until_peace(live, before)
    took_s = time.monotonic() - gone_s
    print(f"\nleft {stage}: all free after {1000 * took_s:.0f} ms")


@pytest.mark.parametrize("streamed", [False, True])
def test_work_ends_within_a_quarter_of_a_second(live: LiveServer, streamed: bool) -> None:
    """Rows that are answered and requests that wait for one: by the engine's own count."""
    data = STREAMED if streamed else WHOLE
    before = until_peace(live, left(live))
    seen: list[float] = []
    for _ in range(5):
        with ExitStack() as sockets:
            for _ in range(5):  # two have rows, three wait
                sockets.enter_context(connect(live.url)).sendall(data)
            end = time.monotonic() + 20
            while (now := left(live)).rows < 2 or now.waiting < 3:
                assert time.monotonic() < end, now
        gone_s = time.monotonic()
        while (now := left(live)).rows or now.waiting or now.blocks_held:
            assert time.monotonic() < gone_s + 10, now
        seen.append(time.monotonic() - gone_s)
        if seen[-1] < GONE_S:
            break
    print(f"\nwork of five clients ended after {1000 * min(seen):.0f} ms")
    assert min(seen) < GONE_S, seen
    until_peace(live, before)


def test_clients_that_leave_at_random_moments(live: LiveServer) -> None:
    chance = random.Random(7)
    before = until_peace(live, left(live))
    for _ in range(40):
        data = chance.choice((STREAMED, WHOLE, LONG))
        with connect(live.url) as sock:
            sock.sendall(data[: chance.randrange(1, len(data) + 1)] if chance.random() < 0.3 else data)
            time.sleep(chance.uniform(0.0, 0.1))
            if chance.random() < 0.3:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # reset, not end
    until_peace(live, before)
    assert httpx.post(live.url + CHAT, json=body(n_tokens=3), timeout=LIMIT_S).status_code == 200


def deaf(url: str) -> socket.socket:
    """A connection whose client's buffers take little; what is sent to it piles up on the server's side."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.settimeout(60)
    parts = urlsplit(url)
    sock.connect((parts.hostname, parts.port))
    return sock


WIDE: dict[str, Any] = {"stream": True, "logprobs": True, "top_logprobs": 20}
"""Events of two KiB each."""


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes little of what the server sends, or an answer of megabytes would be sent at once."""
    listen = server._listen

    def small(*args: Any, **more: Any) -> socket.socket:
        sock = listen(*args, **more)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # those that it accepts inherit it
        return sock

    monkeypatch.setattr(server, "_listen", small)


@pytest.mark.slow
@pytest.mark.usefixtures("small_buffers")
def test_a_slow_reader_holds_nobody_up_and_gets_every_byte(tmp_path: Path) -> None:
    """Its row ends long before it has read what that wrote."""
    asked = Ask("chat stream", 3, 300)
    with storm_server(tmp_path) as live:
        right = truths(live.url, [asked])[asked]
        before, n_mib = until_peace(live, left(live)), taken(os.getpid()).api_mib
        with deaf(live.url) as sock:
            sock.sendall(posted(asked.body() | WIDE, path=CHAT))
            in_flight(live, 1)(sock)
            end = time.monotonic() + 90
            while (now := left(live)).rows or now.waiting:
                assert time.monotonic() < end, "the engine must not wait for a reader"
                time.sleep(0.05)
            others = storm(live.url, [Ask("chat", 1, 8)] * 4, 2)
            assert all(one.is_whole for one in others)
            assert taken(os.getpid()).api_mib < n_mib + 64
            text = ""
            for line in received(sock, b"[DONE]").split(b"\n"):
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
            assert text == right
        until_peace(live, before)


@pytest.mark.slow
@pytest.mark.usefixtures("small_buffers")
def test_who_reads_nothing_is_given_up(tmp_path: Path) -> None:
    with storm_server(tmp_path, server__send_timeout_s=1.0) as live:
        before = until_peace(live, left(live))
        with deaf(live.url) as sock:
            sock.sendall(posted(Ask("chat stream", 3, 400).body() | WIDE, path=CHAT))
            in_flight(live, 1)(sock)
            end = time.monotonic() + 60
            while (now := left(live)).connections:
                assert time.monotonic() < end, now
                time.sleep(0.05)
            assert not (now.rows or now.places or now.replies)
        until_peace(live, before)


@pytest.mark.slow
def test_half_open_sockets_are_closed_and_keep_nobody_out(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "server__head_timeout_s": 1.0,
        "server__body_timeout_s": 1.0,
        "server__max_connections": 40,
    }
    with storm_server(tmp_path, **settings) as live:
        before = until_peace(live, left(live))
        with ExitStack() as sockets:
            parts = (b"", STREAMED[:30], STREAMED[:-10])
            for i in range(120):
                sock = sockets.enter_context(connect(live.url))
                sock.sendall(parts[i % 3])
                if i % 20 == 19:
                    assert httpx.get(live.url + "/health", timeout=10).status_code == 200
            assert len(live.services.admission.connections) <= 40
            assert fulfil(httpx.Client(base_url=live.url, timeout=LIMIT_S), Ask("chat", 1, 4)).is_whole
            end = time.monotonic() + 20
            while left(live).connections > 1:
                assert time.monotonic() < end, "they must be closed although nobody closes them"
                time.sleep(0.05)
        until_peace(live, before)
