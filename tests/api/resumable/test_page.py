"""The client on the page, taken from it: 30 lines that get every byte through a network that breaks all the time."""

from __future__ import annotations

import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from imp_server.core import EngineFaulted
from imp_server.engine.client.scripted import Fail, text_ids

from tests.api.resumable.streams import MESSAGES, endless, read
from tests.live.toy_server import toy_server

PAGE = Path(__file__).parents[3] / "docs" / "resumable-streams.md"


def code() -> str:
    (found,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert isinstance(found, str)
    return found


def client() -> Callable[..., None]:
    import time
    from types import SimpleNamespace

    names: dict[str, Any] = {}
    exec(compile(code(), str(PAGE), "exec"), names)
    names["time"] = SimpleNamespace(sleep=lambda s: time.sleep(s / 50))
    chat: Callable[..., None] = names["chat"]
    return chat


@contextmanager
def bad_network(url: str, seed: int) -> Iterator[tuple[str, list[int]]]:
    """A proxy that breaks each connection after some bytes, or lets it pass; the base URL, and what was let through."""
    rng, target, passed = random.Random(seed), urlsplit(url), []
    listener = socket.create_server(("127.0.0.1", 0))

    def forward(near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while part := near.recv(1 << 16):
                far.sendall(part)

    def serve(near: socket.socket) -> None:
        with near, socket.create_connection((target.hostname, target.port)) as far:
            threading.Thread(target=forward, args=(near, far), daemon=True).start()
            left = rng.choice([1, 300, 500, 900, 1500, 4000, 1 << 30])
            passed.append(left)
            while left > 0 and (part := far.recv(min(left, 700))):
                near.sendall(part)
                left -= len(part)
            for end in (near, far):  # the other thread still reads: closing alone would say nothing
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(near,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", passed
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_it_has_no_more_than_thirty_lines() -> None:
    lines = [line for line in code().splitlines() if line.strip()]
    assert len(lines) <= 30, len(lines)


@pytest.mark.parametrize("seed", range(6))
def test_it_gets_every_event_once(seed: int) -> None:
    with toy_server() as live, bad_network(live.url, seed) as (base, passed):
        live.engine.play(*endless(40, 0.002))
        got: list[bytes] = []
        client()(base, "k", f"page/{seed}", {"model": "toy", "messages": MESSAGES, "max_tokens": 40}, got.append)
        whole = read(live, f"page/{seed}").content
        assert b"".join(got) + b"data: [DONE]\n\n" == whole
    assert passed


def test_it_tells_of_an_error_and_ends() -> None:
    with toy_server() as live:
        live.engine.play(*text_ids("so far"), Fail(EngineFaulted("step failed")))
        got: list[bytes] = []
        client()(live.url, "k", "error", {"model": "toy", "messages": MESSAGES}, got.append)
        assert b"engine_step_failed" in got[-1] and b"".join(got) == read(live, "error").content
