"""One job, one process: it ends with its limits, with its client and with its parent, and small ones never wait."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from imp_server.core import Unavailable
from imp_server.engine.constrained.turn_queue import TurnQueue
from imp_server.workers.child import NICE
from imp_server.workers.client import Workers
from imp_server.workers.jobs import JobBroken, JobFault, Jobs
from imp_server.workers.lasting import LastingWorkers
from imp_server.workers.wire import JobLimits

ROOMY = JobLimits(cpu_s=20.0)
JOBS = "tests.workers.some_jobs"


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    found = Workers([f"{JOBS}:warm_up"])
    found.start()
    yield found
    found.close()


@pytest.fixture
def rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job has its slice, so that a test takes no longer on a busy machine."""
    for account in ("OWN", "SHARED"):
        monkeypatch.setattr(f"imp_server.workers.jobs.{account}", (10.0, 1000.0))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone_within(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while is_alive(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def first_line(path: Path) -> str:
    with path.open() as file:
        return file.readline()


async def ask(jobs: Jobs, name: str, data: bytes = b"", limits: JobLimits = ROOMY, owner: str = "") -> bytes:
    return await jobs.run(f"{JOBS}:{name}", data, limits, owner)


@pytest.mark.usefixtures("rich")
def test_each_job_has_a_process_of_its_own(workers: Workers) -> None:
    async def both() -> list[bytes]:
        jobs = Jobs(workers)
        assert await ask(jobs, "shout", b"abc" * 200_000) == b"ABC" * 200_000
        return [await ask(jobs, "pid") for _ in range(2)]

    first, second = asyncio.run(both())
    assert first != second and gone_within(int(first), 2)


@pytest.mark.usefixtures("rich")
def test_limits_end_a_job(workers: Workers, tmp_path: Path) -> None:
    jobs = Jobs(workers)
    began = time.monotonic()
    with pytest.raises(JobBroken, match="cpu"):
        asyncio.run(ask(jobs, "spin", b"100", JobLimits(cpu_s=0.1)))
    assert time.monotonic() - began < 5
    with pytest.raises(JobBroken, match="memory"):
        asyncio.run(ask(jobs, "eat", b"%d" % (200 << 20), JobLimits(memory_bytes=100 << 20)))
    assert asyncio.run(ask(jobs, "eat", b"%d" % (200 << 20), JobLimits(memory_bytes=400 << 20))) == b"%d" % (200 << 20)
    with pytest.raises(JobBroken, match="crashed"):
        asyncio.run(ask(jobs, "crash"))
    with pytest.raises(JobFault, match="no"):
        asyncio.run(ask(jobs, "sulk"))
    with pytest.raises(JobFault, match="File too large"):
        asyncio.run(ask(jobs, "write_file", str(tmp_path / "file").encode()))
    assert jobs.killed == {f"{JOBS}:{name}": 1 for name in ("spin", "eat", "crash")}


@pytest.mark.usefixtures("rich")
def test_a_job_ends_with_whoever_wants_it(workers: Workers, tmp_path: Path) -> None:
    async def leave() -> None:
        jobs = Jobs(workers, n_quick=1)
        for _ in range(3):  # the place is free again each time
            task = asyncio.create_task(ask(jobs, "spin", b"100"))
            while not workers.n_children:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            until = time.monotonic() + 1
            while workers.n_children:
                assert time.monotonic() < until
                await asyncio.sleep(0.005)
        assert await ask(jobs, "shout", b"a") == b"A"
        assert not jobs.killed and not jobs.n_large

    asyncio.run(leave())


@pytest.mark.usefixtures("rich")
def test_small_jobs_never_queue_behind_large_ones(workers: Workers) -> None:
    async def mixed() -> None:
        jobs = Jobs(workers, n_quick=1, n_slow=1, max_slow=8)
        large = [asyncio.create_task(ask(jobs, "spin", b"100", owner=f"o{i}")) for i in range(4)]
        while jobs.n_large < 4:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        for _ in range(5):
            await ask(jobs, "shout", b"x")
        assert time.monotonic() - began < 2
        assert len(jobs._slow) == 1 and sum(map(len, jobs._waiting.values())) == 3
        large[0].cancel()  # whoever waits takes its turn
        await asyncio.gather(large[0], return_exceptions=True)
        assert len(jobs._slow) == 1 and jobs.n_large == 3
        for task in large:
            task.cancel()
        await asyncio.gather(*large, return_exceptions=True)
        assert not jobs.n_large and jobs.n_free == 1

    asyncio.run(mixed())


async def is_paid(jobs: Jobs, seconds: str, owner: str) -> bool:
    """Whether a job that takes so many CPU seconds ends at ordinary priority."""
    nice = int(await ask(jobs, "spin", seconds.encode(), owner=owner))
    await asyncio.sleep(0.05)  # what it didn't use comes back once it has ended
    return nice == min(19, os.nice(0) + NICE)


def test_a_slice_of_ordinary_priority_is_paid_for(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its owner and by all together; who has nothing left begins where others end."""
    monkeypatch.setattr("imp_server.workers.jobs.OWN", (0.0, 0.1))
    monkeypatch.setattr("imp_server.workers.jobs.SHARED", (0.0, 0.3))

    async def paid() -> None:
        jobs = Jobs(workers)
        assert not await is_paid(jobs, "0.3", "a"), "it sank"
        assert [await is_paid(jobs, "0", "a") for _ in range(2)] == [True, True], "what isn't used comes back"
        await asyncio.gather(*(is_paid(jobs, "0.1", "a") for _ in range(3)))
        assert not await is_paid(jobs, "0", "a"), "he had his share"
        assert await is_paid(jobs, "0", "b")
        await asyncio.gather(*(is_paid(jobs, "0.1", f"new {i}") for i in range(9)))
        assert not await is_paid(jobs, "0", "new, too"), "all together had theirs"

    asyncio.run(paid())


def test_who_pays_waits_for_no_place_of_who_does_not(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those get some per cent of a core: on a busy machine they hold their places for long."""
    monkeypatch.setattr("imp_server.workers.jobs.OWN", (0.0, 0.01))

    async def both() -> None:
        jobs = Jobs(workers, n_quick=1)
        task = asyncio.create_task(ask(jobs, "sleep", b"30", owner="poor"))
        await asyncio.sleep(0.1)
        monkeypatch.setattr("imp_server.workers.jobs.LEAST_SLICE_S", 0.001)
        assert jobs.n_free == 1
        assert await ask(jobs, "shout", b"a", owner="rich") == b"A"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(both())


def test_a_large_job_runs_at_idle_priority(workers: Workers, tmp_path: Path) -> None:
    async def sunk() -> None:
        os.mkfifo(tmp_path / "pid")
        jobs = Jobs(workers)
        task = asyncio.create_task(ask(jobs, "spin", f"100 {tmp_path / 'pid'}".encode()))
        pid = int(await asyncio.to_thread(first_line, tmp_path / "pid"))
        while not jobs.n_large:
            await asyncio.sleep(0.01)
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(sunk())


@pytest.mark.usefixtures("rich")
def test_no_owner_has_more_than_half_of_the_large_places(workers: Workers) -> None:
    async def greedy() -> None:
        jobs = Jobs(workers, n_quick=2, n_slow=2, max_slow=4)
        mine = [asyncio.create_task(ask(jobs, "spin", b"100", owner="me")) for _ in range(3)]
        done, _ = await asyncio.wait(mine, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(Unavailable, match="too many requests"):
            done.pop().result()
        assert await ask(jobs, "shout", b"x", owner="you") == b"X"
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        assert not jobs.n_large

    asyncio.run(greedy())


def test_a_job_survives_the_death_of_the_zygote() -> None:
    async def die(workers: Workers) -> None:
        jobs = Jobs(workers)
        pid = int(await ask(jobs, "pid"))
        task = asyncio.create_task(ask(jobs, "spin", b"0.2"))
        while not workers.n_children:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert workers.pid is not None and not is_alive(pid)
        os.kill(workers.pid, signal.SIGKILL)
        assert int(await task) >= 5
        assert workers.n_deaths == 1 and not jobs.killed

    workers = Workers([f"{JOBS}:warm_up"])
    try:
        asyncio.run(die(workers))
    finally:
        workers.close()


def test_who_waits_for_an_end_may_leave(workers: Workers) -> None:
    child = workers.spawn(f"{JOBS}:pid", ROOMY)
    assert not child.ended.cancel(), "the thread that tells of ends would fail, and with it every other job"
    workers.kill(child)
    assert child.ended.result(5).code == -signal.SIGKILL
    child.sock.close()


def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    workers = Workers()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", refuse)
            workers.start()
            with pytest.raises(Unavailable, match="being restarted"):
                workers.spawn(f"{JOBS}:pid", ROOMY)
            assert not workers.is_failing, "not yet"
            until = time.monotonic() + 5
            while not workers.is_failing and time.monotonic() < until:
                time.sleep(0.01)
            assert workers.is_failing
        assert is_up_within(workers, 5)
        workers._started_s -= 5
        assert not workers.is_failing
        assert asyncio.run(ask(Jobs(workers), "shout", b"a")) == b"A"
    finally:
        workers.close()


def is_up_within(workers: Workers, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not workers.is_up and time.monotonic() < until:
        time.sleep(0.01)
    return workers.is_up


def test_the_terminal_ends_no_zygote_and_priorities_count_beside_the_server(workers: Workers) -> None:
    """Linux may share the processor by sessions: in one of its own the lowest priority would have as much as we do."""
    assert workers.pid is not None
    assert os.getpgid(workers.pid) == workers.pid and os.getsid(workers.pid) == os.getsid(0)


def test_children_die_with_the_zygote() -> None:
    workers = Workers()
    try:
        child = workers.spawn(f"{JOBS}:pid", ROOMY)
        child2 = workers.spawn(f"{JOBS}:open_counter", ROOMY, lasting=True)
        from imp_server.workers.wire import ASK, frame, read_frame

        child2.sock.sendall(frame(ASK, b"0") + frame(ASK, b""))
        assert read_frame(child2.sock) is not None
        counted = read_frame(child2.sock)
        assert counted is not None
        pid = int(counted[1].split()[1])
        assert is_alive(pid)
    finally:
        workers.close()
    assert gone_within(pid, 2)
    child.sock.close()


def test_no_wish_of_a_request_lifts_what_is_shared_by_owner() -> None:
    """`priority` orders rows; checks, starts, masks and templates know an owner, and nothing to put one first."""
    asked: dict[Callable[..., Any], list[str]] = {
        Jobs.run: ["self", "function", "data", "limits", "owner"],
        TurnQueue.submit: ["self", "answer", "owner", "about"],
        LastingWorkers.call: ["self", "data", "most_bytes"],
    }
    for ask, names in asked.items():
        assert list(inspect.signature(ask).parameters) == names
