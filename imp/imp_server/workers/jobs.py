"""Jobs of clients, one child each: small ones at once, large ones behind them, each ended with whoever wants it.

A job begins with a slice of ordinary priority, paid from what its owner, and all of them together, may have of that: an
owner who used little lately gets it, a flood of new ones doesn't. There is a place per core for those that have paid,
and as many for those that haven't, so that these hold up nobody. What uses up its slice sinks: it makes room and goes
on at idle priority among a bounded number of large ones, which run by turns of their owners. Beyond that number large
jobs are broken off and refused with 503; nothing is ever remembered of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter, OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from imp_server.core import ImpError, Unavailable
from imp_server.core.credit import Credits
from imp_server.workers.client import Child, Workers, ending
from imp_server.workers.wire import ANSWER, ASK, HEAD_BYTES, NO_MEMORY, Ending, JobLimits, Notice, frame, frame_head

T = TypeVar("T")
_PIECE = 1 << 18
_TURN_S = 0.1
"""Of a large job while others wait for theirs."""
OWN = (0.03, 0.1)
"""Of a core, and CPU seconds at once: what an owner's jobs may have at ordinary priority."""
SHARED = (0.08, 0.3)
"""The same of all owners together."""
LEAST_SLICE_S, MOST_SLICE_S = 0.012, 0.05
"""The check of a small schema takes 10 ms, most of it for the process."""
PAID, IDLE = (f'worker_seconds_total{{priority="{name}"}}' for name in ("ordinary", "idle"))
"""Count CPU seconds of jobs: within slices that were paid for, and others."""
_RESTART_S = 3.0
"""Waited for a new zygote."""
_TRIES = 2
"""A job whose process died with the zygote is begun again once: it has done nothing but think."""


def available_cores() -> int:
    """Those that affinity leaves us."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class JobBroken(Exception):
    """The job ended without an answer, by a limit that only a backstop sets."""

    def __init__(self, how: Ending) -> None:
        super().__init__(how)
        self.how = how


class JobFault(Exception):
    """The job raised something that it doesn't know: a fault of ours."""


class _Lost(Exception):
    """The zygote died, and the child with it."""


class WorkerPlaces:
    """Owner of so many places, and of who waits for one: owners by turns."""

    def __init__(self, n: int) -> None:
        self.n_free = n
        self._queued: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, owner: str) -> None:
        if self.n_free:
            self.n_free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queued.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.free()
            raise

    def free(self) -> None:
        turn = _next(self._queued)
        while turn is not None and turn.done():
            turn = _next(self._queued)
        if turn is None:
            self.n_free += 1
        else:
            turn.set_result(None)


@dataclass(slots=True, eq=False)
class _RunningJob:
    child: Child
    owner: str
    place: WorkerPlaces
    lane: Literal["quick", "slow", "waiting", "over"] = "quick"
    refused: ImpError | None = field(default=None)


