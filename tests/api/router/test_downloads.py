"""Models that are fetched and deleted while the server runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
from imp_server.api.router.events import ModelEvents
from imp_server.engine.client.scripted import ScriptedEngine, text_ids

from tests.api.byte_text import ByteText
from tests.api.live_server import live_server
from tests.api.router.several import Followed, ScriptedCatalogue, said, several, statuses
from tests.api.test_streams import until

FETCH = """
import json, sys, time
for done in (0, 40, 80, 100):
    print(json.dumps({"file": "x.gguf", "done": done, "total": 100}), flush=True)
print(json.dumps({"name": "new"}))
"""
ENDLESS = """
import json, os, time
print(json.dumps({"file": "x.gguf", "done": 1, "total": 0, "pid": os.getpid()}), flush=True)
open(%r, "w").write(str(os.getpid()))
time.sleep(60)
"""
FAILS = """
import json, sys
print(json.dumps({"error": "the hub doesn't have it"}))
sys.exit(4)
"""


def saw(followed: Followed, *statuses: str) -> bool:
    return followed.statuses("new") == list(statuses)


def error_of(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def test_a_model_is_fetched_served_and_deleted() -> None:
    catalogue = ScriptedCatalogue("a")
    catalogue.fetch_script = FETCH
    with several(catalogue) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        followed = Followed(live)
        until(lambda: len(followed.events) == 1, 20)
        catalogue.options["new"] = {"source": "catalogue"}
        assert http.post("/models", json={"model": "new"}).json() == {"success": True}
        until(lambda: statuses(live).get("new") == "unloaded", 20)
        until(lambda: followed.statuses("new") == ["downloading", "downloaded", "unloaded"], 20)
        told = [data["progress"] for data in followed.of("new") if "progress" in data]
        assert told[0] == {} and told[-1] == {"x.gguf": {"done": 100, "total": 100}}
        assert said(live, "new") == "new"
        listed = http.get("/v1/models/new").json()
        assert (listed["source"], listed["can_remove"]) == ("catalogue", True)
        assert error_of(http.post("/models", json={"model": "new"})) == (400, "model_not_fetchable")
        assert http.delete("/models", params={"model": "new"}).json() == {"success": True}
        assert catalogue.removed == ["new"] and "new" not in statuses(live)
        assert catalogue["new"].state == "stopped"
        until(lambda: followed.statuses("new")[-1] == "removed", 20)


def test_only_what_was_fetched_is_deleted() -> None:
    catalogue = ScriptedCatalogue("a")
    with several(catalogue) as live, httpx.Client(base_url=live.url) as http:
        assert error_of(http.delete("/models", params={"model": "a"})) == (400, "model_not_removable")
        assert error_of(http.delete("/models", params={"model": "o"})) == (404, "model_not_found")
        assert error_of(http.delete("/models")) == (400, "missing_required_parameter")
        assert error_of(http.post("/models", json={"model": "/etc/passwd"})) == (400, "model_not_fetchable")
        assert error_of(http.post("/models", json={"model": ""})) == (400, "invalid_value")
        assert catalogue.removed == [] and said(live, "a") == "a"


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_a_download_is_cancelled_and_ends_with_the_server(tmp_path: Path) -> None:
    catalogue, file = ScriptedCatalogue("a"), tmp_path / "pid"
    catalogue.fetch_script = ENDLESS % str(file)
    with several(catalogue) as live, httpx.Client(base_url=live.url, timeout=20) as http:
        for end in (
            partial(http.post, "/models/unload", json={"model": "new"}),
            partial(http.delete, "/models", params={"model": "new"}),
        ):
            file.unlink(missing_ok=True)
            http.post("/models", json={"model": "new"}).raise_for_status()
            until(lambda: file.exists() and bool(file.read_text()), 20)
            pid = int(file.read_text())
            assert error_of(http.post("/models", json={"model": "new"})) == (400, "model_not_fetchable")
            late = Followed(live)
            until(partial(saw, late, "downloading"), 20)
            assert end().json() == {"success": True} and not is_alive(pid)
            until(partial(saw, late, "downloading", "unloaded"), 20)
            assert "cancelled" in late.of("new")[-1]["error"]
        file.unlink()
        http.post("/models", json={"model": "new"}).raise_for_status()
        until(lambda: file.exists() and bool(file.read_text()), 20)
        pid = int(file.read_text())
    assert not is_alive(pid)


def test_a_download_that_fails_says_why() -> None:
    catalogue = ScriptedCatalogue("a")
    catalogue.fetch_script = FAILS
    with several(catalogue) as live:
        followed = Followed(live)
        httpx.post(live.url + "/models", json={"model": "new"}).raise_for_status()
        until(lambda: "unloaded" in followed.statuses("new"), 20)
        assert followed.of("new")[-1]["error"] == "the hub doesn't have it"
        assert "new" not in statuses(live)


def test_a_server_of_one_model_tells_and_fetches_nothing() -> None:
    def engine() -> ScriptedEngine:
        scripted = ScriptedEngine(ByteText().vocabulary)
        scripted.always(text_ids("x"))
        return scripted

    with live_server(engine, ByteText) as live, httpx.Client(base_url=live.url) as http:
        followed = Followed(live)
        until(lambda: followed.statuses("m") == ["loaded"], 20)
        assert error_of(http.post("/models", json={"model": "smollm2"})) == (409, "conflict")
        assert error_of(http.delete("/models", params={"model": "m"})) == (409, "conflict")
        http.post("/models/unload", json={"model": "m"}).raise_for_status()
        until(lambda: followed.statuses("m") == ["loaded", "sleeping"], 20)
        http.post("/models/load", json={"model": "m"}).raise_for_status()
        until(lambda: followed.statuses("m") == ["loaded", "sleeping", "loading", "loaded"], 20)
        assert http.get("/models/sse/x").status_code == 404


def test_a_listener_that_leaves_is_forgotten() -> None:
    with several(ScriptedCatalogue("a")) as live:
        listeners = live.services.control._events._listeners
        with httpx.stream("GET", live.url + "/models/sse") as reply:
            lines = reply.iter_lines()
            next(lines)
            until(lambda: len(listeners) == 1, 20)
        until(lambda: not listeners, 20)
        assert httpx.head(live.url + "/models/sse").status_code == 200 and not listeners


# --- how often is told ----------------------------------------------------------------------------


def run(work: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(work(), 20))


def told_of(chunks: list[bytes]) -> list[dict[str, Any]]:
    lines = b"".join(chunks).split(b"\n\n")
    return [msgspec.json.decode(line[6:])["data"] for line in lines if line.startswith(b"data: ")]


def test_progress_has_a_rate_and_its_first_and_last_always_come() -> None:
    async def body() -> None:
        states: list[tuple[str, dict[str, Any]]] = [("m", {"status": "unloaded"})]
        events = ModelEvents(lambda: states, 5.0)
        chunks: list[bytes] = []

        async def read() -> None:
            chunks.extend([chunk async for chunk in events.listener().chunks()])

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        for n in range(101):
            events.tell("m", {"status": "loading", "progress": {"value": n}}, pause_s=0.1)
            await asyncio.sleep(0.005)
        events.tell("m", {"status": "loaded"})
        await asyncio.sleep(0.02)
        events.close()
        await reading
        told = told_of(chunks)
        values = [data["progress"]["value"] for data in told if "progress" in data]
        assert values[0] == 0 and values[-1] == 100 and values == sorted(values)
        assert 4 <= len(values) <= 13
        assert told[0] == {"status": "unloaded"} and told[-1] == {"status": "loaded"}

    run(body)


def test_progress_that_stops_is_told_although_nothing_follows() -> None:
    async def body() -> None:
        events = ModelEvents(list, 5.0)
        listener = events.listener()
        chunks = listener.chunks()
        assert (await anext(chunks)).startswith(b":")
        for n in (1, 2):
            events.tell("m", {"status": "loading", "progress": {"value": n}}, pause_s=0.05)
        assert b'"value":1' in await anext(chunks)
        assert b'"value":2' in await asyncio.wait_for(anext(chunks), 1)

    run(body)


def test_who_reads_slowly_gets_the_states_instead() -> None:
    async def body() -> None:
        events = ModelEvents(lambda: [("m", {"status": "loaded"})], 5.0)
        listener = events.listener()
        chunks = listener.chunks()
        await anext(chunks)
        for n in range(5000):
            events.tell("m", {"status": ("loading", "loaded")[n % 2]})
        data = await anext(chunks)
        assert len(data) < 200_000 and told_of([data])[-1] == {"status": "loaded"}

    run(body)
