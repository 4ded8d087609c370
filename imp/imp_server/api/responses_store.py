"""Stored responses in one SQLite file. Synchronous: runs on a thread of its own. Each thread has its own connection,
so that one whose disk hangs is left to itself, and another can take its place.

A response keeps its own input and names its parent, so a conversation is a chain and is stored once. A
response that was deleted, has expired or was evicted is hidden at once and its row goes when no later
response continues it: those still need its items. Each belongs to an owner, and nobody else finds it.

The file is readable for its user alone. One that is damaged is set aside, and a new one begins.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from imp_server.core.owner import Owner

Json = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)

_BUSY_S = 5.0
"""How long another process may hold the file."""
_SIDES = ("", "-wal", "-shm")
"""The file, and what SQLite keeps beside it."""
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

# The indexes cover what every put asks (age, number, bytes), so that no answer is read for it.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT NOT NULL UNIQUE, parent TEXT, created REAL NOT NULL, used INTEGER NOT NULL,
    hidden INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL, resource TEXT NOT NULL, input TEXT NOT NULL,
    owner TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS by_parent ON responses (parent);
CREATE INDEX IF NOT EXISTS by_age ON responses (hidden, created);
CREATE INDEX IF NOT EXISTS by_use ON responses (hidden, used, id);
CREATE INDEX IF NOT EXISTS by_size ON responses (size, hidden);
CREATE TABLE IF NOT EXISTS owned_items (
    id TEXT NOT NULL, owner TEXT NOT NULL, response TEXT NOT NULL, PRIMARY KEY (id, owner)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_by_response ON owned_items (response);
"""
_OLD_ITEMS = """INSERT OR IGNORE INTO owned_items (id, owner, response) SELECT id, '', response FROM items;
DROP TABLE items;"""
_COLUMNS = {
    "responses": {"id", "parent", "created", "used", "hidden", "size", "resource", "input", "owner"},
    "owned_items": {"id", "owner", "response"},
}
_PURGE = """DELETE FROM responses WHERE hidden = 1
            AND NOT EXISTS (SELECT 1 FROM responses AS later WHERE later.parent = responses.id)"""


class DamagedStore(sqlite3.DatabaseError):
    """The file is a database, but none of ours."""


@dataclass(slots=True)
class Counts:
    """Since the process started."""

    evicted: int = 0
    expired: int = 0


class _Shared:
    opened: sqlite3.Connection | None = None


class _Connections(threading.local):
    """The connection of the thread that asks."""

    opened: sqlite3.Connection | None = None


Method = Callable[Concatenate["ResponsesStore", P], T]


