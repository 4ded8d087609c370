"""Streams really stream, end well or say why not, and a client that goes away frees its row at once."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from imp_server.core import EngineFaulted, GrammarRefused, Overloaded
from imp_server.dialects.openai_chat.reply import ChatStream
from imp_server.engine.client.scripted import Crash, Emit, Fail, ScriptedEngine, ScriptGate, Wait, text_ids

from tests.api.byte_text import ByteText
from tests.api.live_server import LiveServer, live_server

CHAT = "/v1/chat/completions"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}


def new_engine(**options: Any) -> ScriptedEngine:
    return ScriptedEngine(ByteText().vocabulary, **options)


@pytest.fixture
def live() -> Iterator[LiveServer]:
    with live_server(new_engine, ByteText) as server:
        yield server


class Events:
    """The events of one streamed reply, one at a time."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def next(self) -> Any:
        data = ""
        for line in self._lines:
            if not line and data:
                return data if data == "[DONE]" else json.loads(data)
            if line.startswith("data: "):
                data = line[6:]
        return None

    def rest(self) -> list[Any]:
        found = []
        while (event := self.next()) is not None:
            found.append(event)
        return found


def gate(live: LiveServer) -> asyncio.Event:
    return live.on_loop(asyncio.Event)


def delta(event: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = event["choices"][0]["delta"]
    return found


def test_events_arrive_as_they_happen(live: LiveServer) -> None:
    gates = [gate(live) for _ in range(4)]
    actions = [a for g, letter in zip(gates, "abc", strict=False) for a in (ScriptGate(g), ord(letter))]
    live.engine.play(*actions, ScriptGate(gates[3]))
    with httpx.stream("POST", live.url + CHAT, json=body(), timeout=5) as response:
        events = Events(response)
        # The prompt's prefill hasn't ended: no token is there yet.
        assert delta(events.next()) == {"role": "assistant", "content": "", "refusal": None}
        for g, letter in zip(gates, "abc", strict=False):
            live.on_loop(g.set)
            assert delta(events.next()) == {"content": letter}
        live.on_loop(gates[3].set)
        assert events.next()["choices"][0]["finish_reason"] == "stop"
        assert events.next() == "[DONE]"


def test_one_write_per_event(live: LiveServer) -> None:
    live.engine.play(text_ids("some words"))
    host, port = live.url.removeprefix("http://").split(":")
    payload = json.dumps(body(n=2)).encode()
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}"
        )
        sock.sendall(head.encode() + b"\r\nconnection: close\r\n\r\n" + payload)
        data = b""
        while part := sock.recv(65536):
            data += part
    head_bytes, _, rest = data.partition(b"\r\n\r\n")
    headers = head_bytes.lower()
    assert b"content-type: text/event-stream" in headers
    assert b"cache-control: no-cache" in headers
    assert b"x-accel-buffering: no" in headers
    chunks = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    assert chunks.pop() == b""
    assert len(chunks) >= 8
    for chunk in chunks:
        assert chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") and chunk.count(b"\n\n") == 1


def test_a_hand_off_is_one_event(live: LiveServer) -> None:
    live.engine.play(Emit(text_ids("many tokens at once")))
    events = Events(httpx.post(live.url + CHAT, json=body()))
    assert [delta(e).get("content") for e in events.rest()[:-1]] == ["", "many tokens at once", None]


def test_silence_is_filled() -> None:
    with live_server(new_engine, ByteText, settings={"streams.keep_alive_s": 0.05}) as live:
        live.engine.play(Wait(0.3), text_ids("ok"))
        text = httpx.post(live.url + CHAT, json=body()).text
        assert text.count(": keep-alive\n\n") >= 3
        live.engine.play(text_ids("ok"))
        assert "keep-alive" not in httpx.post(live.url + CHAT, json=body()).text


