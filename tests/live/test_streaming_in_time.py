"""Streams really stream, in every dialect: the opening before prefill ends, each piece before the next is released."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.engine.client.scripted import ScriptGate, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server

HI = [{"role": "user", "content": "hi"}]
DIALECTS: dict[str, tuple[dict[str, Any], bool]] = {
    "/v1/chat/completions": ({"model": "toy", "messages": HI}, True),
    "/v1/completions": ({"model": "toy", "prompt": "hi"}, True),
    "/v1/responses": ({"model": "toy", "input": "hi"}, True),
    "/v1/messages": ({"model": "toy", "messages": HI, "max_tokens": 99}, True),
    "/completion": ({"prompt": "hi"}, False),
    "/generate_stream": ({"inputs": "hi"}, False),
}
"""Path -> (body, does the dialect open a stream before it has a token?)."""
PIECES = ("first", "second", "third")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server() as live:
        yield live


def until(lines: Iterator[str], piece: str) -> None:
    """Reads on until the piece has come, whatever carries it and however it is cut."""
    seen = ""
    for line in lines:
        if line.startswith("data: {"):
            seen += "".join(texts(json.loads(line[6:])))
            if piece in seen:
                return
    pytest.fail(f"the stream ended without {piece!r}: {seen}")


def texts(value: Any) -> Iterator[str]:
    """Every new text in an event; whole texts so far are left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key in {"choices", "delta", "content", "text", "token"}:
                yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", DIALECTS)
def test_nothing_waits_for_what_comes_later(server: LiveServer, path: str) -> None:
    body, opens = DIALECTS[path]
    gates = [server.on_loop(asyncio.Event) for _ in range(4)]
    script = [
        action for gate, piece in zip(gates, PIECES, strict=False) for action in (ScriptGate(gate), text_ids(piece))
    ]
    server.engine.play(*script, ScriptGate(gates[-1]))
    with httpx.stream("POST", server.url + path, json=body | {"stream": True}, timeout=10) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()
        if opens:
            next(line for line in lines if line.startswith("data: {"))
        for gate, piece in zip(gates, PIECES, strict=False):
            server.on_loop(gate.set)
            until(lines, piece)
        server.on_loop(gates[-1].set)
        assert [line for line in lines if line.startswith("data: ")]
