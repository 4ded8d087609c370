"""The threads for everything that may take longer than 2 ms: rendering, tokenising, big JSON.

First in, first out. A thread that gets stuck is replaced (core/lanes.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from imp_server.core.errand import carried
from imp_server.core.lanes import Lane

P = ParamSpec("P")
T = TypeVar("T")


class WorkerPool:
    """Owner of two threads. Used from one event loop."""

    def __init__(self, n_threads: int = 2, *, stuck_s: float = 0.0) -> None:
        """`stuck_s`: as of a Lane."""
        self.lane = Lane("imp-pool", n_threads, stuck_s=stuck_s)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function`, computed in a thread. Cancelling the caller doesn't stop running work.

        Raises NotWanted if the errand that it is for was over before it began, or ended it.
        """
        return await asyncio.wrap_future(self.lane.submit(carried(named(function, *args, **kwargs))))

    def close(self) -> None:
        self.lane.close()


def named(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
    """The call, under the function's own name: a stuck thread is reported by what it does."""
    call = partial(function, *args, **kwargs)
    call.__qualname__ = getattr(function, "__qualname__", type(function).__name__)  # type: ignore[attr-defined]
    return call
