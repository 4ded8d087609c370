"""The pool: two threads, failures hold nobody up, and what has begun is done."""

from __future__ import annotations

import asyncio
import threading

import pytest
from imp_server.api.pool import WorkerPool


def test_two_run_at_the_same_time() -> None:
    async def run() -> None:
        pool, both = WorkerPool(), threading.Barrier(2, timeout=5)
        await asyncio.gather(pool.run(both.wait), pool.run(both.wait))
        pool.close()

    asyncio.run(run())


def test_a_failure_is_the_callers() -> None:
    async def run() -> str:
        pool = WorkerPool(1)

        def fail() -> None:
            raise ValueError("mine")

        first = asyncio.create_task(pool.run(fail))
        second = asyncio.create_task(pool.run(lambda: "fine"))
        with pytest.raises(ValueError, match="mine"):
            await first
        found = await second
        pool.close()
        return found

    assert asyncio.run(run()) == "fine"


def test_a_cancelled_caller_keeps_work_from_beginning_and_ends_none() -> None:
    async def run() -> list[str]:
        pool, seen = WorkerPool(1), []
        begun, gate = threading.Event(), threading.Event()

        def slow() -> None:
            begun.set()
            gate.wait(5)
            seen.append("slow")

        first = asyncio.create_task(pool.run(slow))
        await asyncio.to_thread(begun.wait, 5)
        second = asyncio.create_task(pool.run(seen.append, "second"))
        await asyncio.sleep(0)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert seen == []
        gate.set()
        await pool.run(seen.append, "third")
        pool.close()
        return seen

    assert asyncio.run(run()) == ["slow", "third"]
