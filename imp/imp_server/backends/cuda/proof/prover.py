"""Tries kernels in a child process under time limits: what kills or hangs it is condemned, the rest tried again."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

import msgspec

from imp_server.backends.cuda.card import CardOpener
from imp_server.backends.cuda.kernels import KERNELS
from imp_server.backends.cuda.proof.cases import OperationCall
from imp_server.backends.cuda.proof.child import Line, Request
from imp_server.backends.cuda.proof.kept import NO_TIME, KernelVerdict
from imp_server.config.environment import child_environment

log = logging.getLogger(__name__)


class TimeLimits(NamedTuple):
    """Seconds. `whole`: what wasn't looked at by then isn't used."""

    start: float = 180.0
    compile: float = 180.0
    run: float = 30.0
    whole: float = 900.0


Start = Callable[[Request], "subprocess.Popen[bytes]"]


def start_child(request: Request) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "imp_server.backends.cuda.proof.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(PYTHONPATH=":".join(filter(None, sys.path))),
    )
    assert child.stdin is not None
    try:
        child.stdin.write(msgspec.json.encode(request))
        child.stdin.close()
    except BrokenPipeError:
        pass  # it died at once, as its silence will tell
    return child


class KernelProver:
    """Owner of what is known so far; one `verdict` for each."""

    def __init__(
        self,
        opener: CardOpener,
        cases: Sequence[OperationCall],
        limits: TimeLimits | None = None,
        start: Start = start_child,
    ) -> None:
        self._opener, self._limits, self._start = opener, limits or TimeLimits(), start
        self._cases = list(cases)
        self._left = [number for number, case in enumerate(cases) if case.operation in KERNELS]
        self._fits = Counter[str]()
        self._condemned: dict[str, str] = {}
        self._compile_s = self._run_s = 0.0
        self._prepares = True
        self._ends = 0.0

    def verdict(self) -> KernelVerdict | None:
        """None if not one child came as far as its first case: nothing is known."""
        self._ends = time.monotonic() + self._limits.whole
        while self._left and time.monotonic() < self._ends:
            if not self._try_some():
                return None
        for number in self._left:
            self._condemned.setdefault(self._cases[number].operation, NO_TIME)
        proved = [name for name in KERNELS if self._fits[name] and name not in self._condemned]
        return KernelVerdict(proved, self._condemned, sum(self._fits.values()), self._compile_s, self._run_s)

    def _try_some(self) -> bool:
        """One child, until it ends or has to; False if it never began."""
        child = self._start(Request(self._opener.place, self._opener.number, self._cases, self._left, self._prepares))
        lines = _Lines(child)
        try:
            line = lines.next(self._limits.start)
            if line is None:
                log.warning("the process that tries kernels doesn't start: none are used")
                return False
            while line is not None and self._left:
                line = self._follow(line, lines)
            return True
        finally:
            child.kill()
            child.wait()
            lines.close()

    def _follow(self, line: Line, lines: _Lines) -> Line | None:
        """What the child says next; None if it won't go on."""
        if line.what == "done":
            self._settle(line)
            return lines.next(self._limits.compile) if self._left else None
        self._compile_s += line.compile_s
        limit = {"run": self._limits.run, "prepare": self._limits.whole}.get(line.what, self._limits.compile)
        following = lines.next(limit)
        if following is None and line.what == "prepare":
            self._prepares = False  # so that whatever kills it does so at its own case
        elif following is None:
            number = line.number if line.number >= 0 else self._left[0]
            doing = "compiled" if line.what == "compile" else "run"
            why = f"no answer within {limit:.0f} s" if lines.is_silent else "the process died"
            self._condemn(self._cases[number].operation, f"{why} when it was {doing}")
        return following

    def _settle(self, line: Line) -> None:
        operation = self._cases[line.number].operation
        self._left = [number for number in self._left if number != line.number]
        self._compile_s += line.compile_s
        self._run_s += line.run_s
        if line.fault:
            self._condemn(operation, line.fault)
        elif line.has_kernel:
            self._fits[operation] += 1

    def _condemn(self, operation: str, why: str) -> None:
        self._condemned.setdefault(operation, why)
        self._left = [number for number in self._left if self._cases[number].operation != operation]


class _Lines:
    """Owner of the thread that reads what a child says."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._queue: SimpleQueue[Line | None] = SimpleQueue()
        self._out = child.stdout
        self.is_silent = False
        self._thread = threading.Thread(target=self._read, name="imp-proof", daemon=True)
        self._thread.start()

    def next(self, within_s: float) -> Line | None:
        """None at its end, or if it says nothing for so long (`is_silent`)."""
        try:
            return self._queue.get(timeout=within_s)
        except Empty:
            self.is_silent = True
            return None

    def close(self) -> None:
        self._thread.join()
        if self._out is not None:
            self._out.close()

    def _read(self) -> None:
        assert self._out is not None
        for line in self._out:
            try:
                self._queue.put(msgspec.json.decode(line, type=Line))
            except msgspec.MsgspecError:
                break  # whatever that was, it isn't ours
        self._queue.put(None)
