"""An engine in a process of its own: start, watch, restart, and retry what a crash interrupted unseen."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable

import msgspec

from imp_server.config import Config, EngineConfig, child_environment
from imp_server.core import EXIT_DEVICE_LOST, EngineCrashed, GenerateRequest, Unavailable, UserFault
from imp_server.engine.client.base import EngineStats, OnLoading
from imp_server.engine.client.blame import Blame
from imp_server.engine.client.generation import LiveGeneration
from imp_server.engine.client.message_client import MessageClient
from imp_server.engine.flight_recorder import FlightRecorder, make_recorder_file
from imp_server.engine.messages import (
    PROTOCOL,
    Drain,
    FromEngine,
    Heartbeat,
    LoadFailed,
    Ready,
    Start,
    Submit,
    ToEngine,
    decode_from_engine,
    encode,
)

log = logging.getLogger(__name__)

_EXIT_TIMEOUT_S = 5.0
_LEAVE_S = 0.6
"""How long an engine may take to end behind its drain: it fails what is left."""
_END_S = 0.4
"""How long it may take to notice that nobody listens any more. It needs nothing of what its loop is doing for that."""
_FIRST_SIGN_S = 30.0
"""How long a new process may be silent, at least: on a machine whose cores are busy it imports for seconds."""
_MOST_DEVICES_LOST = 3
"""While a model is loaded."""
_STABLE_S = 60.0
"""A process that lived so long starts the back-off anew."""


class ProcessEngine(MessageClient):
    """Owner of the engine process and of its restarts."""

    def __init__(self, path: str | os.PathLike[str], model_id: str, config: Config) -> None:
        super().__init__()
        self.n_crashes = 0
        self._start_message = Start(PROTOCOL, os.fsencode(path), model_id, _own(config))
        self._settings = config.engine
        self._blame = Blame(config.engine.crash_limit)
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._recorder: FlightRecorder | None = None
        self._silent_s, self._has_spoken = 0.0, False
        self._started_s = 0.0
        self._n_steps, self._stepped_s = 0, 0.0
        self._n_crashes_in_row = self._n_devices_lost = 0

    @property
    def pid(self) -> int | None:
        """Of the engine process; None while there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def stalled_s(self) -> float:
        return time.monotonic() - self._stepped_s if self._state == "ready" and len(self._requests) else 0.0

    def kill(self) -> None:
        """Whatever the process does."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    async def start(self, on_progress: OnLoading | None = None) -> None:
        self._on_progress = on_progress
        self._state = "loading"
        self._loaded = asyncio.get_running_loop().create_future()
        await self._spawn()
        try:
            await self._loaded
        except BaseException:
            await self.stop()
            raise

    async def submit(self, request: GenerateRequest) -> LiveGeneration:
        self._check_state()
        self._blame.check(request)
        return await self._requests.submit(request)

    async def stats(self) -> EngineStats:
        counters, rows = await super().stats()
        return EngineStats(counters | {"engine_crashes_total": float(self.n_crashes)}, rows)

    async def drain(self, timeout_s: float) -> None:
        if self._state == "ready":
            self._state = "draining"
            self._send(Drain(timeout_s))
            await self._wait_for_exit(timeout_s + _LEAVE_S)
        await self.stop()

    async def stop(self) -> None:
        failed = self._state == "failed"
        self._state = "stopped"
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        if self._writer is not None:
            self._writer.close()  # end of file: the engine leaves
        await self._wait_for_exit(_END_S)
        self._fail_everything(Unavailable("the engine was stopped"))
        if failed:
            self._state = "failed"

    # --- the process ----------------------------------------------------------------------------

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        recorder_file = make_recorder_file()
        self._recorder = FlightRecorder(recorder_file.fileno())
        inherited = [theirs.fileno(), recorder_file.fileno()]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "imp_server.engine", *map(str, inherited)],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                env=child_environment(PYTHONUNBUFFERED="1"),
                # Ctrl-C in the terminal is for the server, which then drains us. No session of its own for that: Linux
                # may share the processor by sessions, and then priorities count within one only.
                process_group=0,
            )
        finally:
            theirs.close()
            recorder_file.close()
        ours.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._silent_s, self._has_spoken = 0.0, False
        self._started_s = self._stepped_s = time.monotonic()
        self._writer.write(encode(self._start_message))
        self._background(self._read(reader))
        if self._settings.watchdog_s:
            self._background(self._watch(self._process))

    def _send(self, message: ToEngine) -> None:
        # While no process is there nothing is lost: requests are submitted again once one is ready.
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "little")
                self._take(decode_from_engine(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._process_ended()

    def _take(self, message: FromEngine) -> None:
        self._silent_s, self._has_spoken = 0.0, True
        if isinstance(message, Heartbeat):
            if message.n_steps != self._n_steps or not message.busy:
                self._n_steps, self._stepped_s = message.n_steps, time.monotonic()
            return
        was_restarting = self._state == "restarting"
        self._receive(message)
        if was_restarting and isinstance(message, Ready):
            log.warning("the engine answers again")
            for generation in self._requests:
                self._send(Submit(generation.request))
        elif was_restarting and isinstance(message, LoadFailed):
            self._fail_everything(Unavailable(f"the engine could not be restarted: {message.message}"))

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Heartbeats come from a thread of their own, so a long native call is no hang.

        Only time in which we were awake counts: after both sleep (a paused container, a frozen machine) the signs of
        life are still unread.
        """
        pause_s = min(1.0, self._settings.watchdog_s / 4)
        last_s = time.monotonic()
        while process.poll() is None:
            await asyncio.sleep(pause_s)
            now_s = time.monotonic()
            self._silent_s += min(now_s - last_s, 2.0 * pause_s)
            last_s = now_s
            limit_s = self._settings.watchdog_s if self._has_spoken else max(self._settings.watchdog_s, _FIRST_SIGN_S)
            if self._silent_s > limit_s and process.poll() is None:
                log.error("the engine gave no sign of life for %.0f s and is killed", self._silent_s)
                process.kill()
                return

    async def _process_ended(self) -> None:
        code = await self._wait_for_exit(_EXIT_TIMEOUT_S)
        if self._state in ("stopped", "draining", "failed"):
            return
        self.n_crashes += 1
        was_loading = self._loaded is not None and not self._loaded.done()
        goes_on = not was_loading or code == EXIT_DEVICE_LOST
        log.error("the engine process %s%s", _ending(code), "; it is started again" if goes_on else "")
        if self._writer is not None:
            self._writer.close()
        self._sort_requests()
        if was_loading and code == EXIT_DEVICE_LOST and self._n_devices_lost < _MOST_DEVICES_LOST:
            # The next one does without the kernels that were under way.
            self._n_devices_lost += 1
            await self._spawn()
            return
        if was_loading:
            self._state = "failed"
            self._settle_load(UserFault(f"the engine process {_ending(code)} while it loaded the model"))
            return
        self._state = "restarting"
        await self._restart()

    def _sort_requests(self) -> None:
        """After a crash: what has emitted nothing is tried once more, the rest fails."""
        error = EngineCrashed("the engine crashed while it worked on this request; try again", retry_after_s=1.0)
        inside = list(self._requests)
        running = self._recorder.read() if self._recorder is not None else set()
        suspects = [generation.request for generation in inside if generation.key in running]
        self._blame.note(suspects or [generation.request for generation in inside])
        for generation in inside:
            if generation.has_output or generation.resubmitted:
                self._requests.fail(generation, error)
            else:
                generation.resubmitted = True
        self._tickets.fail_all(error)

    async def _restart(self) -> None:
        stable = time.monotonic() - self._started_s > _STABLE_S
        self._n_crashes_in_row = 1 if stable else self._n_crashes_in_row + 1
        delay_s = self._settings.restart_backoff_s * 2 ** (self._n_crashes_in_row - 1)
        await asyncio.sleep(min(delay_s, self._settings.restart_backoff_max_s))
        if self._state == "restarting":
            await self._spawn()

    async def _wait_for_exit(self, timeout_s: float) -> int | None:
        """The exit code; a process that doesn't end in time is killed."""
        process = self._process
        if process is None:
            return None
        until = time.monotonic() + timeout_s
        while process.poll() is None and time.monotonic() < until:
            await asyncio.sleep(0.01)
        if process.poll() is None:
            process.kill()
            process.wait()
        return process.returncode

    def _background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _ending(code: int | None) -> str:
    """What became of the process, for people."""
    if code is None or code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = " (the system kills so where memory runs out)" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{why}"


def _own(config: Config) -> EngineConfig:
    """Without the path, which the message has as bytes: not every path is text."""
    own = config.for_engine()
    return msgspec.structs.replace(own, model=msgspec.structs.replace(own.model, path=""))