def _mended(method: Method[P, T]) -> Method[P, T]:
    """The method on a new file if the old one turns out to be damaged."""

    def call(self: ResponsesStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.set_aside(error)
            return method(self, *args, **kwargs)

    call.__qualname__ = method.__qualname__
    return call


def is_damage(error: sqlite3.Error) -> bool:
    """Of the file's contents; not a full disk, a lock or a missing right."""
    return isinstance(error, DamagedStore) or (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED


class ResponsesStore:
    """Owner of the file. Opened at its first use; `path` may be ":memory:".

    Methods raise sqlite3.Error or OSError where the disk won't have it.
    """

    def __init__(
        self, path: str, *, ttl_s: float, max_entries: int, max_bytes: int, now: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._now = now
        self._of_thread: _Connections | _Shared = _Connections() if path != ":memory:" else _Shared()
        self._last_use = 0
        self.counts = Counts()

    @_mended
    def put(self, owner: Owner, resource: Json, items: list[Json]) -> bool:
        """False if the entry alone is larger than the cap: it isn't stored and nothing is evicted for it."""
        answer, asked = json.dumps(resource), json.dumps(items)
        size = len(answer) + len(asked)
        if size > self._max_bytes:
            return False
        names = {item["id"] for item in [*items, *resource["output"]]}
        with self._db as db:
            self._expire()
            name, parent = resource["id"], resource["previous_response_id"]
            values = (name, parent, self._now(), self._tick(), size, answer, asked, owner)
            db.execute(
                "INSERT INTO responses (id, parent, created, used, size, resource, input, owner)"
                " VALUES (?,?,?,?,?,?,?,?)",
                values,
            )
            db.executemany("INSERT OR IGNORE INTO owned_items VALUES (?, ?, ?)", [(i, owner, name) for i in names])
            self._evict()
        return True

    @_mended
    def resource(self, owner: Owner, response_id: str) -> Json | None:
        """Reading refreshes the order of eviction, not the time to live."""
        with self._db as db:
            self._expire()
            row = db.execute(
                "SELECT CAST(resource AS BLOB) FROM responses WHERE id = ? AND owner = ? AND hidden = 0",
                (response_id, owner),
            ).fetchone()
            if row is None:
                return None
            db.execute("UPDATE responses SET used = ? WHERE id = ?", (self._tick(), response_id))
        return self._read(response_id, row[0], dict)

    @_mended
    def conversation(self, owner: Owner, response_id: str, *, with_output: bool) -> list[Json] | None:
        if self.resource(owner, response_id) is None:
            return None
        turns: list[list[Json]] = []
        here: str | None = response_id
        while here is not None:
            parent, stored, asked = self._db.execute(
                "SELECT parent, CAST(resource AS BLOB), CAST(input AS BLOB) FROM responses WHERE id = ?", (here,)
            ).fetchone() or (None, b"", b"")
            wanted = with_output or here != response_id
            resource, items = self._read(here, stored, dict), self._read(here, asked, list)
            if resource is None or items is None:
                return None
            turns.append(items + (resource["output"] if wanted else []))
            here = parent
        return [item for turn in reversed(turns) for item in turn]

    @_mended
    def item(self, owner: Owner, item_id: str) -> Json | None:
        row = self._db.execute(
            "SELECT response FROM owned_items WHERE id = ? AND owner = ?", (item_id, owner)
        ).fetchone()
        items = self.conversation(owner, row[0], with_output=True) if row else None
        return next((item for item in items or () if item["id"] == item_id), None)

    @_mended
    def delete(self, owner: Owner, response_id: str) -> bool:
        with self._db as db:
            self._expire()
            changed = db.execute(
                "UPDATE responses SET hidden = 1 WHERE id = ? AND owner = ? AND hidden = 0", (response_id, owner)
            ).rowcount
            self._purge()
        return bool(changed)

    @_mended
    def totals(self) -> tuple[int, int]:
        """(entries that can be found, bytes of all rows)."""
        query = "SELECT coalesce(sum(hidden = 0), 0), coalesce(sum(size), 0) FROM responses INDEXED BY by_size"
        n_entries, n_bytes = self._db.execute(query).fetchone()
        return int(n_entries), int(n_bytes)

    # --- inside a transaction

    def _expire(self) -> None:
        gone = self._db.execute(
            "UPDATE responses SET hidden = 1 WHERE hidden = 0 AND created <= ?", (self._now() - self._ttl_s,)
        ).rowcount
        self.counts.expired += gone
        if gone:
            self._purge()

    def _evict(self) -> None:
        while True:
            n_entries, n_bytes = self.totals()
            if n_entries <= self._max_entries and n_bytes <= self._max_bytes:
                return
            self._db.execute(
                "UPDATE responses SET hidden = 1 WHERE id ="
                " (SELECT id FROM responses WHERE hidden = 0 ORDER BY used LIMIT 1)"
            )
            self.counts.evicted += 1
            self._purge()

    def _purge(self) -> None:
        """Rows that nothing continues, from the end of each chain to its beginning."""
        while self._db.execute(_PURGE).rowcount:
            pass
        self._db.execute("DELETE FROM owned_items WHERE response NOT IN (SELECT id FROM responses)")

    def _tick(self) -> int:
        self._last_use += 1
        return self._last_use

    def _read(self, response_id: str, data: bytes, kind: type[T]) -> T | None:
        """What was stored as JSON; None, and the row is hidden, if it isn't that any more."""
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if isinstance(value, kind):
            return value
        _log.warning("the stored response %s is damaged and isn't found any more", response_id)
        with self._db as db:
            db.execute("UPDATE responses SET hidden = 1 WHERE id = ?", (response_id,))
        return None

    # --- the file

    @property
    def _db(self) -> sqlite3.Connection:
        if self._of_thread.opened is None:
            db = self._connected()
            try:
                self._last_use = max(self._last_use, _prepared(db))
            except BaseException:
                db.close()
                raise
            self._of_thread.opened = db
        return self._of_thread.opened

    def _connected(self) -> sqlite3.Connection:
        if self._path != ":memory:":
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            # SQLite gives what it keeps beside the file the rights of the file.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            for side in _SIDES:
                with suppress(FileNotFoundError):
                    os.chmod(self._path + side, 0o600)
        # A connection is closed by whichever thread ends the server.
        return sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False)

    def set_aside(self, error: Exception) -> None:
        """The file makes room for a new one. Raises OSError."""
        with suppress(sqlite3.Error):
            self.close()
        self._of_thread.opened = None
        if self._path == ":memory:":
            raise error
        aside = f"{self._path}.damaged-{int(time.time())}"
        for side in _SIDES:
            with suppress(FileNotFoundError):
                os.replace(self._path + side, aside + side)
        _log.warning("the stored responses in %s are damaged (%s): set aside as %s", self._path, error, aside)

    def close(self) -> None:
        """What lies in the write-ahead log goes into the file."""
        if self._of_thread.opened is not None:
            with closing(self._of_thread.opened):
                self._of_thread.opened = None


def _prepared(db: sqlite3.Connection) -> int:
    """Tables of today in the file; the highest mark of use. Raises DamagedStore for a database of another kind."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    known = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "responses" in known and "owner" not in _columns(db, "responses"):
        db.execute("ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT ''")
    if any(not _COLUMNS[table] <= _columns(db, table) for table in _COLUMNS if table in known):
        raise DamagedStore("its tables aren't those of this server")
    db.executescript(_SCHEMA)
    if "items" in known:
        db.executescript(_OLD_ITEMS)
    return int(db.execute("SELECT coalesce(max(used), 0) FROM responses").fetchone()[0])


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
