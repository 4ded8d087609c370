"""A disk that hangs: the store's thread is replaced, twice; behind that /ready tells; nothing piles up meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from imp_server.api import responses_kept
from imp_server.api.responses_store import ResponsesStore
from imp_server.core.owner import NOBODY
from imp_server.engine.client.base import EngineStats

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server


@contextmanager
def serving(tmp_path: Path) -> Iterator[tuple[LiveServer, httpx.Client]]:
    settings = {"responses.store_path": str(tmp_path / "responses.sqlite"), "server.stuck_thread_s": 0.4}
    with toy_server(settings=settings) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        live.engine.always(ord("o"), ord("k"))
        yield live, http


def respond(http: httpx.Client, **more: Any) -> dict[str, Any]:
    reply = http.post("/v1/responses", json={"model": "toy", "input": "hi", "max_output_tokens": 4, **more})
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


def until(condition: Callable[[], Any], limit_s: float = 8.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def hang(live: LiveServer, door: threading.Event) -> threading.Event:
    """The store's thread waits inside of a transaction, as for a disk; the event tells that it does."""
    store, begun = live.services.shelf.store, threading.Event()
    assert store is not None

    def job() -> None:
        with store._db as db:
            db.execute("SELECT 1")
            begun.set()
            door.wait(30)
            db.execute("SELECT 2")

    live.services.shelf.lane.submit(job)
    return begun


def test_the_threads_of_a_hanging_store_are_replaced_and_ready_tells_when_none_is_left(tmp_path: Path) -> None:
    door = threading.Event()
    with serving(tmp_path) as (live, http):
        kept = respond(http)["id"]
        for _ in range(2):
            assert hang(live, door).wait(5)
            until(lambda: respond(http)["store"])
            assert http.get(f"/v1/responses/{kept}").status_code == 200
            assert http.get("/ready").status_code == 200
        assert hang(live, door).wait(5)
        until(lambda: http.get("/ready").status_code == 503)
        told = http.get("/ready").json()
        assert told["ready"] is False and "responses.store_path" in told["message"]
        assert respond(http)["store"] is False, "answers are made all the same"
        door.set()
        until(lambda: http.get("/ready").status_code == 200)
        until(lambda: respond(http)["store"])
        assert http.get(f"/v1/responses/{kept}").status_code == 200


def test_nothing_piles_up_before_a_store_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_kept, "_FIND_S", 0.5)
    door = threading.Event()
    with serving(tmp_path) as (live, http):
        live.services.shelf.lane._stuck_s = 0.0  # no other thread comes
        assert hang(live, door).wait(5)
        for _ in range(12):
            assert "imp_responses_store_entries" in http.get("/metrics").text
        assert live.services.shelf.lane.n_waiting == 1, "one question for all scrapes"
        with ThreadPoolExecutor(16) as clients:
            asked = list(clients.map(lambda i: http.get(f"/v1/responses/resp_{i}").status_code, range(16)))
        assert set(asked) == {503}
        assert live.services.shelf.lane.n_waiting <= 1 + 16
        door.set()
        until(lambda: live.services.shelf.lane.n_waiting == 0)
        assert http.get("/v1/responses/resp_x").status_code == 404


def test_a_flood_of_questions_to_a_store_that_hangs_is_refused(tmp_path: Path) -> None:
    door = threading.Event()
    with serving(tmp_path) as (live, http):
        live.services.shelf.lane._stuck_s = 0.0
        assert hang(live, door).wait(5)
        for _ in range(256):
            live.services.shelf.lane.submit(lambda: None)
        begun = time.monotonic()
        assert http.get("/v1/responses/resp_x").status_code == 503
        assert time.monotonic() - begun < 2
        door.set()


def test_each_thread_has_its_own_connection(tmp_path: Path) -> None:
    """A transaction that hangs doesn't become another thread's."""
    store = ResponsesStore(str(tmp_path / "responses.sqlite"), ttl_s=60, max_entries=10, max_bytes=10**6)
    with store._db as db:
        db.execute("SELECT count(*) FROM responses").fetchone()
        with ThreadPoolExecutor(1) as other:
            resource: dict[str, Any] = {"id": "resp_1", "output": [], "previous_response_id": None}
            assert other.submit(store.put, NOBODY, resource, []).result(10)
    assert store.resource(NOBODY, "resp_1") == resource
    store.close()


def test_metrics_do_not_wait_for_an_engine_that_hangs(tmp_path: Path) -> None:
    with serving(tmp_path) as (live, http):
        assert "imp_rows_running 0" in http.get("/metrics").text
        asked: list[int] = []
        door = threading.Event()

        async def stats() -> EngineStats:
            import asyncio

            asked.append(1)
            await asyncio.to_thread(door.wait, 30)
            return EngineStats({"steps_total": 7.0}, ())

        live.engine.stats = stats  # type: ignore[method-assign]
        with ThreadPoolExecutor(4) as clients:
            begun = time.monotonic()
            texts = list(clients.map(lambda _: http.get("/metrics").text, range(8)))
            assert time.monotonic() - begun < 6
        assert all("imp_rows_running 0" in text for text in texts), "what was told last"
        assert asked == [1]
        door.set()
        until(lambda: "imp_steps_total 7" in http.get("/metrics").text)
