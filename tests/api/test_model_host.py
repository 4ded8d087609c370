"""A server is a set of hosts: each model has its own engine, state, replies and counters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from imp_server.api.model_host import ModelHost
from imp_server.api.pool import WorkerPool
from imp_server.core import InvalidModel, ModelLoading, ModelNotFound
from imp_server.engine.client.scripted import ScriptedEngine, text_ids

from tests.api.byte_text import ByteText
from tests.api.live_server import LiveServer, live_server
from tests.api.raw_http import BODY, CHAT


def state_of(host: ModelHost) -> str:
    """Its state, read anew."""
    return host.state


def answering(text: str) -> ScriptedEngine:
    engine = ScriptedEngine(ByteText().vocabulary, model_id=text)
    engine.always(text_ids(text))
    return engine


@pytest.fixture(scope="module")
def two() -> Iterator[LiveServer]:
    with live_server(lambda: answering("one"), ByteText, others={"n": lambda: answering("another")}) as live:
        yield live


def said(live: LiveServer, model: str) -> str:
    reply = httpx.post(live.url + CHAT, json={**BODY, "model": model}).raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


def test_each_model_answers_by_its_own_engine(two: LiveServer) -> None:
    assert (said(two, "m"), said(two, "n")) == ("one", "another")
    listed = httpx.get(two.url + "/v1/models").json()["data"]
    assert [(model["id"], model["loaded"]) for model in listed] == [("m", True), ("n", True)]
    unknown = httpx.post(two.url + CHAT, json={**BODY, "model": "o"})
    assert unknown.status_code == 404 and "'m', 'n'" in unknown.text


def test_each_model_has_its_own_state_and_counters(two: LiveServer) -> None:
    host = two.services.models.find("n")
    host.counters["apples_total"] = 3
    assert isinstance(host.client, ScriptedEngine)
    host.client.n_crashes = 2

    async def counters(model: str) -> dict[str, float]:
        return (await two.services.stats(model))[0]

    m, n = two.wait(counters("m")), two.wait(counters("n"))
    assert (m["engine_crashes_total"], n["engine_crashes_total"]) == (0, 2)
    assert "apples_total" not in m and n["apples_total"] == 3
    assert "grammar_refused_total" in m  # the server's
    host.client._state = "restarting"
    try:
        assert (two.services.state().state, two.services.state("n").state) == ("ready", "restarting")
        assert httpx.get(two.url + "/health").status_code == 200
        assert httpx.post(two.url + CHAT, json={**BODY, "model": "n"}).status_code == 503
        assert said(two, "m") == "one"
    finally:
        host.client._state = "ready"
    with pytest.raises(ModelNotFound):
        two.services.state("o")


def test_all_of_them_are_stopped() -> None:
    with live_server(lambda: answering("one"), ByteText, others={"n": lambda: answering("another")}) as live:
        clients = [host.client for host in live.services.models]
        assert [client.state for client in clients] == ["ready", "ready"]
    assert [client.state for client in clients] == ["stopped", "stopped"]


def run(work: object) -> None:
    asyncio.run(asyncio.wait_for(work(), 20))  # type: ignore[operator]


def test_a_host_tells_how_far_it_is_and_is_loaded_again() -> None:
    told: list[tuple[str, float]] = []

    async def body() -> None:
        pool = WorkerPool()
        host = ModelHost("m", answering("one"), ByteText, on_progress=lambda *stage: told.append(stage))
        assert host.state == "loading" and host.card().context_length is None
        with pytest.raises(ModelLoading):
            host.ready_text()
        for _ in range(2):
            await host.load(pool)
            assert state_of(host) == "ready" and host.card().loaded
            assert (host.stage, host.stage_value) == ("open", 1.0)
            await host.stop()
            assert host.state == "loading"
        pool.close()

    run(body)
    assert told == [("open", 0.0), ("open", 1.0)] * 2


def test_what_loading_ended_with_is_what_requests_are_told() -> None:
    def broken() -> ByteText:
        raise InvalidModel("the file is cut off")

    async def body() -> None:
        pool = WorkerPool()
        host = ModelHost("m", answering("one"), broken)
        with pytest.raises(InvalidModel):
            await host.load(pool)
        assert host.state == "failed"
        with pytest.raises(InvalidModel, match="cut off"):
            host.ready_text()
        pool.close()

    run(body)
