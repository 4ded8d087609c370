"""Workers of a model: they open once and answer many questions, each within limits, from any thread.

There are two, so that one stands ready where the other is killed; its successor opens meanwhile.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import time

from imp_server.core import Unavailable
from imp_server.workers.client import Child, Workers, ending
from imp_server.workers.wire import ANSWER, ASK, NO_MEMORY, Ending, Limits, frame, read_frame

_WALL = 10
"""Times the CPU limit: seconds after which a worker that neither answers nor works is killed, too."""
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


class _Place:
    """Owner of one worker at a time."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self.is_open = False


class LastingWorkers:
    """Owner of a model's workers. Thread-safe."""

    def __init__(self, workers: Workers, function: str, opening: bytes, limits: Limits, *, n_workers: int = 2) -> None:
        """`function`, module:name, takes `opening` and gives what answers questions."""
        self._workers = workers
        self._function, self._opening, self._limits = function, opening, limits
        self._places = [_Place() for _ in range(n_workers)]
        self._free: queue.LifoQueue[_Place] = queue.LifoQueue()
        for place in reversed(self._places):
            self._free.put(place)
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
        place = self._free.get()
        try:
            self._opened(place)
        finally:
            self._free.put(place)

    def call(self, data: bytes, most_bytes: int) -> bytes:
        """The answer, of at most `most_bytes`. Blocks. Raises WorkerEnded, WorkerFault, Unavailable."""
        place = self._free.get()
        try:
            for _ in range(2):
                answer = self._asked(place, data, most_bytes)
                if answer is not None:
                    self.n_in_row = 0
                    return answer
            raise Unavailable("the worker processes are being restarted; try again", retry_after_s=1.0)
        finally:
            self._free.put(place)

    def close(self) -> None:
        for place in self._places:
            self._give_up(place)

    def _asked(self, place: _Place, data: bytes, most_bytes: int) -> bytes | None:
        """None if the worker went down with the zygote, whatever it did."""
        child = self._opened(place)
        if child is None:
            return None
        found = self._talk(place, child, data, most_bytes)
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

    def _opened(self, place: _Place) -> Child | None:
        """None if it went down with the zygote."""
        if place.child is None:
            self._begin(place)
        child = place.child
        assert child is not None
        if not place.is_open:
            found = self._talk(place, child, None, 1 << 16)
            if found is None:
                return None
            kind, text = found
            if kind != ANSWER:
                self._give_up(place)
                raise WorkerFault(text.decode(errors="replace"))
            place.is_open = True
        return child

    def _begin(self, place: _Place) -> None:
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

    def _talk(self, place: _Place, child: Child, data: bytes | None, most_bytes: int) -> tuple[bytes, bytes] | None:
        """Ask (None: what was asked before) and read. None if the worker went down with the zygote."""
        how: Ending = "killed"
        try:
            if data is not None:
                child.sock.sendall(frame(ASK, data))
            found = read_frame(child.sock, most_bytes)
            if found is not None:
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
        self._note_kill()
        self._begin(place)
        raise WorkerEnded(how)

    def _note_kill(self) -> None:
        self.n_killed += 1
        self.n_in_row += 1

    def _give_up(self, place: _Place) -> None:
        child, place.child = place.child, None
        if child is not None:
            with contextlib.suppress(OSError):
                child.sock.shutdown(socket.SHUT_RDWR)
            child.sock.close()
            if not child.ended.done():
                self._workers.kill(child)
