"""Jobs that tests give to worker processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from imp_server.text import template


def warm_up() -> None:
    """Nothing to warm up."""


def without_budgets() -> None:
    """Lifts the sandbox's limits: for templates whose work nobody foresees."""
    vars(template)["MAX_STEPS"] = 1 << 60


def shout(data: bytes) -> bytes:
    return data.upper()


def pid(data: bytes) -> bytes:
    return str(os.getpid()).encode()


def spin(data: bytes) -> bytes:
    """Busy for so many CPU seconds; announces its id in the file that follows."""
    seconds, _, path = data.decode().partition(" ")
    if path:
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, f"{os.getpid()}\n".encode())
    until = time.process_time() + float(seconds)
    while time.process_time() < until:
        pass
    return str(os.nice(0)).encode()


def sleep(data: bytes) -> bytes:
    time.sleep(float(data))
    return b""


def eat(data: bytes) -> bytes:
    return str(len(bytearray(int(data)))).encode()


def sulk(data: bytes) -> bytes:
    raise ValueError("no")


def crash(data: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGSEGV)
    return b""


def write_file(data: bytes) -> bytes:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(data.decode(), "wb") as file:
        file.write(b"x")
    return b""


def open_counter(data: bytes) -> Callable[[bytes], bytes]:
    """A lasting job: counts the questions."""
    n = int(data)

    def count(asked: bytes) -> bytes:
        nonlocal n
        if asked == b"spin":
            spin(b"100")
        if asked == b"sleep":
            time.sleep(100)
        n += 1
        return f"{n} {os.getpid()}".encode()

    return count


def never(data: bytes) -> bytes:
    """A check without an end."""
    return spin(b"1000")
