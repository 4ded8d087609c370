"""The threads for everything that may take longer than 2 ms: rendering, tokenising, big JSON, SQLite.

First in, first out; work with the same key runs one after the other in the order it was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WorkerPool:
    """Owner of two threads and of the order of work per key. Used from one event loop."""

    def __init__(self, n_threads: int = 2) -> None:
        self._threads = ThreadPoolExecutor(n_threads, thread_name_prefix="imp-pool")
        self._last: dict[str, asyncio.Future[object]] = {}

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function`, computed in a thread. Cancelling the caller doesn't stop running work."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def run_in_order(self, key: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, after all earlier work with this key, whether it succeeded or not."""
        earlier = self._last.get(key)
        mine: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._last[key] = mine
        try:
            if earlier is not None:
                await asyncio.shield(earlier)
            return await self.run(function, *args, **kwargs)
        finally:
            mine.set_result(None)
            if self._last.get(key) is mine:
                del self._last[key]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