def until(condition: Any, seconds: float) -> float:
    """Seconds until the condition held."""
    start = time.perf_counter()
    while not condition():
        assert time.perf_counter() - start < seconds, "it didn't happen in time"
        time.sleep(0.005)
    return time.perf_counter() - start


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("writing", [True, False])
def test_a_dropped_client_frees_its_row(live: LiveServer, stream: bool, writing: bool) -> None:
    endless = [a for _ in range(2000) for a in (120, Wait(0.01))]
    live.engine.play(*(endless if writing else [Wait(60)]))
    payload = json.dumps(body(stream=stream, max_tokens=5000, n=2)).encode()
    host, port = live.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=5)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}"
    sock.sendall(head.encode() + b"\r\n\r\n" + payload)
    until(lambda: live.engine.n_running == 2, 5)
    time.sleep(0.1)
    assert live.engine.n_running == 2
    sock.close()
    assert until(lambda: live.engine.n_running == 0, 5) < 0.25
    assert live.engine.cancelled_keys
    live.engine.play(text_ids("fine"))
    after = httpx.post(live.url + CHAT, json=body(stream=False)).json()
    assert after["choices"][0]["message"]["content"] == "fine"


def test_a_failure_before_the_first_byte_is_plain_http(live: LiveServer) -> None:
    async def refuse(_request: Any) -> Any:
        raise Overloaded("busy", retry_after_s=3)

    engine: Any = live.engine
    engine.submit = refuse
    response = httpx.post(live.url + CHAT, json=body())
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    assert response.json()["error"]["type"] == "rate_limit_error"

    async def grammar(_request: Any) -> Any:
        raise GrammarRefused("can't", param="response_format")

    engine.submit = grammar
    response = httpx.post(live.url + CHAT, json=body())
    assert (response.status_code, response.json()["error"]["code"]) == (400, "grammar_unsupported")


@pytest.mark.parametrize("action", [Fail(EngineFaulted("step failed")), Crash()])
def test_a_failure_in_the_stream_is_its_error_frame(live: LiveServer, action: Any) -> None:
    live.engine.play(text_ids("so far"), action)
    events = Events(httpx.post(live.url + CHAT, json=body(stream_options={"include_usage": True}))).rest()
    code = "engine_crashed" if isinstance(action, Crash) else "engine_step_failed"
    assert events[-1]["error"]["code"] == code
    assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
    assert all(e["choices"][0]["finish_reason"] is None for e in events[:-1])
    assert "[DONE]" not in events
    live.engine.play(text_ids("again"))
    assert httpx.post(live.url + CHAT, json=body(stream=False)).status_code == 200


def test_a_fault_of_ours_in_the_stream_is_an_error_frame(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: Any, _event: Any) -> Any:
        raise RuntimeError("kaput")

    monkeypatch.setattr(ChatStream, "feed", broken)
    live.engine.play(text_ids("text"))
    events = Events(httpx.post(live.url + CHAT, json=body())).rest()
    assert events[-1]["error"]["code"] == "internal_error"
    assert "kaput" not in str(events)
    until(lambda: live.engine.n_running == 0, 5)


@pytest.mark.parametrize("action", [Fail(EngineFaulted("step failed")), Crash()])
def test_a_failure_in_json_is_a_status(live: LiveServer, action: Any) -> None:
    live.engine.play(text_ids("so far"), action)
    response = httpx.post(live.url + CHAT, json=body(stream=False))
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [True, False])
def test_a_crash_before_any_output_is_tried_again(live: LiveServer, stream: bool) -> None:
    live.engine.play(Crash())
    live.engine.play(text_ids("second try"))
    response = httpx.post(live.url + CHAT, json=body(stream=stream))
    assert response.status_code == 200
    assert "error" not in response.text
    assert live.engine.n_crashes == 1


def test_choices_are_interleaved_and_opened_in_order(live: LiveServer) -> None:
    live.engine.play_choices(
        [Wait(0.05), text_ids("zero")], [text_ids("one"), Wait(0.1), text_ids("!")], [text_ids("two")]
    )
    events = Events(httpx.post(live.url + CHAT, json=body(n=3, stream_options={"include_usage": True}))).rest()
    assert [e["choices"][0]["index"] for e in events[:3]] == [0, 1, 2]
    assert all(delta(e).get("role") == "assistant" for e in events[:3])
    assert all("role" not in delta(e) for e in events[3:-2])
    texts = ["", "", ""]
    order = []
    for event in events[:-2]:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content") or ""
        order.append(choice["index"])
        assert event["usage"] is None
    assert texts == ["zero", "one!", "two"]
    assert order != sorted(order)
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == len("zero") + len("one!") + len("two") + 3
    assert events[-1] == "[DONE]"


