"""A model whose own template never ends: its chats are refused, everything else is served meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.config import Config
from imp_server.text import model_workers
from imp_server.text.model import TextModel
from imp_server.text.model_workers import WARM_UP, ModelWorkers
from imp_server.workers.client import Workers
from imp_server.workers.wire import JobLimits

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server
from tests.text.test_model_workers import ENDLESS, LIFTED
from tests.toy import CHATML, byte_tokenizer


@contextlib.contextmanager
def hostile_server(cpu_s: float, **settings: Any) -> Iterator[LiveServer]:
    """A server whose model's template has that many CPU seconds."""
    workers = Workers((WARM_UP, LIFTED))

    def hostile(template: str, *, config: Config, context_length: int) -> TextModel:
        return TextModel(
            byte_tokenizer(),
            {"default": template},
            config,
            context_length=context_length,
            workers=ModelWorkers(workers),
        )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(model_workers, "TEMPLATE_LIMITS", JobLimits(cpu_s=cpu_s))
        with toy_server(ENDLESS + CHATML, make_model=hostile, settings=settings) as server:
            yield server
    workers.close()


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with hostile_server(0.4) as server:
        yield server


@pytest.fixture(scope="module")
def patient() -> Iterator[LiveServer]:
    with hostile_server(60) as server:
        yield server


def post(live: LiveServer, path: str, said: str) -> httpx.Response:
    body: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": said}], "max_tokens": 3}
    return httpx.post(f"{live.url}{path}", json=body, timeout=60)


def test_other_routes_live_while_templates_are_stuck(live: LiveServer) -> None:
    assert post(live, "/v1/chat/completions", "hi").status_code == 200
    replies: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: replies.append(post(live, "/v1/chat/completions", "stuck"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    began = time.monotonic()
    assert httpx.get(f"{live.url}/health", timeout=20).status_code == 200
    completion = httpx.post(
        f"{live.url}/v1/completions", json={"model": "toy", "prompt": "a", "max_tokens": 2}, timeout=20
    )
    assert completion.status_code == 200
    assert time.monotonic() - began < 5
    for thread in threads:
        thread.join()
    for reply in replies:
        assert reply.status_code == 400 and reply.json()["error"]["code"] == "template_error"
        assert "'default'" in reply.json()["error"]["message"]
    ready = httpx.get(f"{live.url}/ready").json()
    assert ready["ready"] and "chat template" in ready["message"]
    assert 'imp_worker_killed_total{job="template"} 4\n' in httpx.get(f"{live.url}/metrics").text.replace(".0\n", "\n")
    assert post(live, "/v1/chat/completions", "hi").status_code == 200
    assert "message" not in httpx.get(f"{live.url}/ready").json()


def test_every_road_to_a_prompt_is_the_same(live: LiveServer) -> None:
    for path in ("/apply-template", "/v1/messages/count_tokens", "/v1/messages", "/v1/chat/completions/input_tokens"):
        assert post(live, path, "hi").status_code == 200
        assert post(live, path, "stuck").status_code == 400


ROADS = ["/v1/chat/completions", "/apply-template", "/v1/messages/count_tokens"]


@pytest.mark.parametrize("path", ROADS)
def test_prompts_end_with_who_wants_them(patient: LiveServer, path: str) -> None:
    body = {"model": "toy", "messages": [{"role": "user", "content": "stuck"}], "max_tokens": 3}
    for _ in range(2):  # both workers, if they went on
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{patient.url}{path}", json=body, timeout=0.5)
    began = time.monotonic()
    assert post(patient, path, "hi").status_code == 200
    assert time.monotonic() - began < 10
    assert "message" not in httpx.get(f"{patient.url}/ready").json()
    assert 'imp_worker_killed_total{job="template"} 0\n' in httpx.get(f"{patient.url}/metrics").text.replace(
        ".0\n", "\n"
    )


def test_prompts_end_at_the_deadline() -> None:
    with hostile_server(60, **{"server.request_timeout_s": 0.5}) as server:
        for path in ROADS:
            late = post(server, path, "stuck")
            assert late.status_code == 503 and "request_timeout_s" in late.text
        until = time.monotonic() + 20
        while post(server, ROADS[0], "hi").status_code != 200:  # 503 while a busy machine opens the successors
            assert time.monotonic() < until