class Jobs:
    """Owner of the order in which jobs run. Used from one event loop."""

    def __init__(self, workers: Workers, *, n_quick: int = 2, n_slow: int = 2, max_slow: int = 16) -> None:
        """`n_slow`: large jobs that run at a time; `max_slow`: those and the ones that wait for their turn.

        No owner has more than half of them.
        """
        self._workers = workers
        self.n_quick, self._n_slow, self._max_slow = n_quick, n_slow, max_slow
        self._credits = Credits(OWN, SHARED)
        self._paid, self._poor = WorkerPlaces(n_quick), WorkerPlaces(n_quick)
        self._slow: list[_RunningJob] = []
        self._waiting: OrderedDict[str, deque[_RunningJob]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self.killed: Counter[str] = Counter()
        """Jobs that a backstop ended, by function."""
        self.seconds = {PAID: 0.0, IDLE: 0.0}

    @property
    def n_free(self) -> int:
        """Places of the quick lane that nobody has."""
        return self._paid.n_free

    @property
    def n_large(self) -> int:
        """Jobs that have sunk, running or waiting."""
        return len(self._slow) + sum(map(len, self._waiting.values()))

    async def run(self, function: str, data: bytes, limits: JobLimits, owner: str = "") -> bytes:
        """The job's answer. Cancelling the caller ends the process at once.

        Raises JobBroken where a limit ended it, JobFault, Unavailable where too much is under way.
        """
        for _ in range(_TRIES):
            with contextlib.suppress(_Lost):
                return await self._run(function, data, limits, owner)
            until = asyncio.get_running_loop().time() + _RESTART_S
            while not self._workers.is_up and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(0.02)
        raise Unavailable("the worker processes are being restarted; try again", retry_after_s=1.0)

    async def _run(self, function: str, data: bytes, limits: JobLimits, owner: str) -> bytes:
        loop = asyncio.get_running_loop()

        def on_sunk() -> None:  # in a thread of the client's
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: self._sink(running))

        slice_s, place = await self._take_place(owner)
        try:
            child = self._workers.spawn(function, limits, slice_s=slice_s, on_sunk=on_sunk)
        except BaseException:
            place.free()
            raise

        def on_ended(ended: Future[Notice]) -> None:  # in a thread of the client's
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._settle, owner, slice_s, ended.result().cpu_s)

        child.ended.add_done_callback(on_ended)
        running = _RunningJob(child, owner, place)
        child.sock.setblocking(False)
        try:
            answer = await self._talk(loop, child, data)
            if answer is not None:
                return self._result(function, *answer)
            notice = await asyncio.wrap_future(child.ended)
            if running.refused is not None:
                raise running.refused
            if child.was_lost:
                raise _Lost
            self.killed[function] += 1
            raise JobBroken(ending(notice, child.was_killed))
        finally:
            child.sock.close()
            if not child.ended.done():
                self._workers.kill(child)
            self._leave(running)

    def _settle(self, owner: str, slice_s: float, used_s: float) -> None:
        """A job is over that had paid for a slice."""
        self._credits.pay(owner, min(0.0, used_s - slice_s), asyncio.get_running_loop().time())
        self.seconds[PAID] += min(used_s, slice_s)
        self.seconds[IDLE] += max(0.0, used_s - slice_s)

    async def _talk(self, loop: asyncio.AbstractEventLoop, child: Child, data: bytes) -> tuple[bytes, bytes] | None:
        """None if the child ended without an answer."""
        try:
            await loop.sock_sendall(child.sock, frame(ASK, data))
            head = await _read(loop, child, HEAD_BYTES)
            if head is None:
                return None
            kind, size = frame_head(head)
            body = await _read(loop, child, size)
            return None if body is None else (kind, body)
        except (BrokenPipeError, ConnectionResetError):
            return None

    def _result(self, function: str, kind: bytes, data: bytes) -> bytes:
        if kind == ANSWER:
            return data
        if kind == NO_MEMORY:
            self.killed[function] += 1
            raise JobBroken("memory")
        raise JobFault(f"{function}: {data.decode(errors='replace')[:500]}")

    # --- the quick lane -------------------------------------------------------------------------

    async def _take_place(self, owner: str) -> tuple[float, WorkerPlaces]:
        """The CPU seconds paid for, and the place."""
        loop = asyncio.get_running_loop()
        slice_s = self._credits.grant(owner, LEAST_SLICE_S, MOST_SLICE_S, loop.time())
        place = self._paid if slice_s else self._poor
        try:
            await place.take(owner)
        except BaseException:
            self._credits.pay(owner, -slice_s, loop.time())
            raise
        return slice_s or self._credits.grant(owner, LEAST_SLICE_S, MOST_SLICE_S, loop.time()), place

    # --- the large ones -------------------------------------------------------------------------

    def _sink(self, running: _RunningJob) -> None:
        if running.lane != "quick":
            return
        running.place.free()
        own = sum(one.owner == running.owner for one in self._slow) + len(self._waiting.get(running.owner, ()))
        if self.n_large >= self._max_slow or own >= max(1, self._max_slow // 2):
            running.lane = "over"
            running.refused = Unavailable(
                "too many requests whose grammar takes long to check are under way; try again later", retry_after_s=5.0
            )
            self._workers.kill(running.child)
        elif len(self._slow) < self._n_slow:
            running.lane = "slow"
            self._slow.append(running)
        else:
            self._wait(running)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_TURN_S, self._rotate)

    def _wait(self, running: _RunningJob) -> None:
        running.lane = "waiting"
        self._workers.stop(running.child)
        self._waiting.setdefault(running.owner, deque()).append(running)

    def _go_on(self) -> None:
        if (after := _next(self._waiting)) is not None:
            after.lane = "slow"
            self._slow.append(after)
            self._workers.resume(after.child)

    def _rotate(self) -> None:
        """The oldest of the running large jobs makes room for the next owner's."""
        self._timer = None
        if not self._waiting:
            return
        self._wait(self._slow.pop(0))
        self._go_on()
        self._timer = asyncio.get_running_loop().call_later(_TURN_S, self._rotate)

    def _leave(self, running: _RunningJob) -> None:
        lane, running.lane = running.lane, "over"
        if lane == "quick":
            running.place.free()
        elif lane == "waiting":
            line = self._waiting[running.owner]
            line.remove(running)
            if not line:
                del self._waiting[running.owner]
        elif lane == "slow":
            self._slow.remove(running)
            self._go_on()


def _next(lines: OrderedDict[str, deque[T]]) -> T | None:
    """The first of the line whose turn it is; that line is then the last."""
    if not lines:
        return None
    owner, line = lines.popitem(last=False)
    first = line.popleft()
    if line:
        lines[owner] = line
    return first


async def _read(loop: asyncio.AbstractEventLoop, child: Child, n_bytes: int) -> bytes | None:
    data = bytearray()
    while len(data) < n_bytes:
        piece = await loop.sock_recv(child.sock, min(_PIECE, n_bytes - len(data)))
        if not piece:
            return None
        data += piece
    return bytes(data)
