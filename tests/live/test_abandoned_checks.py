"""Checks of grammars are nobody's burden: they end with their client and at the deadline, and small ones go past."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.api.checks import KILLED

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, toy_server

ENDLESS = "tests.workers.some_jobs:never"
N_CLIENTS = 17


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML, settings={"server.request_timeout_s": 20}) as server:
        server.services.workers.start()
        yield server


def body(**more: Any) -> dict[str, Any]:
    return {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **more}


def schema(name: str) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {
            "name": name,
            "schema": {"type": "object", "minProperties": 0, "properties": {name: {"type": "integer"}}},
        },
    }


def children(live: LiveServer) -> int:
    return live.services.workers.n_children


def test_seventeen_clients_leave_and_nothing_runs_on(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imp_server.api.checks.PROOF", ENDLESS)

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=live.url, timeout=60) as client:
            asked = [
                asyncio.create_task(client.post("/v1/chat/completions", json=body(response_format=schema(f"n{i}"))))
                for i in range(N_CLIENTS)
            ]
            until = time.monotonic() + 20
            while live.services.checks.jobs.n_large < 8 and time.monotonic() < until:
                await asyncio.sleep(0.02)
            assert live.services.checks.jobs.n_large >= 8
            began = time.monotonic()
            plain = await client.post("/v1/chat/completions", json=body())
            assert plain.status_code == 200 and time.monotonic() - began < 5
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(leave())
    until = time.monotonic() + 2
    while children(live):
        assert time.monotonic() < until, f"{children(live)} checks run on for nobody"
        time.sleep(0.02)
    jobs = live.services.checks.jobs
    assert not jobs.n_large and jobs.n_free == jobs.n_quick


def test_nothing_broken_off_is_remembered(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("imp_server.api.checks.PROOF", "tests.workers.some_jobs:crash")
        refused = httpx.post(f"{live.url}/v1/chat/completions", json=body(response_format=schema("broken")))
        assert refused.status_code == 400 and "too much work" in refused.text
    served = httpx.post(f"{live.url}/v1/chat/completions", json=body(response_format=schema("broken")))
    assert served.status_code == 200
    assert live.services.checks.counters[KILLED] == 1


def test_a_check_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imp_server.api.checks.PROOF", ENDLESS)
    with toy_server(TOOLS_CHATML, settings={"server.request_timeout_s": 0.5}) as live:
        reply = httpx.post(f"{live.url}/v1/chat/completions", json=body(response_format=schema("late")), timeout=20)
        assert reply.status_code == 503 and "request_timeout_s" in reply.text
        until = time.monotonic() + 2
        while children(live):
            assert time.monotonic() < until
            time.sleep(0.02)


def test_a_schema_is_checked_once(live: LiveServer) -> None:
    def tool(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "parameters": parameters(name)}}

    def parameters(name: str) -> dict[str, Any]:
        return {
            "type": "object",
            "minProperties": 1,
            "properties": {f"p{name}": {"type": "integer"}},
            "required": [f"p{name}"],
        }

    asked: list[tuple[int, int]] = []
    jobs = live.services.checks.jobs
    held: Any = jobs
    run = jobs.run

    async def counted(function: str, data: bytes, *rest: Any) -> bytes:
        import msgspec
        from imp_server.grammar.proving import ProofJob

        job = msgspec.msgpack.decode(data, type=ProofJob)
        asked.append((sum(p.kind == "json_schema" for p in job.plans), sum(p.kind == "envelope" for p in job.plans)))
        return await run(function, data, *rest)

    held.run = counted
    try:
        tools = [tool(f"once{i}") for i in range(5)]
        for offered, expected in (
            (tools, (5, 0)),
            (tools, (0, 0)),
            ([*tools[:4], tool("another")], (1, 0)),
        ):
            asked.clear()
            reply = httpx.post(f"{live.url}/v1/chat/completions", json=body(tools=offered), timeout=30)
            assert reply.status_code == 200, reply.text
            n_schemas, n_envelopes = (sum(found) for found in zip((0, 0), *asked, strict=True))
            assert (n_schemas, n_envelopes) == expected
        bad = {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}},
            "required": ["a"],
        }
        fmt = {"type": "json_schema", "json_schema": {"name": "bad", "schema": bad}}
        texts = []
        for calls in ([(1, 0), (1, 0)], []):  # the member, then what holds it
            asked.clear()
            reply = httpx.post(f"{live.url}/v1/chat/completions", json=body(response_format=fmt), timeout=30)
            assert reply.status_code == 400 and reply.json()["error"]["code"] == "grammar_unsatisfiable"
            texts.append({k: v for k, v in reply.json()["error"].items() if k != "request_id"})
            assert asked == calls
        assert texts[0] == texts[1]
        assert live.services.checks.counters["grammar_refused_total"] >= 2
    finally:
        del held.run


def test_metrics_count_refusals_from_the_start(live: LiveServer) -> None:
    text = httpx.get(f"{live.url}/metrics").text
    assert "imp_grammar_refused_total" in text and 'imp_worker_killed_total{job="grammar"}' in text


def test_a_client_that_leaves_while_it_waits_for_a_thread(live: LiveServer) -> None:
    gate = threading.Event()
    for _ in range(2):
        live.loop.call_soon_threadsafe(lambda: live.loop.create_task(live.services.pool.run(gate.wait, 5)))
    try:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{live.url}/v1/chat/completions",
                content=json.dumps(body(response_format=schema("gone"))),
                headers={"content-type": "application/json"},
                timeout=0.3,
            )
    finally:
        gate.set()
    time.sleep(0.3)
    assert not children(live)
