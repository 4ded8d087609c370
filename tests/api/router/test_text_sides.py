"""Text sides that were opened to count tokens: who uses one keeps it, and those that nobody uses are closed."""

from __future__ import annotations

import asyncio
import sys
import time
from types import SimpleNamespace
from typing import Any

from imp_server.api.models import Models
from imp_server.api.pool import WorkerPool
from imp_server.api.router import residency as residency_module
from imp_server.api.router.control import Control
from imp_server.api.router.downloads import Download
from imp_server.api.router.leases import Leases
from imp_server.api.router.residency import Residency

from tests.api.byte_text import ByteText
from tests.api.router.several import ScriptedCatalogue


class ClosedText(ByteText):
    n_closed = 0

    def close(self) -> None:
        self.n_closed += 1


def made_hosts(*names: str) -> list[Any]:
    hosts = ScriptedCatalogue(*names).hosts()
    for host in hosts:
        host.text = ClosedText()
    return hosts


def test_who_reads_keeps_a_text_side_open() -> None:
    async def check() -> None:
        (host,) = made_hosts("a")
        text, leases = host.text, Leases()
        leases.read(host)
        leases.read(host)  # once more in the same request
        closing = asyncio.create_task(host.close_text())
        await asyncio.sleep(0.02)
        assert host.text is None and not closing.done() and text.n_closed == 0
        leases.close()
        await closing
        assert text.n_closed == 1

    asyncio.run(check())


def test_those_that_nobody_uses_are_closed_in_time_and_the_oldest_of_many_at_once() -> None:
    async def check() -> None:
        hosts = made_hosts(*"abcdefghijkl")
        texts = [host.text for host in hosts]
        for age, host in enumerate(hosts):
            host.read_s = time.monotonic() - age
        hosts[0].read_s -= residency_module._TEXT_S + 1
        end = hosts[11].reading()
        residency = Residency(lambda: hosts, None)  # type: ignore[arg-type]
        residency._close_texts()
        await asyncio.gather(*residency._resting)
        closed = [i for i, text in enumerate(texts) if text.n_closed]
        assert closed == [0, 9, 10]  # too old; beyond eight; and the last is in use
        end()

    asyncio.run(check())


def test_who_asks_for_a_scan_before_it_begins_shares_it() -> None:
    async def check() -> None:
        catalogue = ScriptedCatalogue("a")
        n_scans, hosts = 0, catalogue.hosts

        def counted() -> list[Any]:
            nonlocal n_scans
            n_scans += 1
            time.sleep(0.05)
            return hosts()

        catalogue.hosts = counted  # type: ignore[method-assign]
        residency: Any = SimpleNamespace(was_used=None)
        control = Control(Models(), residency, WorkerPool(), 1.0, catalogue)
        await asyncio.gather(*(control.scan() for _ in range(9)))
        assert n_scans == 1
        first = asyncio.create_task(control.scan())
        await asyncio.sleep(0.02)  # it looks already, perhaps too early for what has just come
        await asyncio.gather(first, control.scan(), control.scan())
        assert n_scans == 3

    asyncio.run(check())


def test_a_download_is_cancelled_while_it_is_begun() -> None:
    async def check() -> None:
        download = Download((sys.executable, "-c", "import time; time.sleep(60)"), lambda _: None)
        running = asyncio.create_task(download.run())
        await asyncio.sleep(0)  # there is no process yet
        download.cancel()
        assert await asyncio.wait_for(running, 30) == "the download was cancelled"

    asyncio.run(check())
