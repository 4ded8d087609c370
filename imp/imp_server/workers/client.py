"""The parent's side of the zygote: starts it, orders children, hears how they ended. Thread-safe."""

from __future__ import annotations

import contextlib
import itertools
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock, Thread

from imp_server.config import child_environment
from imp_server.core import Unavailable
from imp_server.workers.wire import (
    ENDED,
    KILL,
    LASTING,
    NOTICE_BYTES,
    RESUME,
    START,
    STOP,
    Ending,
    JobLimits,
    Notice,
    Order,
    read_exactly,
)

_log = logging.getLogger(__name__)
_QUICK_DEATH_S = 5.0
_LONGEST_PAUSE_S = 30.0
_MANY_FAILURES = 3
_CLOSE_S = 1.0


class Child:
    """A child that was ordered. `sock`: this side of its socket. `ended` is resolved once it is gone."""

    def __init__(self, number: int, sock: socket.socket, on_sunk: Callable[[], None] | None) -> None:
        self.id = number
        self.sock = sock
        self.ended: Future[Notice] = Future()
        self.ended.set_running_or_notify_cancel()  # who waits may leave, and the end still comes
        self.on_sunk = on_sunk
        """Called in a thread of the client's when the first slice is used up."""
        self.was_killed = False
        self.was_lost = False
        """The zygote died, and with it this one."""


def ending(notice: Notice, was_killed: bool) -> Ending:
    """How a child came to its end. `was_killed`: on our own order."""
    if notice.code == 0:
        return "done"
    if was_killed:
        return "killed"
    if notice.code in (-signal.SIGPROF, -signal.SIGXCPU):
        return "cpu"
    return "crashed"


class Workers:
    """Owner of the zygote process and of its restarts."""

    def __init__(self, warm_ups: Sequence[str] = ()) -> None:
        """`warm_ups`: module:function, called once in the zygote so that children find everything in memory."""
        self._warm_ups = tuple(warm_ups)
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._lock = Lock()
        self._is_started = self._closed = False
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._n_failures = 0
        """Starts in a row that came to nothing, or to a zygote that died at once."""
        self._started_s = 0.0
        self.n_deaths = 0
        """How often the zygote itself has died."""

    @property
    def pid(self) -> int | None:
        """Of the zygote."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Doesn't wait: orders are carried out once the zygote is up. A second call does nothing."""
        with self._lock:
            if self._is_started or self._closed:
                return
            self._is_started = True
            self._launch()
        Thread(target=self._listen, name="imp-workers", daemon=True).start()

    def spawn(
        self,
        function: str,
        limits: JobLimits,
        *,
        lasting: bool = False,
        slice_s: float = 0.0,
        on_sunk: Callable[[], None] | None = None,
    ) -> Child:
        """A child that waits for a question on its socket. Raises Unavailable while there is no zygote.

        `slice_s`: as of an Order; `on_sunk` is called when it is used up, in a thread of this client's.
        """
        self.start()
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise Unavailable(f"no worker process can be started: {error.strerror}", retry_after_s=1.0) from None
        child = Child(next(self._numbers), ours, on_sunk)
        order = Order(LASTING if lasting else START, child.id, limits, function, slice_s)
        try:
            with self._lock:
                if self._control is None or self._closed:
                    raise OSError
                self._children[child.id] = child
                socket.send_fds(self._control, [order.packed()], [theirs.fileno()])
        except OSError:
            self._children.pop(child.id, None)
            ours.close()
            raise Unavailable("the worker processes are being restarted; try again", retry_after_s=1.0) from None
        finally:
            theirs.close()
        return child

    def kill(self, child: Child) -> None:
        """At once, whatever it does. Of one that has ended: nothing."""
        child.was_killed = True
        self._order(KILL, child)

    def stop(self, child: Child) -> None:
        self._order(STOP, child)

    def resume(self, child: Child) -> None:
        self._order(RESUME, child)

    def close(self) -> None:
        """Ends the zygote and with it every child."""
        with self._lock:
            self._closed = True
            control, process = self._control, self._process
        if control is not None:
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSE_S)
            process.kill()
            process.wait()

    @property
    def is_up(self) -> bool:
        """False for a moment after the zygote has died."""
        return self._control is not None

    @property
    def is_failing(self) -> bool:
        """There is no zygote, and trying again doesn't help."""
        is_new = time.monotonic() - self._started_s < _QUICK_DEATH_S
        return self._n_failures >= _MANY_FAILURES and (is_new or not self.is_up)

    @property
    def n_children(self) -> int:
        return len(self._children)

    def _order(self, kind: bytes, child: Child) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._control is not None and child.id in self._children:
                self._control.sendall(Order(kind, child.id).packed())

    def _launch(self) -> None:
        """Where the system refuses another process nothing is changed: `_listen` tries again."""
        try:
            self._control, self._process = _started(self._warm_ups)
        except OSError as error:
            _log.error("the process that starts workers can't be started (%s); trying again", error.strerror)

    def _listen(self) -> None:
        pause_s = 0.0
        while True:
            self._started_s = time.monotonic()
            if self._control is not None:
                self._hear(self._control)
                self._bury(self._control)
            quick = time.monotonic() - self._started_s < _QUICK_DEATH_S
            self._n_failures = self._n_failures + 1 if quick else 0
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s or 0.1) if quick else 0.0
            time.sleep(0 if self._closed else pause_s)
            with self._lock:
                if self._closed:
                    return
                self._launch()

    def _bury(self, control: socket.socket) -> None:
        """The zygote, and those that went down with it."""
        with self._lock:
            control.close()
            self._control = None
            lost, self._children = list(self._children.values()), {}
            process = self._process
        for child in lost:
            child.was_lost = True
            child.ended.set_result(Notice(ENDED, child.id, -signal.SIGKILL))
        if process is not None and not self._closed:
            code = process.wait()
            self.n_deaths += 1
            _log.error("the process that starts workers ended with code %d; it is started again", code)

    def _hear(self, control: socket.socket) -> None:
        """Until the zygote is gone."""
        with contextlib.suppress(OSError):
            while (record := read_exactly(control, NOTICE_BYTES)) is not None:
                notice = Notice.unpacked(record)
                if notice.kind == ENDED:
                    child = self._children.pop(notice.id, None)
                    if child is not None:
                        child.ended.set_result(notice)
                elif (child := self._children.get(notice.id)) is not None and child.on_sunk is not None:
                    child.on_sunk()


def _started(warm_ups: Sequence[str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A zygote: our side of its socket, and the process. Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "imp_server.workers", str(theirs.fileno()), *warm_ups],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Threads don't survive a fork.
            env=child_environment(
                OPENBLAS_NUM_THREADS="1",
                OMP_NUM_THREADS="1",
                TOKENIZERS_PARALLELISM="false",
                MALLOC_ARENA_MAX="2",
            ),
            # The terminal's signals aren't for it. In the engine's session, so that priorities count.
            process_group=0,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours, process
