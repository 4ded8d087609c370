"""Sleep: a model leaves memory when it is idle or told to, and comes back when somebody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from imp_server.core import HostOutOfMemory
from imp_server.engine.client.base import OnLoading
from imp_server.engine.client.scripted import ScriptedEngine, ScriptGate, Wait, text_ids

from tests.api.byte_text import ByteText
from tests.api.live_server import LiveServer, live_server
from tests.api.raw_http import BODY, CHAT
from tests.api.test_streams import until


class SleepyEngine(ScriptedEngine):
    """Counts its loads; the next of them may fail."""

    n_starts = 0
    fault: Exception | None = None

    async def start(self, on_progress: OnLoading | None = None) -> None:
        self.n_starts += 1
        if self.fault is not None:
            self._state = "failed"
            raise self.fault
        await super().start(on_progress)


def sleepy(**options: Any) -> Callable[[], SleepyEngine]:
    def make() -> SleepyEngine:
        engine = SleepyEngine(ByteText().vocabulary, **options)
        engine.always(text_ids("hello"))
        return engine

    return make


def engine_of(live: LiveServer) -> SleepyEngine:
    assert isinstance(live.client, SleepyEngine)
    return live.client


def said(live: LiveServer, **more: Any) -> str:
    reply = httpx.post(live.url + CHAT, json={**BODY, **more}, timeout=20).raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


def health(live: LiveServer) -> dict[str, Any]:
    reply = httpx.get(live.url + "/health")
    assert reply.status_code == 200
    body: dict[str, Any] = reply.json()
    return body


IDLE = {"engine.idle_unload_s": 1}


def test_an_idle_model_sleeps_and_the_next_request_wakes_it() -> None:
    with live_server(sleepy(), ByteText, settings=IDLE) as live:
        assert health(live)["idle_unload_seconds"] == 1
        assert said(live) == "hello"
        until(lambda: health(live)["state"] == "sleeping", 20)
        n_starts = engine_of(live).n_starts
        assert engine_of(live).state == "stopped"
        told = health(live)
        assert (told["status"], told["suspended"], told["idle_suspended"], told["model_loaded"]) == (
            ("ok", True, True, False)
        )
        assert httpx.get(live.url + "/ready").json() == {"ready": True, "model": "m"}
        assert httpx.get(live.url + "/props").json()["is_sleeping"] is True
        assert said(live) == "hello" and engine_of(live).n_starts == n_starts + 1
        assert httpx.get(live.url + "/props").json()["is_sleeping"] is False


def test_what_reads_only_wakes_nothing() -> None:
    with live_server(sleepy(), ByteText) as live, httpx.Client(base_url=live.url) as http:
        assert said(live) == "hello"
        before = http.get("/metrics").text
        assert http.post("/admin/suspend").json() == {"suspended": True, "models": ["m"]}
        for path in ("/health", "/props", "/slots", "/v1/models", "/v1/models/m", "/metrics", "/info", "/openapi.json"):
            assert http.get(path).status_code == 200, path
        assert http.post("/tokenize", json={"content": "hi"}).json() == {"tokens": [104, 105]}
        assert http.post("/detokenize", json={"tokens": [104]}).json() == {"content": "h", "prompt": "h"}
        count = http.post("/v1/messages/count_tokens", json=BODY)
        assert count.status_code == 200 and count.json()["input_tokens"] > 0
        assert http.post("/v1/responses/input_tokens", json={"model": "m", "input": "hi"}).status_code == 200
        assert engine_of(live).n_starts == 1 and engine_of(live).state == "stopped"
        listed = http.get("/v1/models").json()["data"][0]
        assert listed["loaded"] is False and listed["max_model_len"] == 8192
        assert "imp_steps_total" not in before or "imp_steps_total" in http.get("/metrics").text


def test_an_operator_lets_it_sleep_until_he_wakes_it() -> None:
    with live_server(sleepy(), ByteText, settings=IDLE) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        for _ in range(2):  # repeating it does no harm
            assert http.post("/admin/suspend", json={}).json() == {"suspended": True, "models": ["m"]}
        told = health(live)
        assert (told["state"], told["suspended"], told["idle_suspended"]) == ("suspended", True, False)
        refused = http.post(CHAT, json=BODY)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "suspended"
        assert "retry-after" not in refused.headers and "/admin/resume" in refused.text
        ready = http.get("/ready")
        assert ready.status_code == 503 and ready.json()["code"] == "suspended"
        for _ in range(2):
            assert http.post("/admin/resume", json={"model": "m"}).json() == {"suspended": False, "models": ["m"]}
        assert said(live) == "hello" and engine_of(live).n_starts >= 2
        assert http.post("/admin/suspend", json={"model": "o"}).status_code == 404


def test_it_waits_for_what_runs() -> None:
    with live_server(sleepy(), ByteText) as live, ThreadPoolExecutor() as pool:
        gate = ScriptGate(asyncio.Event())
        engine_of(live).play(text_ids("slow"), gate, text_ids("ly"))
        running = pool.submit(said, live)
        until(lambda: engine_of(live).n_running == 1, 20)
        suspended = pool.submit(httpx.post, live.url + "/admin/suspend", timeout=20)
        until(lambda: health(live)["state"] == "suspended", 20)
        assert engine_of(live).state == "ready" and not suspended.done()
        live.on_loop(gate.event.set)
        assert suspended.result(20).status_code == 200 and engine_of(live).state == "stopped"
        assert running.result(20) == "slowly"


def test_who_runs_too_long_gets_an_error() -> None:
    settings = {"router.stop_timeout_s": 0.2}
    with live_server(sleepy(), ByteText, settings=settings) as live, ThreadPoolExecutor() as pool:
        engine_of(live).play(text_ids("slow"), Wait(30))
        running = pool.submit(httpx.post, live.url + CHAT, json=BODY, timeout=20)
        until(lambda: engine_of(live).n_running == 1, 20)
        assert httpx.post(live.url + "/admin/suspend", timeout=20).status_code == 200
        assert running.result(20).status_code == 503
        assert engine_of(live).state == "stopped"


def test_a_stream_keeps_it_awake() -> None:
    with live_server(sleepy(), ByteText, settings=IDLE) as live:
        engine_of(live).play(text_ids("a"), Wait(1.6), text_ids("b"))
        with httpx.stream("POST", live.url + CHAT, json={**BODY, "stream": True}, timeout=20) as reply:
            text = "".join(reply.iter_text())
        assert '"b"' in text and "[DONE]" in text and engine_of(live).n_starts == 1
        until(lambda: health(live)["state"] == "sleeping", 20)


def test_all_who_wait_share_one_load() -> None:
    with live_server(sleepy(load_seconds=0.3), ByteText) as live, ThreadPoolExecutor(6) as pool:
        httpx.post(live.url + "/models/unload", json={"model": "m"}).raise_for_status()
        until(lambda: health(live)["state"] == "sleeping", 20)
        assert [*pool.map(lambda _: said(live), range(6))] == ["hello"] * 6
        assert engine_of(live).n_starts == 2


def test_while_it_wakes_the_server_is_well_and_texts_are_cut() -> None:
    with live_server(sleepy(load_seconds=0.6), ByteText) as live, ThreadPoolExecutor() as pool:
        httpx.post(live.url + "/models/unload", json={"model": "m"}).raise_for_status()
        until(lambda: health(live)["state"] == "sleeping", 20)
        waking = pool.submit(said, live)
        until(lambda: health(live)["state"] == "loading", 20)
        assert httpx.get(live.url + "/ready").status_code == 200
        assert httpx.post(live.url + "/tokenize", json={"content": "hi"}).status_code == 200
        assert httpx.post(live.url + "/models/load", json={"model": "m"}).json()["error"]["code"] == (
            "model_already_loaded"
        )
        assert waking.result(20) == "hello"


def test_a_reload_that_fails_is_a_503_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imp_server.api.router.residency.RETRY_S", 0.4)
    with live_server(sleepy(), ByteText) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        http.post("/admin/suspend").raise_for_status()
        engine_of(live).fault = HostOutOfMemory("there isn't enough memory for this model")
        failed = http.post("/admin/resume")
        assert failed.status_code == 503 and failed.json()["error"]["code"] == "model_load_failed"
        assert "enough memory" in failed.text and failed.headers["retry-after"] == "5"
        assert health_of(http) == (503, "failed")
        assert http.post(CHAT, json=BODY).json()["error"]["code"] == "suspended"
        assert http.post("/tokenize", json={"content": "hi"}).status_code == 200
        engine_of(live).fault = None
        assert http.post("/admin/resume").status_code == 200
        assert said(live) == "hello"

        http.post("/models/unload", json={"model": "m"}).raise_for_status()
        until(lambda: health_of(http) == (200, "sleeping"), 20)
        engine_of(live).fault = HostOutOfMemory("there isn't enough memory for this model")
        n_starts = engine_of(live).n_starts
        for _ in range(3):  # the second and third are told what is known
            failed = http.post(CHAT, json=BODY)
            assert failed.status_code == 503 and "enough memory" in failed.text
        assert engine_of(live).n_starts == n_starts + 1
        engine_of(live).fault = None
        until(lambda: http.post(CHAT, json=BODY).status_code == 200, 20)


def health_of(http: httpx.Client) -> tuple[int, str]:
    reply = http.get("/health")
    return reply.status_code, reply.json()["state"]


def test_who_leaves_while_it_wakes_isnt_served() -> None:
    with live_server(sleepy(load_seconds=0.5), ByteText) as live:
        httpx.post(live.url + "/models/unload", json={"model": "m"}).raise_for_status()
        until(lambda: health(live)["state"] == "sleeping", 20)
        with pytest.raises(httpx.TimeoutException):
            httpx.post(live.url + CHAT, json=BODY, timeout=0.2)
        until(lambda: health(live)["state"] == "ready", 20)
        assert engine_of(live).requests_seen == []
        assert live.services.models.find("m").n_leases == 0


def test_totals_go_on_behind_a_sleep() -> None:
    def value(name: str) -> float:
        text = httpx.get(live.url + "/metrics").text
        return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])

    with live_server(sleepy(), ByteText) as live:
        host = live.services.models.find("m")

        async def stats() -> Any:
            return type(before)({**before.counters, "steps_total": 7.0}, ())

        before = live.wait(host.client.stats())
        host.client.stats = stats  # type: ignore[method-assign]
        assert value("imp_steps_total") == 7
        httpx.post(live.url + "/admin/suspend").raise_for_status()
        httpx.post(live.url + "/admin/resume").raise_for_status()
        assert value("imp_steps_total") == 14


def test_seconds_are_whole_and_not_below_zero() -> None:
    from imp_server.config import Config
    from imp_server.config.load import load
    from imp_server.core import ConfigError

    for text in ("-3", "30s", "abc", "1.5", ""):
        with pytest.raises(ConfigError, match=r"engine\.idle_unload_s \(expected: integer >= 0\)"):
            load({"engine.idle_unload_s": [text]})
    assert load({"engine.idle_unload_s": ["-1"]}).config.engine.idle_unload_s == 0  # llama.cpp's off
    assert Config().engine.idle_unload_s == 0
