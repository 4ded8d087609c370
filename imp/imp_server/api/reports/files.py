"""Files about requests: a line of JSON for each (--log-requests), and the prompts (--log-prompts-dir).

One thread writes them. A disk that hangs costs lines, which are counted, never a request.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from threading import Lock
from typing import Any

from imp_server.api.admission.rare_log import RareLog
from imp_server.core import ConfigError
from imp_server.core.lanes import Lane

_log = logging.getLogger(__name__)
_MOST_BYTES = 64 << 20
"""That wait to be written; what comes beyond is left out."""
_CLOSE_S = 1.0
_TRIES = 1000
"""Prompts of one millisecond that get names of their own."""


class FileWriter:
    """Owner of the thread that writes, and of how much waits for it. Used from one event loop."""

    def __init__(self) -> None:
        self._lane: Lane | None = None
        self._n_bytes = 0
        self._lock = Lock()
        self._rare = RareLog(_log)

    def write(self, job: Callable[[], None], n_bytes: int) -> None:
        """Soon, in order. `job` may raise OSError, which is told."""
        with self._lock:
            fits = self._n_bytes + n_bytes <= _MOST_BYTES
            self._n_bytes += n_bytes if fits else 0
        if not fits:
            self._rare.note("what is written about requests waits for the disk; some of it was left out")
            return
        if self._lane is None:
            self._lane = Lane("imp-files")

        def run() -> None:
            try:
                job()
            except OSError as error:
                self._rare.note("can't write about requests: ", str(error.strerror or error))
            finally:
                with self._lock:
                    self._n_bytes -= n_bytes

        self._lane.submit(run)

    def close(self) -> None:
        if self._lane is not None:
            wait([self._lane.submit(lambda: None)], _CLOSE_S)
            self._lane.close()


class RequestLog:
    """Appends to the file at a path, whatever file that is: it may be moved away at any time, and a new one begins."""

    def __init__(self, path: str, writer: FileWriter) -> None:
        """Raises ConfigError if it can't be written."""
        self._path = Path(path).expanduser()
        self._writer = writer
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._append(b"")
        except OSError as error:
            raise ConfigError(f"can't write --log-requests {path}: {error.strerror or error}") from None

    def put(self, fields: Mapping[str, Any]) -> None:
        line = json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        self._writer.write(lambda: self._append(line), len(line))

    def _append(self, data: bytes) -> None:
        """In one piece: other processes may append, too. For its user alone, as it may hold prompts."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if data:
                os.write(descriptor, data)
        finally:
            os.close(descriptor)


class PromptFiles:
    """One file per generating request, named by a clock of milliseconds that never goes back."""

    def __init__(self, folder: str, writer: FileWriter, clock: Callable[[], float] = time.monotonic) -> None:
        """A folder that can't be made is told, and nothing is written."""
        self._folder = Path(folder).expanduser()
        self._writer = writer
        self._clock = clock
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            _log.warning("can't make --log-prompts-dir %s: %s; no prompts are written", folder, error.strerror or error)

    def put(self, prompts: Sequence[str]) -> None:
        """The prompt as it is; several as JSON."""
        name = f"{int(self._clock() * 1000):012d}"
        text = prompts[0] if len(prompts) == 1 else json.dumps(list(prompts), indent=2, ensure_ascii=False)
        data = text.encode("utf-8", "backslashreplace")
        self._writer.write(lambda: self._create(name, data), len(data))

    def _create(self, name: str, data: bytes) -> None:
        """Under a name that no file has. Raises OSError."""
        for number in range(_TRIES):
            more = f"-{number}" if number else ""
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                descriptor = os.open(self._folder / f"{name}{more}.txt", flags, 0o600)
            except FileExistsError:
                continue
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            return
        raise OSError(f"{_TRIES} prompts came in one millisecond")
