"""The store's thread: the end of a reply waits for it a second at most, and nobody else does."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from imp_server.api import responses_kept
from imp_server.api.admission.body_memory import BodyMemory, charging
from imp_server.api.responses_kept import ResponseShelf, response_shelf
from imp_server.config import Config
from imp_server.core import Unavailable
from imp_server.engine.client.scripted import text_ids

from tests.api.test_responses_store import A, B, answer, asked
from tests.live.toy_server import toy_server


class HangingDisk:
    """Holds up whatever the store's thread does next."""

    def __init__(self, shelf: ResponseShelf) -> None:
        self._goes_on = threading.Event()
        shelf.lane.submit(lambda: self._goes_on.wait(20))

    def go_on(self) -> None:
        self._goes_on.set()


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[ResponseShelf]:
    found = response_shelf(Config.of({"responses.store_path": str(tmp_path / "r.sqlite")}))
    yield found
    asyncio.run(found.close())


def test_what_is_kept_is_found_by_its_owner(shelf: ResponseShelf) -> None:
    async def keep() -> None:
        assert await shelf.of(A).put(answer("r1"), asked("r1"))
        assert await shelf.of(A).resource("r1") == answer("r1")
        assert await shelf.of(B).resource("r1") is None and not await shelf.of(B).delete("r1")
        assert (await shelf.of(B).totals()).entries == 1

    asyncio.run(keep())


def test_what_an_item_takes_is_counted_beside_the_event_loop(
    shelf: ResponseShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def counted(*_: str) -> int:
        threads.append(threading.current_thread())
        return 9

    monkeypatch.setattr(responses_kept, "memory_of", counted)

    async def keep() -> None:
        assert await shelf.of(A).put(answer("r1"), asked("r1"))
        charge = BodyMemory(1 << 30).charge()
        with charging(charge):
            assert await shelf.of(A).item("in_r1")
        assert charge.n_bytes == 9 and threads and threading.main_thread() not in threads

    asyncio.run(keep())


def test_a_disk_that_hangs_holds_nobody_up(shelf: ResponseShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_KEEP_S", "_FIND_S", "_TOTALS_S"):
        monkeypatch.setattr(responses_kept, name, 0.05)

    async def keep() -> None:
        mine = shelf.of(A)
        assert await mine.put(answer("r0"), asked("r0"))
        known = await mine.totals()
        disk = HangingDisk(shelf)
        assert not await mine.put(answer("r1"), asked("r1")), "it isn't known to be kept"
        with pytest.raises(Unavailable, match="doesn't answer"):
            await mine.resource("r0")
        assert await mine.totals() == known, "what was true last"
        disk.go_on()
        monkeypatch.setattr(responses_kept, "_FIND_S", 5)
        assert await mine.resource("r1") == answer("r1"), "late, but kept"
        assert shelf.n_unwritten == 0

    asyncio.run(keep())


def test_few_wait_for_the_disk(shelf: ResponseShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_kept, "_KEEP_S", 0.05)
    monkeypatch.setattr(responses_kept, "_MOST_UNWRITTEN", 3)

    async def keep() -> None:
        mine = shelf.of(A)
        disk = HangingDisk(shelf)
        await asyncio.gather(*(mine.put(answer(f"r{i}"), asked(f"r{i}")) for i in range(5)))
        disk.go_on()
        assert [await mine.resource(f"r{i}") is not None for i in range(5)] == [True, True, True, False, False]
        assert await mine.put(answer("r9"), asked("r9"))

    asyncio.run(keep())


def test_a_reply_that_could_not_be_kept_says_so_in_time() -> None:
    with toy_server() as live, httpx.Client(base_url=live.url, timeout=10) as http:
        live.engine.always(text_ids("ok"))
        disk = HangingDisk(live.services.shelf)
        began = time.monotonic()
        stream = http.post("/v1/responses", json={"model": "toy", "input": "hi", "stream": True}).text
        took_s = time.monotonic() - began
        events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
        assert events[-1]["type"] == "response.completed" and events[-1]["response"]["store"] is False
        assert 0.9 < took_s < 3
        began = time.monotonic()
        assert http.post("/v1/responses", json={"model": "toy", "input": "hi", "store": False}).status_code == 200
        assert time.monotonic() - began < 0.9, "what isn't to be kept waits for nothing"
        disk.go_on()
