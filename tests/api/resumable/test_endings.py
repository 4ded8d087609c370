"""What ends a stream and what doesn't; whose place at the gate it has; how much all of them may hold."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from imp_server.core.owner import NOBODY, owner_of
from imp_server.engine.client.scripted import ScriptedEngine, Wait, text_ids

from tests.api import raw_http
from tests.api.byte_text import ByteText
from tests.api.live_server import LiveServer, live_server
from tests.api.resumable.streams import (
    CHAT,
    MESSAGES,
    attached,
    begin,
    body,
    code_of,
    endless,
    gated,
    leave_behind,
    look_up,
    post,
    read,
    stop,
    until,
    url,
)
from tests.live.toy_server import toy_server


@contextmanager
def toy(**settings: Any) -> Iterator[LiveServer]:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    with toy_server(settings=named) as live:
        live.engine.always(*text_ids("Hello"))
        yield live


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy() as live:
        yield live


@contextmanager
def hanging(live: LiveServer) -> Iterator[Callable[[], int]]:
    """The engine accepts nothing; tells how many requests wait for it."""
    original, n_waiting = live.engine.submit, 0

    async def never(_request: Any) -> Any:
        nonlocal n_waiting
        n_waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            n_waiting -= 1

    engine: Any = live.engine
    engine.submit = never
    try:
        yield lambda: n_waiting
    finally:
        live.engine.submit = original  # type: ignore[method-assign]


# --- stopping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", [endless(), [Wait(60)]], ids=["writing", "prompt"])
def test_deleting_frees_the_row_and_ends_all_readers(server: LiveServer, actions: list[Any]) -> None:
    server.engine.play(*actions)
    with attached(server, "stopped", max_tokens=5000) as own:
        until(lambda: server.engine.n_running == 1)
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(read(server, "stopped").content))
        reader.start()
        until(lambda: server.on_loop(lambda: sum(s.n_readers for s in server.services.sessions.owned(NOBODY)) == 2))
        assert stop(server, "stopped") == 204
        assert until(lambda: server.engine.n_running == 0) < 0.25
        data = own.read()
        reader.join(5)
    assert b"[DONE]" not in data and b"error" not in data and found and data.startswith(found[0][:100])
    assert stop(server, "stopped") == 204
    assert read(server, "stopped").status_code == 404 and look_up(server, "stopped") == []
    assert post(server, "stopped").content.endswith(b"data: [DONE]\n\n")


def test_deleting_what_waits_for_a_row() -> None:
    model_rows = 1
    with toy() as live:
        live.engine._slots = asyncio.Semaphore(model_rows)
        live.engine.play(Wait(60))
        leave_behind(live, "first")
        live.engine.play(*text_ids("never"))
        leave_behind(live, "queued")
        assert [row["is_done"] for row in look_up(live, "first", "queued")] == [False, False]
        assert stop(live, "queued") == 204
        assert read(live, "queued").status_code == 404
        assert until(lambda: live.engine._n_queued() == 0) < 0.25
        assert stop(live, "first") == 204
        assert until(lambda: live.engine.n_running == 0) < 0.25


def test_deleting_before_the_engine_has_accepted(server: LiveServer) -> None:
    with hanging(server) as n_waiting:
        sock = begin(server, "parked")
        until(lambda: n_waiting() == 1)
        early = read(server, "parked")
        assert (early.status_code, early.headers["retry-after"], code_of(early)) == (503, "2", "stream_not_begun")
        assert look_up(server, "parked") == []
        assert stop(server, "parked") == 204
        status, _, data = raw_http.answer(sock)
        assert status == 400 and json.loads(data)["error"]["code"] == "request_cancelled"
        assert "cancelled" in json.loads(data)["error"]["message"]
        assert until(lambda: n_waiting() == 0) < 0.25
    assert read(server, "parked").status_code == 404


def test_a_client_that_leaves_before_that_leaves_its_stream(server: LiveServer) -> None:
    door, original = server.on_loop(asyncio.Event), server.engine.submit

    async def late(request: Any) -> Any:
        await door.wait()
        return await original(request)

    server.engine.submit = late  # type: ignore[method-assign]
    try:
        begin(server, "early").close()
        until(lambda: read(server, "early").status_code == 503)
        server.on_loop(door.set)
        until(lambda: read(server, "early").status_code == 200)
    finally:
        server.engine.submit = original  # type: ignore[method-assign]
    assert read(server, "early").content.endswith(b"data: [DONE]\n\n")


# --- one name, several requests ---------------------------------------------------------------------


def test_a_new_stream_of_the_name_ends_the_older_one(server: LiveServer) -> None:
    server.engine.play(*endless())
    with attached(server, "twice", max_tokens=5000) as older:
        until(lambda: server.engine.n_running == 1)
        newer = post(server, "twice")
        assert until(lambda: server.engine.n_running == 0) < 0.25
        assert b"[DONE]" not in older.read()
    assert newer.content.endswith(b"data: [DONE]\n\n") and read(server, "twice").content == newer.content


def test_a_refused_request_ends_nothing() -> None:
    with toy(server__api_key=["k"], server__max_concurrent=2) as live:
        key = {"authorization": "Bearer k"}
        headers = {"x-conversation-id": "kept", **key}
        live.engine.play(*endless())
        with raw_http.connect(live.url) as sock:
            sock.sendall(raw_http.posted(body(max_tokens=5000), "x-conversation-id: kept", "authorization: Bearer k"))
            sock.recv(1)

        def refused(status: int, headers: dict[str, str] = headers, **fields: Any) -> None:
            reply = httpx.post(live.url + CHAT, json=body(**fields), headers=headers, timeout=20)
            assert reply.status_code == status, reply.text
            (row,) = live.on_loop(lambda: live.services.sessions.of(owner_of("k")).rows(["kept"]))
            assert not row.is_done and live.engine.n_running == 1

        refused(400, temperature="hot")
        refused(400, messages=[])
        refused(400, messages=[{"role": "user", "content": "x" * 40000}])
        refused(400, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "no"}}})
        refused(401, {"x-conversation-id": "kept"})
        refused(404, model="other")
        with raw_http.connect(live.url) as second:
            live.engine.play(Wait(60))
            second.sendall(raw_http.posted(body(stream=False), "authorization: Bearer k"))
            until(lambda: live.engine.n_running == 2)
            reply = httpx.post(live.url + CHAT, json=body(), headers=headers)
            assert reply.status_code == 429
        until(lambda: live.engine.n_running == 1)
        live.on_loop(setattr, live.services, "draining", True)
        refused(503)
        live.on_loop(setattr, live.services, "draining", False)
        assert httpx.delete(url(live, "kept"), headers=key).status_code == 204


def test_of_two_requests_on_their_way_the_later_one_stays(server: LiveServer) -> None:
    """The earlier one is accepted later: it must not end the newer stream."""
    doors, original = [server.on_loop(asyncio.Event) for _ in range(2)], server.engine.submit
    arrived: list[Any] = []

    async def late(request: Any) -> Any:
        door = doors[len(arrived)]
        arrived.append(request)
        await door.wait()
        return await original(request)

    server.engine.submit = late  # type: ignore[method-assign]
    try:
        first = begin(server, "race")
        until(lambda: len(arrived) == 1)
        second = begin(server, "race", max_tokens=2)
        until(lambda: len(arrived) == 2)
        server.on_loop(doors[1].set)
        status, _, data = raw_http.answer(first)
        assert status == 400 and json.loads(data)["error"]["code"] == "request_cancelled"
        server.on_loop(doors[0].set)
    finally:
        server.engine.submit = original  # type: ignore[method-assign]
    until(lambda: look_up(server, "race")[0]["is_done"])
    assert b'"finish_reason":"length"' in read(server, "race").content
    second.close()


# --- limits -----------------------------------------------------------------------------------------


def test_a_detached_stream_has_its_place_at_the_gate() -> None:
    with toy(server__max_concurrent=1) as live:
        (gate,) = gated(live, "ok")
        leave_behind(live, "placed")
        for _ in range(3):
            assert httpx.post(live.url + CHAT, json=body(), timeout=20).status_code == 429
        live.on_loop(gate.set)
        until(lambda: look_up(live, "placed")[0]["is_done"])
        assert httpx.post(live.url + CHAT, json=body(), timeout=20).status_code == 200
        assert live.services.admission.gate.n_taken == 0
        assert live.services.admission.bodies.n_taken == 0


def test_its_body_is_paid_for_until_it_ends() -> None:
    with toy(server__max_body_memory_mib=100) as live:
        (gate,) = gated(live, "ok")
        leave_behind(live, "large", messages=MESSAGES, metadata={"k": "v"}, padding=["x" * 1000] * 400)
        time.sleep(0.05)
        assert live.services.admission.bodies.n_taken > 400_000
        live.on_loop(gate.set)
        until(lambda: live.services.admission.bodies.n_taken == 0)


def test_the_oldest_that_has_ended_makes_room_and_none_that_is_written() -> None:
    with toy(streams__max_sessions=3) as live:
        for name in "abcd":
            post(live, name)
        assert [row["conversation_id"] for row in look_up(live, *"abcd")] == ["b", "c", "d"]
        for name in "xyz":
            live.engine.play(*endless())
            leave_behind(live, name, max_tokens=5000)
        assert [row["conversation_id"] for row in look_up(live, *"abcdxyz")] == ["x", "y", "z"]
        n_seen = len(live.engine.requests_seen)
        full = post(live, "one-too-many")
        assert (full.status_code, code_of(full)) == (429, "rate_limit_exceeded") and "retry-after" in full.headers
        assert len(live.engine.requests_seen) == n_seen, "refused before the engine has seen it"
        assert httpx.post(live.url + CHAT, json=body(), timeout=20).status_code == 200
        assert post(live, "y").status_code == 200, "it takes the place of its own name"
        assert post(live, "w").status_code == 200
        assert [row["conversation_id"] for row in look_up(live, *"wxyz")] == ["w", "x", "z"]
        for name in "xz":
            stop(live, name)


def test_a_refused_request_makes_no_room() -> None:
    with toy(streams__max_sessions=1) as live:
        post(live, "kept")
        assert post(live, "new", messages=[{"role": "user", "content": "x" * 40000}]).status_code == 400
        assert read(live, "kept").status_code == 200


def test_what_ended_is_kept_for_a_while(server: LiveServer) -> None:
    post(server, "brief")
    assert read(server, "brief").status_code == 200
    (session,) = server.on_loop(
        lambda: [one for one in server.services.sessions.owned(NOBODY) if one.key.name == "brief"]
    )
    session.ended_s -= 295
    time.sleep(0.01)
    server.on_loop(server.services.sessions.look)
    assert read(server, "brief").status_code == 200
    session.ended_s -= 5
    server.on_loop(server.services.sessions.look)
    assert read(server, "brief").status_code == 404 and look_up(server, "brief") == []
    assert server.services.sessions.n_bytes == sum(len(one.ring) for one in server.services.sessions.owned(NOBODY))


def test_what_nobody_reads_is_ended_and_says_why() -> None:
    with toy(streams__detached_s=0.5) as live:
        live.engine.play(*endless())
        leave_behind(live, "alone", max_tokens=5000)
        live.engine.play(*endless())
        with attached(live, "watched", max_tokens=300) as own:
            until(lambda: look_up(live, "alone")[0]["is_done"])
            data = own.read()
        error = json.loads(read(live, "alone").content.rstrip().rpartition(b"data: ")[2])
        assert error["error"]["code"] == "unavailable" and "detached_s" in error["error"]["message"]
        assert data.endswith(b"data: [DONE]\n\n"), "one that is read goes on"
        until(lambda: live.engine.n_running == 0)


def test_it_ends_at_the_deadline_of_requests() -> None:
    with toy(server__request_timeout_s=0.3) as live:
        live.engine.play(*text_ids("so far"), Wait(60))
        leave_behind(live, "timed")
        data = read(live, "timed").content
        assert b'"finish_reason":"length"' in data and data.endswith(b"data: [DONE]\n\n")


# --- the model, and the end of the server -----------------------------------------------------------


class SlowToLoad(ScriptedEngine):
    """Loads until the test says it is done."""

    def __init__(self) -> None:
        super().__init__(ByteText().vocabulary)
        self.loaded = asyncio.Event()

    async def start(self, on_progress: Callable[[str, float], None] | None = None) -> None:
        self._state = "loading"
        await self.loaded.wait()
        await super().start(on_progress)


@contextmanager
def loading(**settings: Any) -> Iterator[LiveServer]:
    with live_server(SlowToLoad, ByteText, model="toy", wait_ready=False, settings=settings) as live:
        until(lambda: _answers(live), 10)
        yield live


def _answers(live: LiveServer) -> bool:
    try:
        return httpx.get(live.url + "/health").status_code == 503
    except httpx.TransportError:
        return False


def test_while_the_model_loads_a_request_with_a_name_waits() -> None:
    with loading() as live:
        assert httpx.post(live.url + CHAT, json=body()).status_code == 503
        named = {"x-conversation-id": "whole"}
        assert httpx.post(live.url + CHAT, json=body(stream=False), headers=named).status_code == 503
        assert read(live, "unknown").status_code == 404
        begin(live, "waits").close()
        stays, stopped = begin(live, "stays"), begin(live, "stopped")
        for name in ("waits", "stays", "stopped"):
            until(lambda: read(live, name).status_code == 503)  # noqa: B023
            early = read(live, name)
            assert (early.headers["retry-after"], code_of(early)) == ("2", "stream_not_begun")
        assert stop(live, "stopped") == 204
        status, _, data = raw_http.answer(stopped)
        assert status == 400 and b"cancelled" in data
        assert read(live, "stopped").status_code == 404
        assert isinstance(live.client, SlowToLoad)
        live.client.always(*text_ids("ok"))
        live.on_loop(live.client.loaded.set)
        for name in ("waits", "stays"):
            until(lambda: read(live, name).status_code == 200, 10)  # noqa: B023
            assert read(live, name).content.endswith(b"data: [DONE]\n\n")
        assert stays.recv(12) == b"HTTP/1.1 200"


def test_a_model_that_loads_too_long() -> None:
    with loading(**{"server.request_timeout_s": 0.3}) as live:
        late = httpx.post(live.url + CHAT, json=body(), headers={"x-conversation-id": "late"}, timeout=20)
        assert (late.status_code, code_of(late)) == (503, "model_loading")
        assert read(live, "late").status_code == 404


def test_the_end_of_the_server_ends_what_is_detached() -> None:
    """The block ends within seconds although nobody stops the streams."""
    with toy() as live:
        for name in "abc":
            live.engine.play(*endless())
            leave_behind(live, name, max_tokens=5000)
        sessions = live.on_loop(lambda: live.services.sessions.owned(NOBODY))
        assert len(sessions) == 3
        start = time.perf_counter()
    assert time.perf_counter() - start < 5
    assert all(session.is_done for session in sessions) and live.services.admission.gate.n_taken == 0
