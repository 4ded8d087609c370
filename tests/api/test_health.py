"""What the probes and the list of models say in every state, and what a request is told meanwhile."""

from __future__ import annotations

import logging
import re

import httpx
import pytest
from imp_server.core import EngineRestarting
from imp_server.dialects.handler import ServerState
from imp_server.dialects.llamacpp.metrics import exposition
from imp_server.dialects.openai_responses.kept import KeptTotals
from imp_server.engine.client.process import ProcessEngine
from imp_server.engine.client.scripted import Crash, ScriptedEngine

from tests.api.byte_text import ByteText
from tests.api.live_server import live_server
from tests.api.raw_http import BODY, CHAT
from tests.api.test_streams import until


def slow_to_come_back() -> ScriptedEngine:
    return ScriptedEngine(ByteText().vocabulary, restart_seconds=1.5)


def test_while_the_engine_restarts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="imp_server.api.visit")
    with live_server(slow_to_come_back, ByteText) as live, httpx.Client(base_url=live.url) as client:
        live.engine.play(104, Crash())
        assert client.post(CHAT, json=BODY).status_code == 500
        health = client.get("/health")
        assert (health.status_code, health.json()["state"], health.json()["status"]) == (503, "restarting", "unhealthy")
        assert health.json()["code"] == "engine_restarting" and "restarting" in health.json()["error"]["message"]
        assert client.get("/v1/health").status_code == client.get("/ready").status_code == 503
        assert client.get("/v1/models").json()["data"][0]["loaded"] is False
        for path, body in ((CHAT, BODY), ("/v1/messages", {**BODY, "max_tokens": 3}), ("/completion", {"prompt": "x"})):
            refused = client.post(path, json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "restarting" in refused.text and "loading" not in refused.text, path
        until(lambda: client.get("/health").status_code == 200, 10)
        assert client.get("/v1/models").json()["data"][0]["loaded"] is True
        assert client.post(CHAT, json=BODY).status_code == 200
    told = [record.getMessage() for record in caplog.records if record.name == "imp_server.api.visit"]
    assert any("HTTP 503 POST" in line for line in told) and not any("/health" in line for line in told)


def test_a_process_that_restarts_says_the_same() -> None:
    client = ProcessEngine.__new__(ProcessEngine)
    client._state = "restarting"
    with pytest.raises(EngineRestarting, match="restarting"):
        client._check_state()


def test_without_a_model_the_server_is_well() -> None:
    with live_server(None) as live:
        health = httpx.get(live.url + "/health")
        assert (health.status_code, health.json()["state"]) == (200, "no_model")
        assert httpx.get(live.url + "/v1/models").json()["data"] == []


def test_a_dead_engine_is_no_healthy_server() -> None:
    with live_server(slow_to_come_back, ByteText) as live:
        live.engine._state = "failed"
        health = httpx.get(live.url + "/health")
        assert (health.status_code, health.json()["code"]) == (503, "engine_faulted")
        assert httpx.get(live.url + "/v1/models").json()["data"][0]["loaded"] is False


def test_a_model_lists_what_there_are_routes_for() -> None:
    with live_server(slow_to_come_back, ByteText) as live:
        assert {"score", "rank"} <= set(live.engine._info.tasks)
        assert httpx.get(live.url + "/v1/models").json()["data"][0]["meta"]["tasks"] == ["generate", "embed"]


def test_counts_are_whole_numbers() -> None:
    counters = {"steps_total": 12_345_678.0, "x_ms_total": 0.5, "tokens_total": 0.0}
    text = exposition(counters, ServerState("ready", "m", 4), KeptTotals(0, 0, 0, 0)).decode()
    assert "\nimp_steps_total 12345678\n" in text and "\nimp_x_ms_total 0.5\n" in text
    assert "\nimp_tokens_total 0\n" in text and "\nimp_queue_depth 4\n" in text
    assert not re.search(r"^[^#].*\.0$|^[^#].*e\+", text, re.M)
