"""What every stream has in common, whichever route it is on: how it opens, and how it ends when the engine fails."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.core import EngineFaulted
from imp_server.engine.client.scripted import Emit, Fail, ScriptGate, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, toy_server

SAID = {"messages": [{"role": "user", "content": "swordfish"}]}
STREAMS: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "swordfish", "stream": True},
    "/v1/completions": {"model": "toy", "prompt": "swordfish", "echo": True, "logprobs": 1, "stream": True},
    "/v1/chat/completions": {"model": "toy", "stream": True, **SAID},
    "/v1/responses": {"model": "toy", "input": "swordfish", "stream": True},
    "/v1/messages": {"model": "toy", "max_tokens": 9, "stream": True, **SAID},
    "/generate_stream": {"inputs": "swordfish"},
}
every_stream = pytest.mark.parametrize("path", list(STREAMS))


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        yield live


@pytest.fixture(scope="module")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=10) as client:
        yield client


def wait_for_rows(server: LiveServer, n_rows: int) -> None:
    deadline = time.monotonic() + 10
    while server.engine.n_running != n_rows:
        assert time.monotonic() < deadline, f"{server.engine.n_running} rows run"
        time.sleep(0.01)


@every_stream
def test_it_is_open_while_its_prompt_is_computed_and_nobody_else_can_read_that(
    server: LiveServer, http: httpx.Client, path: str
) -> None:
    """A client that hears nothing until the first token takes a long prompt for a lost stream."""
    gate = server.on_loop(asyncio.Event)
    server.engine.play(ScriptGate(gate), Emit(text_ids("done")))
    with http.stream("POST", path, json=STREAMS[path]) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        wait_for_rows(server, 1)
        busy = [slot for slot in http.get("/slots").json() if slot["is_processing"]]
        assert len(busy) == 1 and busy[0]["n_prompt_tokens"] > 0
        for probe in ("/slots", "/metrics", "/props", "/health", "/v1/models"):
            assert "swordfish" not in http.get(probe).text
        server.on_loop(gate.set)
        assert "done" in response.read().decode()


@every_stream
def test_what_can_be_refused_is_refused_before_it_opens(http: httpx.Client, path: str) -> None:
    body = json.loads(json.dumps(STREAMS[path]).replace("swordfish", "x" * 40_000))
    refused = http.post(path, json=body)
    assert refused.status_code == (422 if path == "/generate_stream" else 400)
    assert refused.headers["content-type"] == "application/json" and "error" in refused.json()
    assert "maximum context length is 32768 tokens" in refused.text


@every_stream
def test_a_reader_that_leaves_frees_its_row(server: LiveServer, http: httpx.Client, path: str) -> None:
    server.engine.play(ScriptGate(server.on_loop(asyncio.Event)))
    with http.stream("POST", path, json=STREAMS[path]):
        wait_for_rows(server, 1)
    wait_for_rows(server, 0)


@every_stream
def test_a_failure_is_its_last_event_and_neither_text_nor_an_end(
    server: LiveServer, http: httpx.Client, path: str
) -> None:
    server.engine.play(ord("#"), Fail(EngineFaulted("one step failed")))
    text = http.post(path, json=STREAMS[path]).text
    sent = [json.loads(line[5:]) for line in text.replace("data: [DONE]", "").split("\n") if line.startswith("data:")]
    assert any("#" in json.dumps(event) for event in sent[:-1])
    last = sent[-1]["response"] if path == "/v1/responses" else sent[-1]
    assert "one step failed" in json.dumps(last["error"]) and "choices" not in last and "content" not in last
    for event in sent[:-1]:
        assert not event.get("stop") and event.get("type") not in ("message_stop", "response.completed")
        assert all(choice["finish_reason"] is None for choice in event.get("choices", ()))
    assert path == "/v1/responses" or "[DONE]" not in text
