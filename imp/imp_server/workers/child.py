"""A forked child: limits first, then its job, one answer, the end. Lasting children answer until the socket closes."""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from imp_server.workers.wire import (
    ANSWER,
    FAULT,
    LASTING,
    NO_MEMORY,
    JobLimits,
    Order,
    frame,
    read_frame,
)

NICE, NICE_POOR = 5, 19
"""Live rows and the event loop come before every job; one that nobody has paid for gets some per cent of a core."""
_PR_SET_PDEATHSIG = 1


def run(order: Order, sock: socket.socket) -> int:
    """The child's whole life; its exit code."""
    try:
        _die_with_parent()
        os.nice(NICE if order.kind == LASTING or order.slice_s else NICE_POOR)
        set_memory(order.limits)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        function = named(order.function)
        sock.setblocking(True)
        if order.kind == LASTING:
            return _serve(function, order.limits, sock)
        asked = read_frame(sock)
        if asked is None:
            return 0
        set_cpu(order.limits.cpu_s)
        sock.sendall(_answered(function, asked[1]))
    except (BrokenPipeError, ConnectionResetError):
        pass
    return 0


def named(function: str) -> Callable[..., Any]:
    """What module:name names."""
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _serve(opening: Callable[[bytes], Callable[[bytes], bytes]], limits: JobLimits, sock: socket.socket) -> int:
    """The first question opens the worker; what comes back answers the others. Each has the CPU time of one job."""
    handler: Callable[[bytes], bytes] | None = None
    while (asked := read_frame(sock)) is not None:
        set_cpu(limits.cpu_s)
        if handler is None:
            try:
                handler = opening(asked[1])
            except Exception as error:
                sock.sendall(frame(FAULT, str(error).encode(errors="replace")))
                return 0
            sock.sendall(frame(ANSWER, b""))
        else:
            sock.sendall(_answered(handler, asked[1]))
        set_cpu(0)
    return 0


def _answered(function: Callable[[bytes], bytes], data: bytes) -> bytes:
    try:
        return frame(ANSWER, function(data))
    except MemoryError:
        return frame(NO_MEMORY, b"")
    except Exception as error:
        return frame(FAULT, f"{type(error).__name__}: {error}".encode(errors="replace"))


def set_cpu(seconds: float) -> None:
    """CPU seconds from now on after which the process is ended; 0 = no limit.

    The timer is exact but ends with the signal it sends, which a handler could catch; behind it stands the hard limit.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds) + 2
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = most if seconds else hard
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))


def set_memory(limits: JobLimits) -> None:
    """Nothing may grow beyond the limit; where the system can't tell the size of a process there is none."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    most = now + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
