"""A request whose client has gone is never run again, and nothing begins once the server is shutting down."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from imp_server.api.body import ClientGone
from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.generations import Generations
from imp_server.config import Config
from imp_server.core import GenerateRequest, Unavailable
from imp_server.core.lanes import Lane
from imp_server.engine.client.process import ProcessEngine
from imp_server.engine.client.scripted import ScriptedEngine, Wait
from imp_server.engine.messages import ModelInfo, Ready, Submit
from imp_server.text.session import OutputSession, Prepared
from imp_server.workers.client import Workers

from tests.api.byte_text import ByteText
from tests.api.live_server import live_server
from tests.api.raw_http import BODY, CHAT
from tests.api.test_streams import until

INFO = ModelInfo("m", "llama", "", 100, 100, 100, 8, 0, "F32")


def prepared() -> Prepared:
    request = GenerateRequest(0, bytes(8))
    return Prepared(request, OutputSession(request.plan, ByteText().vocabulary), "")


def engine_that_hears(sent: list[Any]) -> ProcessEngine:
    """It is ready, and no process is behind it."""
    engine = ProcessEngine("nowhere", "m", Config())
    held: Any = engine
    held._send = engine._requests._send = sent.append
    engine._take(Ready(1, INFO))
    return engine


def test_who_leaves_before_the_engine_has_accepted_is_not_submitted_again() -> None:
    async def body() -> None:
        sent: list[Any] = []
        engine = engine_that_hears(sent)
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        watch = DisconnectWatch(receive)
        stays, leaves = Generations(engine, [prepared()]), Generations(engine, [prepared()])
        waiting = asyncio.ensure_future(stays.accept(DisconnectWatch(None)))
        accepting = asyncio.ensure_future(leaves.accept(watch))
        await asyncio.sleep(0.01)
        assert [type(message) for message in sent] == [Submit, Submit]
        gone.set()
        with pytest.raises(ClientGone):
            await accepting
        engine._state = "restarting"
        engine._sort_requests()
        sent.clear()
        engine._take(Ready(1, INFO))
        assert [message.request.key for message in sent] == [1], "the crash happened before either was accepted"
        waiting.cancel()
        watch.close()

    asyncio.run(body())


def test_nothing_is_submitted_again_while_the_engine_ends() -> None:
    async def body() -> None:
        sent: list[Any] = []
        engine = engine_that_hears(sent)
        running = Generations(engine, [prepared()])
        waiting = asyncio.ensure_future(running.accept(DisconnectWatch(None)))
        await asyncio.sleep(0.01)
        engine._state = "restarting"
        engine._sort_requests()
        restart = asyncio.ensure_future(engine._restart())
        await asyncio.sleep(0.01)
        await engine.stop()
        with pytest.raises(Unavailable):
            await waiting
        await restart
        assert engine.pid is None, "no process was started"
        sent.clear()
        engine._take(Ready(1, INFO))
        assert sent == []

    asyncio.run(body())


def test_a_body_that_ends_after_the_drain_began_is_refused() -> None:
    with live_server(None) as live, httpx.Client(base_url=live.url, timeout=10) as http:
        body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'

        def slowly() -> Any:
            yield body[:20]
            live.services.draining = True
            yield body[20:]

        headers = {"content-type": "application/json", "content-length": str(len(body))}
        reply = http.post("/v1/chat/completions", content=slowly(), headers=headers)
        assert reply.status_code == 503 and reply.json()["error"]["code"] == "draining"


def test_ready_tells_what_is_lost_and_nothing_else() -> None:
    from tests.live.toy_server import toy_server

    with toy_server() as live, httpx.Client(base_url=live.url, timeout=10) as http:
        assert http.get("/ready").status_code == 200
        lane, client = live.services.pool.lane, live.services.models.find("toy").client
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lane, "is_lost", property(lambda self: self is lane))
            reply = http.get("/ready")
            assert reply.status_code == 503 and "imp-pool" in reply.json()["message"]
            assert reply.json()["code"] == "engine_faulted" and http.get("/health").status_code == 200
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(client), "stalled_s", property(lambda _: 29.0))
            assert http.get("/ready").status_code == 200
            patch.setattr(type(client), "stalled_s", property(lambda _: 31.0))
            reply = http.get("/ready")
            assert reply.status_code == 503 and "made no token for 31 s" in reply.json()["message"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Workers, "is_failing", property(lambda self: self is live.services.workers))
            reply = http.get("/ready")
            assert reply.status_code == 503 and "can't be started" in reply.json()["message"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lane, "n_stuck", property(lambda _: 2))
            assert http.get("/ready").status_code == 200, "another thread took their place"


def test_the_log_tells_what_was_written_before_the_client_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="imp_server.api.visit")
    engine = ScriptedEngine(ByteText().vocabulary)
    with live_server(lambda: engine, ByteText) as live:
        engine.play(104, 105, Wait(30))
        with httpx.stream("POST", live.url + CHAT, json={**BODY, "stream": True}) as reply:
            for line in reply.iter_lines():
                if '"content":"i"' in line or '"content":"hi"' in line:
                    break
        until(lambda: any(record.name == "imp_server.api.visit" for record in caplog.records), 10)
    (told,) = [record for record in caplog.records if record.name == "imp_server.api.visit"]
    assert (vars(told)["completion_tokens"], vars(told)["finish"]) == (2, "none")
