"""Text sides that were opened to count tokens: who uses one keeps it, and those that nobody uses are closed."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from imp_server.api.model_host import ModelHost
from imp_server.api.models import Models
from imp_server.api.pool import WorkerPool
from imp_server.api.router import residency as residency_module
from imp_server.api.router.control import Control
from imp_server.api.router.downloads import Download
from imp_server.api.router.leases import Leases
from imp_server.api.router.residency import Residency
from imp_server.config import Config
from imp_server.core import ModelFileMissing, NotFound
from imp_server.core.errand import Errand, running

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
        closing = host.close_text()
        await asyncio.sleep(0.02)
        assert host.text is None and not closing.done() and text.n_closed == 0
        leases.close()
        await closing
        assert text.n_closed == 1

    asyncio.run(check())


def test_a_model_leaves_memory_while_its_text_side_is_read() -> None:
    async def check() -> None:
        (host,) = made_hosts("a")
        text, end = host.text, host.reading()
        await asyncio.wait_for(host.put_to_rest(), 5)
        assert host.text is None and text.n_closed == 0
        end()
        await asyncio.gather(*host._closing)
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


def control_of(catalogue: ScriptedCatalogue, models: Models) -> Control:
    residency: Any = SimpleNamespace(was_used=None)
    return Control(models, residency, WorkerPool(), 1.0, catalogue)


def test_who_leaves_takes_no_scan_from_those_who_share_it() -> None:
    async def check() -> None:
        catalogue, models, errand = ScriptedCatalogue("a"), Models(), Errand()
        control = control_of(catalogue, models)
        async with control._scanning:  # one is under way
            with running(errand):
                first = asyncio.create_task(control.scan())
            await asyncio.sleep(0)
            second = asyncio.create_task(control.scan())
            await asyncio.sleep(0)
            errand.end()
        await asyncio.gather(first, second)
        assert [host.id for host in models] == ["a"]

    asyncio.run(check())


def test_text_sides_of_models_that_are_gone_or_other_ones_now_are_closed() -> None:
    async def check() -> None:
        catalogue = ScriptedCatalogue("a", "b", "c")
        hosts = made_hosts("a", "b", "c")
        texts, models = [host.text for host in hosts], Models(hosts)
        control = control_of(catalogue, models)
        del catalogue.options["a"]
        catalogue.options["b"] = {"config": Config.of({"server.max_tokens": 7})}
        leave = hosts[1].reading()
        await control.scan()
        await asyncio.sleep(0.05)
        assert [text.n_closed for text in texts] == [1, 0, 0] and [host.id for host in models] == ["b", "c"]
        leave()
        await control.close()
        assert [text.n_closed for text in texts] == [1, 1, 0]

    asyncio.run(check())


def test_a_model_that_is_being_deleted_is_no_new_one_to_a_scan() -> None:
    async def check() -> None:
        catalogue, host = ScriptedCatalogue("a"), made_hosts("a")[0]
        host.source, models, may_go = "catalogue", Models([host]), asyncio.Event()

        async def let_go(*_: Any) -> None:
            await may_go.wait()

        control = control_of(catalogue, models)
        control._residency.let_go = let_go  # type: ignore[method-assign, assignment]
        removal = asyncio.create_task(control.remove("a"))
        await asyncio.sleep(0)
        await control.scan()
        assert list(models) == [host]
        may_go.set()
        await removal
        assert not list(models) and catalogue.removed == ["a"]

    asyncio.run(check())


def test_a_scan_that_saw_the_files_brings_no_deleted_model_back(monkeypatch: pytest.MonkeyPatch) -> None:
    retired: list[str] = []

    async def retire(host: ModelHost) -> None:
        retired.append(host.id)

    monkeypatch.setattr(ModelHost, "retire", retire)

    async def check() -> None:
        catalogue, host = ScriptedCatalogue("a"), made_hosts("a")[0]
        host.source, models = "catalogue", Models([host])
        has_seen, may_go = threading.Event(), threading.Event()
        seen = catalogue.hosts

        def hosts() -> list[ModelHost]:
            found = seen()
            has_seen.set()
            assert may_go.wait(10)
            return found

        async def let_go(*_: Any) -> None: ...

        catalogue.hosts = hosts  # type: ignore[method-assign]
        control = control_of(catalogue, models)
        control._residency.let_go = let_go  # type: ignore[method-assign, assignment]
        scan = asyncio.create_task(control.scan())
        await asyncio.to_thread(has_seen.wait, 10)
        removal = asyncio.create_task(control.remove("a"))
        await asyncio.wait((removal,), timeout=0.05)
        may_go.set()
        await asyncio.gather(scan, removal)
        await asyncio.gather(*control._tasks)
        assert not list(models) and catalogue.removed == ["a"] and retired == ["a"]

    asyncio.run(check())


@pytest.mark.parametrize(("fault", "stays"), [(ModelFileMissing("gone"), False), (PermissionError("no"), True)])
def test_files_that_can_not_be_deleted(fault: Exception, stays: bool) -> None:
    async def check() -> None:
        catalogue, host = ScriptedCatalogue("a"), made_hosts("a")[0]
        host.source, models = "catalogue", Models([host])

        async def let_go(*_: Any) -> None: ...

        def remove(name: str) -> None:
            raise fault

        catalogue.remove = remove  # type: ignore[method-assign]
        control = control_of(catalogue, models)
        control._residency.let_go = let_go  # type: ignore[method-assign, assignment]
        with pytest.raises(PermissionError if stays else NotFound):
            await control.remove("a")
        assert [one.id for one in models] == ["a"] * stays and host.broken == ""

    asyncio.run(check())


def test_a_download_is_cancelled_while_it_is_begun() -> None:
    async def check() -> None:
        download = Download((sys.executable, "-c", "import time; time.sleep(60)"), lambda _: None)
        running = asyncio.create_task(download.run())
        await asyncio.sleep(0)  # there is no process yet
        download.cancel()
        assert await asyncio.wait_for(running, 30) == "the download was cancelled"

    asyncio.run(check())
