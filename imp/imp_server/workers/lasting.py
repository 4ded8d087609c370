"""Workers of a model: they open once and answer many questions, each within limits, from any thread.

There are two, so that one stands ready where the other is killed; its successor opens meanwhile. A question that nobody
wants answered any more (core/errand.py) ends its worker, too, unless it comes to its end by itself.
"""

from __future__ import annotations

import contextlib
import socket
import time
from threading import Condition, Lock, Timer

from imp_server.core import Unavailable
from imp_server.core.errand import Errand, NotWanted, current_errand
from imp_server.workers.client import Child, Workers, ending
from imp_server.workers.wire import ANSWER, ASK, NO_MEMORY, Ending, JobLimits, frame, read_frame

_WALL = 10
"""Times the CPU limit: seconds after which a worker that neither answers nor works is killed, too."""
GRACE_S = 0.25
"""For a question that nobody waits for any more."""
_MANY = 3
_RESTART_S = 3.0
"""Waited for a new zygote."""


class WorkerEnded(Exception):
    """A limit ended the worker while it looked for an answer; it is replaced already."""

    def __init__(self, how: Ending) -> None:
        super().__init__(how)
        self.how = how


class WorkerFault(Exception):
    """What opening it, or the question, raised: the text of it."""


class _WorkerPlace:
    """Owner of one worker at a time."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self.is_open = False


class _Question:
    """Owner of whether its worker is to be killed for it. Thread-safe."""

    def __init__(self, workers: Workers, child: Child) -> None:
        self._workers, self._child = workers, child
        self._lock = Lock()
        self._is_answered = False
        self.is_abandoned = False

    def abandon_soon(self) -> None:
        timer = Timer(GRACE_S, self._abandon)
        timer.daemon = True
        timer.start()

    def _abandon(self) -> None:
        with self._lock:
            if self._is_answered:
                return
            self.is_abandoned = True
        self._workers.kill(self._child)

    def note_answer(self) -> None:
        with self._lock:
            self._is_answered = True


class LastingWorkers:
    """Owner of a model's workers. Thread-safe."""

    def __init__(
        self, workers: Workers, function: str, opening: bytes, limits: JobLimits, *, n_workers: int = 2
    ) -> None:
        """`function`, module:name, takes `opening` and gives what answers questions."""
        self._workers = workers
        self._function, self._opening, self._limits = function, opening, limits
        self._places = [_WorkerPlace() for _ in range(n_workers)]
        self._freed = Condition()
        self._free = self._places[::-1]
        self.n_killed = 0
        """By a limit."""
        self.n_in_row = 0
        """The same since the last answer."""

    @property
    def is_failing(self) -> bool:
        return self.n_in_row >= _MANY

    def open(self) -> None:
        """Have all begin, and wait for the first. Raises WorkerFault, WorkerEnded, Unavailable."""
        self._begin_all()
        place = self._taken(Errand())
        try:
            self._opened(place)
        finally:
            self._put_back(place)

    def call(self, data: bytes, most_bytes: int) -> bytes:
        """The answer, of at most `most_bytes`. Blocks. Raises WorkerEnded, WorkerFault, Unavailable, NotWanted."""
        place = self._taken(current_errand())
        try:
            for _ in range(2):
                answer = self._asked(place, data, most_bytes)
                if answer is not None:
                    self.n_in_row = 0
                    return answer
            raise Unavailable("the worker processes are being restarted; try again", retry_after_s=1.0)
        finally:
            self._put_back(place)

    def _taken(self, errand: Errand) -> _WorkerPlace:
        """The place that was used last. Raises NotWanted."""
        with errand.ending_with(self._wake), self._freed:
            self._freed.wait_for(lambda: self._free or errand.is_over)
            if errand.is_over:
                raise NotWanted
            return self._free.pop()

    def _wake(self) -> None:
        with self._freed:
            self._freed.notify_all()

    def _put_back(self, place: _WorkerPlace) -> None:
        with self._freed:
            self._free.append(place)
            self._freed.notify_all()

    def close(self) -> None:
        for place in self._places:
            self._give_up(place)

    def _asked(self, place: _WorkerPlace, data: bytes, most_bytes: int) -> bytes | None:
        """None if the worker went down with the zygote, whatever it did."""
        child = self._opened(place)
        if child is None:
            return None
        question = _Question(self._workers, child)
        with current_errand().ending_with(question.abandon_soon):
            found = self._talk(place, child, data, most_bytes, question)
        if found is None:
            return None
        kind, answer = found
        if kind == ANSWER:
            return answer
        if kind == NO_MEMORY:
            self._give_up(place)
            self._note_kill()
            raise WorkerEnded("memory")
        raise WorkerFault(answer.decode(errors="replace"))

    def _opened(self, place: _WorkerPlace) -> Child | None:
        """None if it went down with the zygote."""
        if place.child is None:
            self._begin(place)
        child = place.child
        assert child is not None
        if not place.is_open:
            found = self._talk(place, child, None, 1 << 16, _Question(self._workers, child))
            if found is None:
                return None
            kind, text = found
            if kind != ANSWER:
                self._give_up(place)
                raise WorkerFault(text.decode(errors="replace"))
            place.is_open = True
        return child

    def _begin(self, place: _WorkerPlace) -> None:
        until = time.monotonic() + _RESTART_S
        self._workers.start()
        while not self._workers.is_up and time.monotonic() < until:
            time.sleep(0.02)
        child = self._workers.spawn(self._function, self._limits, lasting=True)
        child.sock.settimeout(max(1.0, _WALL * self._limits.cpu_s))
        place.child, place.is_open = child, False
        with contextlib.suppress(OSError):  # an end is seen where the answer is read
            child.sock.sendall(frame(ASK, self._opening))

    def _begin_all(self) -> None:
        for place in self._places:
            if place.child is None:
                self._begin(place)

    def _talk(
        self, place: _WorkerPlace, child: Child, data: bytes | None, most_bytes: int, question: _Question
    ) -> tuple[bytes, bytes] | None:
        """Ask (None: what was asked before) and read. None if the worker went down with the zygote."""
        how: Ending = "killed"
        try:
            if data is not None:
                child.sock.sendall(frame(ASK, data))
            found = read_frame(child.sock, most_bytes)
            question.note_answer()
            if found is not None and not question.is_abandoned:
                return found
            notice = child.ended.result(self._limits.cpu_s + 1)
            how = ending(notice, child.was_killed)
        except (OSError, TimeoutError):
            with contextlib.suppress(TimeoutError):
                how = ending(child.ended.result(0.5), child.was_killed)
        except ValueError:
            how = "memory"  # an answer beyond all bounds
        self._give_up(place)
        if child.was_lost:
            return None
        if question.is_abandoned:
            self._begin(place)
            raise NotWanted
        self._note_kill()
        self._begin(place)
        raise WorkerEnded(how)

    def _note_kill(self) -> None:
        self.n_killed += 1
        self.n_in_row += 1

    def _give_up(self, place: _WorkerPlace) -> None:
        child, place.child = place.child, None
        if child is not None:
            with contextlib.suppress(OSError):
                child.sock.shutdown(socket.SHUT_RDWR)
            child.sock.close()
            if not child.ended.done():
                self._workers.kill(child)
