"""The zygote: a small process without threads that has the modules of jobs in memory and forks a child for each.

It runs no job itself, so it always listens; it alone knows the ids of the children, so no signal ever meets a stranger.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence

from imp_server.workers.child import named, run
from imp_server.workers.wire import (
    ENDED,
    KILL,
    LASTING,
    ORDER_BYTES,
    RESUME,
    START,
    STOP,
    SUNK,
    Notice,
    Order,
)

POOR_SLICE_S = 0.012
"""CPU seconds of a job that nobody paid any for, until it counts as large."""
_LOOK_S = 0.005
"""Between two looks at what new children have used."""


def main(fd: int, modules: Sequence[str]) -> None:
    """Until the other side of the socket `fd` closes. `modules`: module:function to warm up, called once each."""
    control = socket.socket(fileno=fd)
    for name in modules:
        named(name)()
    gc.collect()
    gc.freeze()  # children share these pages as long as nobody writes to them
    Zygote(control).run()
    os._exit(0)


class Zygote:
    """Owner of the children, by the id that the orders give them."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pids: dict[int, int] = {}
        self._ids: dict[int, int] = {}
        self._slice_s: dict[int, float] = {}
        """By new child, the CPU seconds at which it sinks: it gets then what nobody else wants."""
        # A child's end must wake the wait below.
        self._wake, wake = socket.socketpair()
        for sock in (self._wake, wake):
            sock.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._keep = wake

    def run(self) -> None:
        while True:
            ready, _, _ = select.select([self._control, self._wake], [], [], _LOOK_S if self._slice_s else None)
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
            if self._control in ready and not self._take_order():
                break
            self._reap()
            self._look_at_slices()
        for pid in self._ids:
            os.kill(pid, signal.SIGKILL)

    def _take_order(self) -> bool:
        """False: the other side is gone."""
        try:
            record, fds, _, _ = socket.recv_fds(self._control, ORDER_BYTES, 1)
            while record and len(record) < ORDER_BYTES:
                more = self._control.recv(ORDER_BYTES - len(record))
                record = record + more if more else b""
        except OSError:
            return False
        if not record:
            return False
        order = Order.unpacked(record)
        if order.kind in (START, LASTING):
            self._fork(order, fds[0])
        elif (pid := self._pids.get(order.id)) is not None:
            os.kill(pid, _SIGNALS[order.kind])
        return True

    def _fork(self, order: Order, fd: int) -> None:
        try:
            pid = os.fork()
        except OSError:
            os.close(fd)
            self._tell(Notice(ENDED, order.id, -signal.SIGABRT))
            return
        if pid == 0:
            self._become_child(order, fd)
        os.close(fd)
        self._pids[order.id], self._ids[pid] = pid, order.id
        if order.kind == START:
            self._slice_s[order.id] = order.slice_s or POOR_SLICE_S

    def _become_child(self, order: Order, fd: int) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for sock in (self._control, self._wake, self._keep):
                sock.close()
            code = run(order, socket.socket(fileno=fd))
        except BaseException as error:  # a traceback could show what a client sent
            print(f"imp: a worker failed: {type(error).__name__}", file=sys.stderr)
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._ids:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            number = self._ids.pop(pid)
            del self._pids[number]
            self._slice_s.pop(number, None)
            code = os.waitstatus_to_exitcode(status)
            unit = 1 if sys.platform == "darwin" else 1024
            self._tell(Notice(ENDED, number, code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit))

    def _look_at_slices(self) -> None:
        for number, slice_s in list(self._slice_s.items()):
            pid = self._pids[number]
            used_s = cpu_seconds(pid)
            if used_s > slice_s:
                del self._slice_s[number]
                _idle(pid)
                self._tell(Notice(SUNK, number, 0, used_s))

    def _tell(self, notice: Notice) -> None:
        with contextlib.suppress(OSError):  # they are gone, which the next read shows
            self._control.sendall(notice.packed())


_SIGNALS = {KILL: signal.SIGKILL, STOP: signal.SIGSTOP, RESUME: signal.SIGCONT}


def cpu_seconds(pid: int) -> float:
    """What a process has used; 0 where the system has no clock for it."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of the whole process
    except OSError:
        return 0.0


def _idle(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
