"""Hostile bodies: each is answered in bounded time, others are answered meanwhile, and the memory comes back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from imp_server.api.model_text_side import ModelTextSide
from imp_server.engine.client.scripted import ScriptedEngine, text_ids

from tests.api.hostile_bodies import CHAT, HostileBody, hostile_bodies
from tests.api.live_server import LiveServer, live_server
from tests.api.served_process import served_process
from tests.toy import byte_model


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    model = ModelTextSide(byte_model())

    def engine() -> ScriptedEngine:
        scripted = ScriptedEngine(model.vocabulary, context_length=4096)
        scripted.always(text_ids("x"))
        return scripted

    with live_server(engine, lambda: model, model="m", check_replies=False) as live:
        yield live


def send(live: LiveServer, body: HostileBody) -> httpx.Response:
    return httpx.post(live.url + body.path, content=body.data, headers=body.headers, timeout=60)


CALM = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow, HealthCheck.large_base_example],
)


@CALM
@given(body=hostile_bodies(0.02))
def test_every_body_is_answered(server: LiveServer, body: HostileBody) -> None:
    cpu = time.process_time()
    response = send(server, body)
    assert response.status_code in (200, 400, 404, 413, 415, 422), response.text[:300]
    assert len(response.content) < 20_000
    assert time.process_time() - cpu < 3
    assert httpx.get(server.url + "/health", timeout=5).status_code == 200
    assert server.services.admission.bodies.n_taken == server.services.admission.gate.n_taken == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(CALM, max_examples=100)
@given(body=hostile_bodies())
def test_every_body_is_answered_in_full_size(server: LiveServer, body: HostileBody) -> None:
    cpu = time.process_time()
    response = send(server, body)
    assert response.status_code in (200, 400, 404, 413, 415, 422), response.text[:300]
    assert time.process_time() - cpu < 10


def parts(n: int) -> bytes:
    part = b'{"type":"text","text":"x"}'
    content = b"[" + b",".join([part] * n) + b"]"
    return b'{"model":"m","messages":[{"role":"user","content":' + content + b"}]}"


def post(live: LiveServer, data: bytes) -> httpx.Response:
    return httpx.post(live.url + CHAT, content=data, headers={"content-type": "application/json"}, timeout=60)


def test_a_million_parts_are_counted_before_they_are_made(server: LiveServer) -> None:
    """27 MB: seconds and most of a gigabyte, if they were made."""
    data = parts(1_000_000)
    cpu = time.process_time()
    response = post(server, data)
    assert time.process_time() - cpu < 1.5
    assert response.status_code == 400
    assert "1000004 arrays and objects; at most 100000" in response.json()["error"]["message"]


def test_the_limits_are_knobs() -> None:
    with live_server(None, settings={"server.max_json_containers": 10, "server.max_json_values": 50}) as live:
        assert "arrays and objects" in post(live, parts(20)).text
        numbers = json.dumps({"model": "m", "x": [*range(60)]}).encode()
        assert "values" in post(live, numbers).text
        assert post(live, parts(2)).json()["error"]["code"] == "no_model"


@pytest.mark.parametrize(("n_bodies", "mb"), [(8, 5), pytest.param(200, 25, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_large_bodies_leave_no_memory_behind(n_bodies: int, mb: int) -> None:
    """Four at a time, in a server of its own."""
    text = {"model": "m", "messages": [{"role": "user", "content": "x" * mb * 1_000_000}]}
    with served_process() as (url, rss):
        kinds = [parts(mb * 1_000_000 // 27), json.dumps(text).encode()]
        for data in kinds:
            _at_once(url, data, 4)
        time.sleep(1.5)
        before = rss()
        for data in kinds:
            _at_once(url, data, n_bodies // 2)
        time.sleep(1.5)
        assert rss() < 1.1 * before, (before, rss())


def _at_once(url: str, data: bytes, n: int) -> None:
    left = threading.Semaphore(n)

    def go() -> None:
        while left.acquire(blocking=False):
            response = httpx.post(url + CHAT, content=data, headers={"content-type": "application/json"}, timeout=120)
            assert response.status_code in (400, 503), response.status_code

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
