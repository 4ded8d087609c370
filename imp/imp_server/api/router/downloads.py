"""Downloads of models, each in a child process that can be ended at any time; what it has is kept for the next try."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from imp_server.config import child_environment

_log = logging.getLogger(__name__)
_LONGEST_LINE = 1 << 16
_TO_END_S = 2.0
"""Seconds that a child gets to end before it is killed."""
MOST = 4
"""Downloads at the same time."""

Progress = dict[str, dict[str, int]]
"""File -> bytes done, and bytes in all (0 = unknown)."""


class Download:
    """Owner of one child. `done` becomes None, or what it failed with."""

    def __init__(self, command: Sequence[str], on_progress: Callable[[Progress], None]) -> None:
        self._command = command
        self._on_progress = on_progress
        self._process: asyncio.subprocess.Process | None = None
        self._error = ""
        self.progress: Progress = {}
        self.was_cancelled = False

    async def run(self) -> str:
        """What it failed with, in words; "" = the model is here."""
        if self.was_cancelled:
            return "the download was cancelled"
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=subprocess.PIPE,  # its end tells the child that we are gone
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(PYTHONUNBUFFERED="1"),
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
        try:
            assert self._process.stdout is not None
            if self.was_cancelled:  # while it was begun, when there was no process to be told
                return "the download was cancelled"
            while line := await self._process.stdout.readline():
                self._take(line)
            code = await self._process.wait()
        except ValueError:
            self._error, code = "the download said something that can't be read", 1
        finally:
            await self._end()
        if self.was_cancelled:
            return "the download was cancelled"
        return "" if code == 0 and not self._error else self._error or f"the download ended with code {code}"

    def cancel(self) -> None:
        """From the event loop."""
        self.was_cancelled = True
        self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(_TO_END_S, self._signal, signal.SIGKILL)

    def _take(self, line: bytes) -> None:
        try:
            told: dict[str, Any] = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return
        if "error" in told:
            self._error = str(told["error"])
        elif "file" in told:
            self.progress[str(told["file"])] = {"done": int(told["done"]), "total": int(told["total"])}
            self._on_progress(dict(self.progress))

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_TO_END_S):
                await process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await process.wait()

    def _signal(self, number: signal.Signals) -> None:
        """To the child and what it has begun."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


class Downloads:
    """Owner of all downloads under way, by the name of their model."""

    def __init__(self, on_progress: Callable[[str, Progress], None], on_end: Callable[[str, str], None]) -> None:
        """`on_end`: told the model and what its download failed with, "" if it is here."""
        self._on_progress, self._on_end = on_progress, on_end
        self._running: dict[str, tuple[Download, asyncio.Task[None]]] = {}

    def __contains__(self, model: str) -> bool:
        return model in self._running

    def __len__(self) -> int:
        return len(self._running)

    def progress(self) -> dict[str, Progress]:
        return {model: download.progress for model, (download, _) in self._running.items()}

    def begin(self, model: str, command: Sequence[str]) -> None:
        download = Download(command, lambda progress: self._on_progress(model, progress))
        task = asyncio.get_running_loop().create_task(self._run(model, download))
        self._running[model] = (download, task)

    async def cancel(self, model: str) -> bool:
        """False if it isn't being downloaded. Returns when the child has ended."""
        found = self._running.get(model)
        if found is None:
            return False
        found[0].cancel()
        await asyncio.wait((found[1],))
        return True

    async def close(self) -> None:
        await asyncio.gather(*(self.cancel(model) for model in list(self._running)))

    async def _run(self, model: str, download: Download) -> None:
        try:
            error = await download.run()
        except Exception:
            _log.exception("the download of %s failed", model)
            error = "the download failed; the server's log has the details"
        del self._running[model]
        self._on_end(model, error)
