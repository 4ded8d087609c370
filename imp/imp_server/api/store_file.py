"""One SQLite file, readable for its user alone, with a connection per thread. One that is damaged is set aside."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

_BUSY_S = 5.0
"""How long another process may hold the file."""
_SIDES = ("", "-wal", "-shm")
"""The file, and what SQLite keeps beside it."""
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MEMORY = ":memory:"
_RUN = ".run-"


class DamagedStore(sqlite3.DatabaseError):
    """The file is a database, but none of ours."""


class _Shared:
    opened: sqlite3.Connection | None = None


class _Connections(threading.local):
    """The connection of the thread that asks."""

    opened: sqlite3.Connection | None = None


class StoreFile:
    """Owner of the file. Opened at its first use; `path` may be ":memory:"."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.prepares: list[Callable[[sqlite3.Connection], None]] = []
        """What is done with each new connection. Raises DamagedStore for a database of another kind."""
        self.runs = Runs(path)
        self._of_thread: _Connections | _Shared = _Connections() if path != _MEMORY else _Shared()

    @property
    def db(self) -> sqlite3.Connection:
        """Raises sqlite3.Error or OSError where the disk won't have it."""
        if self._of_thread.opened is None:
            db = self._connected()
            try:
                for prepare in self.prepares:
                    prepare(db)
            except BaseException:
                db.close()
                raise
            self._of_thread.opened = db
        return self._of_thread.opened

    def _connected(self) -> sqlite3.Connection:
        if self.path != _MEMORY:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            # SQLite gives what it keeps beside the file the rights of the file.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            for side in _SIDES:
                with suppress(FileNotFoundError):
                    os.chmod(self.path + side, 0o600)
        # A connection is closed by whichever thread ends the server.
        return sqlite3.connect(self.path, timeout=_BUSY_S, check_same_thread=False)

    def set_aside(self, error: Exception) -> None:
        """The file makes room for a new one. Raises OSError."""
        with suppress(sqlite3.Error):
            self.close()
        self._of_thread.opened = None
        if self.path == _MEMORY:
            raise error
        aside = f"{self.path}.damaged-{int(time.time())}"
        for side in _SIDES:
            with suppress(FileNotFoundError):
                os.replace(self.path + side, aside + side)
        _log.warning("the stored responses in %s are damaged (%s): set aside as %s", self.path, error, aside)

    def close(self) -> None:
        """What lies in the write-ahead log goes into the file."""
        if self._of_thread.opened is not None:
            with closing(self._of_thread.opened):
                self._of_thread.opened = None
        self.runs.close()


class HasFile(Protocol):
    file: StoreFile


S = TypeVar("S", bound=HasFile)


def mended(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """The method on a new file if the old one turns out to be damaged."""

    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.file.set_aside(error)
            return method(self, *args, **kwargs)

    call.__qualname__ = method.__qualname__
    return call


def is_damage(error: sqlite3.Error) -> bool:
    """Of the file's contents; not a full disk, a lock or a missing right."""
    return isinstance(error, DamagedStore) or (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED


def columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in db.execute(f"PRAGMA table_info({table})")}


class Runs:
    """Which of the servers that share the file still live: each holds a lock, which ends with its process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.own = secrets.token_hex(8)
        self._lock: int | None = None
        self._guard = threading.Lock()

    def begin(self) -> str:
        """The name of this server's run, which is alive from now on. Raises OSError."""
        with self._guard:
            if self._lock is None and self._path != _MEMORY:
                self._lock = os.open(self._name(self.own), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for left in Path(self._path).parent.glob(f"{Path(self._path).name}{_RUN}*"):
                    self.is_alive(left.name.partition(_RUN)[2])
        return self.own

    def is_alive(self, run: str) -> bool:
        """What a dead one has left is removed."""
        if run == self.own:
            return True
        try:
            lock = os.open(self._name(run), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        with suppress(FileNotFoundError):
            os.unlink(self._name(run))
        return False

    def close(self) -> None:
        with self._guard:
            if self._lock is not None:
                with suppress(FileNotFoundError):
                    os.unlink(self._name(self.own))
                os.close(self._lock)
                self._lock = None

    def _name(self, run: str) -> str:
        return f"{self._path}{_RUN}{run}"