def test_the_queue_shows_in_health() -> None:
    with live_server(lambda: new_engine(n_rows=2), ByteText) as live:
        gates = [gate(live)]
        live.engine.answer_with(lambda _r, _c: [ScriptGate(gates[0])])
        client = httpx.Client(base_url=live.url, timeout=10)
        with client, client.stream("POST", CHAT, json=body(n=2)), client.stream("POST", CHAT, json=body()):
            assert client.get("/health").json()["queue_depth"] == 3, "running ones, too"
            live.on_loop(gates[0].set)
        until(lambda: httpx.get(live.url + "/health").json()["queue_depth"] == 0, 5)


def test_a_request_has_a_deadline() -> None:
    with live_server(new_engine, ByteText, settings={"server.request_timeout_s": 0.2}) as live:
        live.engine.play(text_ids("so far"), Wait(60))
        choice = httpx.post(live.url + CHAT, json=body(stream=False)).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("so far", "length")
        assert choice["imp_finish_detail"] == "timed_out"


class SlowToLoad(ScriptedEngine):
    """Loads until the test says it is done."""

    def __init__(self) -> None:
        super().__init__(ByteText().vocabulary)
        self.loaded = asyncio.Event()

    async def start(self, on_progress: Callable[[str, float], None] | None = None) -> None:
        self._state = "loading"
        if on_progress:
            on_progress("read", 0.5)
        await self.loaded.wait()
        await super().start(on_progress)


def test_while_the_model_loads() -> None:
    with live_server(SlowToLoad, ByteText, wait_ready=False) as live:
        until(lambda: _status(live, "/health") == 503, 10)
        health = httpx.get(live.url + "/health").json()
        assert (health["state"], health["model_loaded"], health["status"]) == ("loading", False, "loading")
        assert health["loading"] == {"stage": "read", "value": 0.5}
        assert health["error"] == {"code": 503, "message": "Loading model", "type": "unavailable_error"}
        assert httpx.get(live.url + "/v1/health").json() == health
        ready = httpx.get(live.url + "/ready")
        assert (ready.status_code, ready.json()["code"]) == (503, "model_loading")
        assert httpx.post(live.url + CHAT, json=body()).json()["error"]["code"] == "model_loading"
        assert httpx.post(live.url + CHAT, json=body(n=0)).status_code == 400
        assert httpx.post(live.url + CHAT, json=body(model="other")).status_code == 404
        assert httpx.get(live.url + "/v1/models").json()["data"][0]["loaded"] is False
        assert isinstance(live.client, SlowToLoad)
        live.on_loop(live.client.loaded.set)
        until(lambda: _status(live, "/ready") == 200, 10)
        assert (_status(live, "/health"), _status(live, "/v1/health")) == (200, 200)
        assert httpx.post(live.url + CHAT, json=body()).status_code == 200


def _status(live: LiveServer, path: str) -> int:
    try:
        return httpx.get(live.url + path).status_code
    except httpx.TransportError:
        return 0


def test_sixteen_streams_at_once() -> None:
    with live_server(lambda: new_engine(n_rows=16), ByteText) as live:
        live.engine.answer_with(lambda request, _c: [text_ids(f"answer to {len(request.ids)}")])

        async def one(client: httpx.AsyncClient, i: int) -> str:
            messages = [{"role": "user", "content": "x" * i}]
            reply = await client.post(live.url + CHAT, json=body(messages=messages))
            lines = [line[6:] for line in reply.text.split("\n\n") if line.startswith("data: {")]
            return "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines)

        async def all_of_them() -> list[str]:
            async with httpx.AsyncClient(timeout=20, limits=httpx.Limits(max_connections=16)) as client:
                return await asyncio.gather(*(one(client, i) for i in range(16)))

        assert asyncio.run(all_of_them()) == [f"answer to {4 * (7 + i)}" for i in range(16)]
        assert live.engine.n_running == 0
