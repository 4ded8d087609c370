"""The pool: two threads, order per key, failures hold nobody up."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from imp_server.api.pool import WorkerPool


def test_work_with_one_key_keeps_its_order() -> None:
    async def run() -> list[int]:
        pool, seen = WorkerPool(), []

        def work(number: int) -> None:
            time.sleep(0.01 if number % 2 else 0)
            seen.append(number)

        await asyncio.gather(*(pool.run_in_order("k", work, n) for n in range(20)))
        pool.close()
        return seen

    assert asyncio.run(run()) == list(range(20))


def test_two_keys_run_at_the_same_time() -> None:
    async def run() -> None:
        pool, both = WorkerPool(), threading.Barrier(2, timeout=5)
        await asyncio.gather(pool.run_in_order("a", both.wait), pool.run_in_order("b", both.wait))
        pool.close()

    asyncio.run(run())


def test_a_failure_is_the_callers_and_the_key_goes_on() -> None:
    async def run() -> str:
        pool = WorkerPool()

        def fail() -> None:
            raise ValueError("mine")

        first = asyncio.create_task(pool.run_in_order("k", fail))
        second = asyncio.create_task(pool.run_in_order("k", lambda: "fine"))
        with pytest.raises(ValueError, match="mine"):
            await first
        found = await second
        pool.close()
        return found

    assert asyncio.run(run()) == "fine"


def test_a_cancelled_caller_keeps_the_order() -> None:
    async def run() -> list[str]:
        pool, seen = WorkerPool(), []
        gate = threading.Event()

        def slow() -> None:
            gate.wait(5)
            seen.append("slow")

        first = asyncio.create_task(pool.run_in_order("k", slow))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(pool.run_in_order("k", seen.append, "second"))
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.sleep(0.05)
        assert seen == []
        gate.set()
        await second
        pool.close()
        return seen

    assert asyncio.run(run()) == ["slow", "second"]
