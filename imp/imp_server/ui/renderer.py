"""Renders what pages ask for, within limits on CPU time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from imp_server.core.errand import NotWanted, carried, current_errand
from imp_server.core.lanes import Lane
from imp_server.ui.allowed import Node
from imp_server.workers.client import Workers
from imp_server.workers.jobs import WorkerPlaces
from imp_server.workers.lasting import LastingWorkers, WorkerEnded, WorkerFault
from imp_server.workers.wire import JobLimits

_LIMITS = JobLimits(cpu_s=2.0, memory_bytes=128 << 20)
"""Of a process; a question has less (ui/markdown.py)."""
_WARM_UP, _JOB = "imp_server.ui.markdown:warm_up", "imp_server.ui.markdown:open_renderer"
_MOST_ANSWER = 8 << 20
_N_WORKERS = 2


class Renderer:
    """Owner of the processes that render. The first call begins them: servers that nobody looks at have none.

    Used from one event loop. Its threads are its own, so that no request waits behind a page.
    """

    def __init__(self) -> None:
        self._workers = Workers((_WARM_UP,))
        self._lasting = LastingWorkers(self._workers, _JOB, b"", _LIMITS, n_workers=_N_WORKERS)
        self._places = WorkerPlaces(_N_WORKERS)
        self._lane: Lane | None = None

    @property
    def n_killed(self) -> int:
        """Questions that a limit ended."""
        return self._lasting.n_killed

    async def rendered(self, blocks: Sequence[str], client: str) -> list[list[Node] | None] | None:
        """For each block its nodes, None for one that wasn't reached; None for all where a limit ended the work.

        Clients go by turns. Raises Unavailable, NotWanted.
        """
        if self._lane is None:
            self._lane = Lane("imp-render", _N_WORKERS)
        await self._places.take(client)
        try:
            if current_errand().is_over:
                raise NotWanted
            answer = await asyncio.wrap_future(self._lane.submit(carried(lambda: self._asked(blocks))))
        finally:
            self._places.free()
        return None if answer is None else msgspec.json.decode(answer)

    def _asked(self, blocks: Sequence[str]) -> bytes | None:
        try:
            return self._lasting.call(msgspec.json.encode(list(blocks)), _MOST_ANSWER)
        except (WorkerEnded, WorkerFault):
            return None

    def close(self) -> None:
        """Blocks for a moment."""
        if self._lane is not None:
            self._lane.close()
            self._workers.close()
