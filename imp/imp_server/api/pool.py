"""The threads for everything that may take longer than 2 ms: rendering, tokenising, big JSON, SQLite.

First in, first out; work with the same key runs one after the other in the order it was given. A thread that gets stuck
is replaced (core/lanes.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from imp_server.core.errand import carried
from imp_server.core.lanes import Lane

P = ParamSpec("P")
T = TypeVar("T")


class WorkerPool:
    """Owner of two threads and of the order of work per key. Used from one event loop."""

    def __init__(self, n_threads: int = 2, *, stuck_s: float = 0.0) -> None:
        """`stuck_s`: as of a Lane."""
        self.lane = Lane("imp-pool", n_threads, stuck_s=stuck_s)
        self._last: dict[str, asyncio.Task[Any]] = {}

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function`, computed in a thread. Cancelling the caller doesn't stop running work.

        Raises NotWanted if the errand that it is for was over before it began, or ended it.
        """
        return await asyncio.wrap_future(self.lane.submit(carried(named(function, *args, **kwargs))))

    async def run_in_order(self, key: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, after all earlier work with this key, whether it succeeded or not.

        Work whose caller is cancelled is done nevertheless: what comes after may build on it.
        """
        work = asyncio.get_running_loop().create_task(
            self._after(self._last.get(key), named(function, *args, **kwargs))
        )
        self._last[key] = work
        work.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(work)

    async def _after(self, earlier: asyncio.Task[Any] | None, function: Callable[[], T]) -> T:
        if earlier is not None:
            await asyncio.wait((earlier,))
        return await asyncio.wrap_future(self.lane.submit(function))

    def _forget(self, key: str, done: asyncio.Task[Any]) -> None:
        if self._last.get(key) is done:
            del self._last[key]
        if not done.cancelled():
            done.exception()  # retrieved, in case the caller was cancelled

    def close(self) -> None:
        self.lane.close()


def named(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
    """The call, under the function's own name: a stuck thread is reported by what it does."""
    call = partial(function, *args, **kwargs)
    call.__qualname__ = getattr(function, "__qualname__", type(function).__name__)  # type: ignore[attr-defined]
    return call
