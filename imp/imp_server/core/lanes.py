"""Lanes: a few threads that do one kind of blocking work, first come first served, and outlive one that gets stuck.

Python can't end a thread. One that has been busy with one thing for too long counts as stuck: it is reported by name,
and its lane gets another one, a few times at most. The threads are daemons, so a stuck one never keeps a process from
ending.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any, TypeVar

T = TypeVar("T")
SPARES = 2
"""Threads that may take the place of stuck ones."""
log = logging.getLogger(__name__)


class Worker:
    """One thread of a lane: what it is busy with, since when, and whether another has taken its place."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.work = ""
        self.since_s = 0.0
        """0.0: it waits for work."""
        self.is_stuck = False

    def begin(self, work: str, now_s: float) -> None:
        self.work, self.since_s = work, now_s

    def end(self) -> None:
        self.work, self.since_s = "", 0.0

    def busy_s(self, now_s: float) -> float:
        return now_s - self.since_s if self.since_s else 0.0


class Lane:
    """Owner of its threads and of the order of their work. Safe to call from any thread."""

    def __init__(
        self,
        name: str,
        n_threads: int = 1,
        *,
        stuck_s: float = 0.0,
        spares: int = SPARES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stuck_s`: seconds with one thing after which a thread counts as stuck; 0 = never."""
        self.name = name
        self._n_threads, self._stuck_s, self._spares, self._clock = n_threads, stuck_s, spares, clock
        self._changed = Condition()
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._workers: list[Worker] = []
        self._is_closed = False
        self._n_started = 0
        for _ in range(n_threads):
            self._start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Cancelling the future keeps work from beginning, and doesn't stop what has begun."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                future.cancel()
            else:
                self._waiting.append((function, future))
                self._changed.notify()
        return future

    def look(self) -> None:
        """Find threads that got stuck, and give the lane others. To be called about once a second."""
        with self._changed:
            now = self._clock()
            for worker in list(self._workers):
                if not self._stuck_s or worker.is_stuck or worker.busy_s(now) <= self._stuck_s:
                    continue
                worker.is_stuck = True
                n_stuck = self.n_stuck
                gets_another = n_stuck <= self._spares
                then = f"another takes its place ({n_stuck} of {self._spares})" if gets_another else "none is left"
                log.error("thread %s is stuck: %s for %.0f s; %s", worker.name, worker.work, worker.busy_s(now), then)
                if gets_another:
                    self._start()

    @property
    def n_waiting(self) -> int:
        """Work that no thread has begun."""
        return len(self._waiting)

    @property
    def n_stuck(self) -> int:
        return sum(worker.is_stuck for worker in self._workers)

    @property
    def is_lost(self) -> bool:
        """No thread is left that could do anything, and there won't be another."""
        return all(worker.is_stuck for worker in self._workers)

    def close(self) -> None:
        """What hasn't begun is cancelled; nobody waits for what has."""
        with self._changed:
            self._is_closed = True
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()
            self._changed.notify_all()

    def _start(self) -> None:
        self._n_started += 1
        worker = Worker(f"{self.name}-{self._n_started}")
        self._workers.append(worker)
        Thread(target=self._run, args=(worker,), name=worker.name, daemon=True).start()

    def _run(self, worker: Worker) -> None:
        while (job := self._next(worker)) is not None:
            function, future = job
            if future.set_running_or_notify_cancel():
                settle(future, function)
            del job, function, future  # while it waits a thread keeps nothing alive
            self._done(worker)

    def _next(self, worker: Worker) -> tuple[Callable[[], Any], Future[Any]] | None:
        """None: the thread isn't needed any more."""
        with self._changed:
            while not self._waiting:
                if self._is_closed or self._is_surplus:
                    self._workers.remove(worker)
                    return None
                self._changed.wait()
            if self._is_surplus:
                self._workers.remove(worker)
                self._changed.notify()
                return None
            job = self._waiting.popleft()
            worker.begin(getattr(job[0], "__qualname__", type(job[0]).__name__), self._clock())
            return job

    def _done(self, worker: Worker) -> None:
        with self._changed:
            if worker.is_stuck:
                log.warning("thread %s goes on, after %.0f s", worker.name, worker.busy_s(self._clock()))
                worker.is_stuck = False
            worker.end()

    @property
    def _is_surplus(self) -> bool:
        """A thread that was stuck has come back, and another has its place."""
        return len(self._workers) - self.n_stuck > self._n_threads


def settle(future: Future[T], function: Callable[[], T]) -> None:
    """Put what the function returns, or raises, into a running future."""
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
