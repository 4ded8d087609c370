"""The threads for everything that may take longer than 2 ms: rendering, tokenising, big JSON, SQLite.

First in, first out; work with the same key runs one after the other in the order it was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WorkerPool:
    """Owner of two threads and of the order of work per key. Used from one event loop."""

    def __init__(self, n_threads: int = 2) -> None:
        self._threads = ThreadPoolExecutor(n_threads, thread_name_prefix="imp-pool")
        self._last: dict[str, asyncio.Task[Any]] = {}

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function`, computed in a thread. Cancelling the caller doesn't stop running work."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def run_in_order(self, key: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, after all earlier work with this key, whether it succeeded or not.

        Work whose caller is cancelled is done nevertheless: what comes after may build on it.
        """
        work = asyncio.get_running_loop().create_task(
            self._after(self._last.get(key), lambda: function(*args, **kwargs))
        )
        self._last[key] = work
        work.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(work)

    async def _after(self, earlier: asyncio.Task[Any] | None, function: Callable[[], T]) -> T:
        if earlier is not None:
            await asyncio.wait((earlier,))
        return await self.run(function)

    def _forget(self, key: str, done: asyncio.Task[Any]) -> None:
        if self._last.get(key) is done:
            del self._last[key]
        if not done.cancelled():
            done.exception()  # retrieved, in case the caller was cancelled

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
