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
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from imp_server.api.json_size import memory_of
from imp_server.api.store_file import DamagedStore, StoreFile, columns, mended
from imp_server.core import InvalidRequest
from imp_server.core.owner import Owner

Json = dict[str, Any]
T = TypeVar("T")
_log = logging.getLogger(__name__)

UNFINISHED = ("queued", "in_progress")
_LOST = "the server ended before the response was done"

# The indexes cover what every put asks (age, number, bytes), so that no answer is read for it.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT NOT NULL UNIQUE, parent TEXT, created REAL NOT NULL, used INTEGER NOT NULL,
    hidden INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL, memory INTEGER NOT NULL DEFAULT 0,
    resource TEXT NOT NULL, input TEXT NOT NULL,
    owner TEXT NOT NULL DEFAULT '', run TEXT NOT NULL DEFAULT '', streamed INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS by_parent ON responses (parent);
CREATE INDEX IF NOT EXISTS by_age ON responses (hidden, created);
DROP INDEX IF EXISTS by_use;
CREATE INDEX IF NOT EXISTS by_owner ON responses (owner, hidden, used, size);
CREATE INDEX IF NOT EXISTS by_size ON responses (size, hidden);
CREATE TABLE IF NOT EXISTS owned_items (
    id TEXT NOT NULL, owner TEXT NOT NULL, response TEXT NOT NULL, PRIMARY KEY (id, owner)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_by_response ON owned_items (response);
"""
_LATER_COLUMNS = {
    "owner": "TEXT NOT NULL DEFAULT ''",
    "run": "TEXT NOT NULL DEFAULT ''",  # of the server that makes it; empty once it has ended
    "streamed": "INTEGER NOT NULL DEFAULT 0",
    "memory": "INTEGER NOT NULL DEFAULT 0",  # that it takes once it is read, at most; 0: nobody has counted
}
_OLD_ITEMS = """INSERT OR IGNORE INTO owned_items (id, owner, response) SELECT id, '', response FROM items;
DROP TABLE items;"""
_COLUMNS = {
    "responses": {"id", "parent", "created", "used", "hidden", "size", "resource", "input", "owner"}
    | {"run", "streamed", "memory"},
    "owned_items": {"id", "owner", "response"},
}
UNCOUNTED = 10
"""Times its text: what something takes that was stored before anybody counted."""
_MEMORY = f"""WITH RECURSIVE chain (parent, memory, size) AS (
    SELECT parent, memory, size FROM responses WHERE id = ? AND owner = ? AND hidden = 0
    UNION ALL SELECT r.parent, r.memory, r.size FROM responses AS r JOIN chain ON r.id = chain.parent)
    SELECT sum(CASE memory WHEN 0 THEN {UNCOUNTED} * size ELSE memory END) FROM chain"""
_PURGE = """DELETE FROM responses WHERE hidden = 1
            AND NOT EXISTS (SELECT 1 FROM responses AS later WHERE later.parent = responses.id)"""


@dataclass(slots=True)
class StoreCounts:
    """Since the process started."""

    evicted: int = 0
    expired: int = 0


class StoredResponse(NamedTuple):
    """A stored response."""

    resource: Json
    is_ours: bool
    """It isn't finished, and this server is the one that makes it."""
    is_streamed: bool
    """Its events were promised, too."""


def as_lost(resource: Json) -> Json:
    """The end of a response whose server has ended without it."""
    return resource | {"status": "failed", "error": {"code": "server_error", "message": _LOST}}


class ResponsesStore:
    """Owner of the table of responses. Opened at its first use; `path` may be ":memory:".

    Methods raise sqlite3.Error or OSError where the disk won't have it.
    """

    def __init__(
        self, path: str, *, ttl_s: float, max_entries: int, max_bytes: int, now: Callable[[], float] = time.time
    ) -> None:
        self.file = StoreFile(path)
        self.file.prepares.append(self._prepare)
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._now = now
        self._last_use = 0
        self.counts = StoreCounts()

    @mended
    def put(self, owner: Owner, resource: Json, items: list[Json], is_streamed: bool = False) -> bool:
        """False if the entry alone is larger than the cap: it isn't stored and nothing is evicted for it.

        One that isn't finished gets its end from `finish`, or fails with this server.
        """
        run = self.file.runs.begin() if resource.get("status") in UNFINISHED else ""
        answer, asked = json.dumps(resource), json.dumps(items)
        size, memory = len(answer) + len(asked), memory_of(answer, asked)
        if size > self._max_bytes:
            return False
        names = {item["id"] for item in [*items, *resource["output"]]}
        with self._db as db:
            self._expire()
            name, parent = resource["id"], resource["previous_response_id"]
            values = (name, parent, self._now(), self._tick(), size, memory, answer, asked, owner, run, is_streamed)
            db.execute(
                "INSERT INTO responses (id, parent, created, used, size, memory, resource, input, owner, run, streamed)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                values,
            )
            db.executemany("INSERT OR IGNORE INTO owned_items VALUES (?, ?, ?)", [(i, owner, name) for i in names])
            self._evict()
        return True

    @mended
    def finish(self, owner: Owner, resource: Json) -> bool:
        """False if it was deleted, has expired or was evicted meanwhile, or has become too large."""
        answer, name = json.dumps(resource), resource["id"]
        if len(answer) > self._max_bytes:
            return False
        with self._db as db:
            self._expire()
            changed = db.execute(
                "UPDATE responses SET resource = ?, size = ? + length(CAST(input AS BLOB)), run = '',"
                " memory = CASE memory WHEN 0 THEN 0 ELSE memory + ? END WHERE id = ? AND owner = ? AND hidden = 0",
                (answer, len(answer), memory_of(answer), name, owner),
            ).rowcount
            if changed:
                made = [(item["id"], owner, name) for item in resource["output"]]
                db.executemany("INSERT OR IGNORE INTO owned_items VALUES (?, ?, ?)", made)
                self._evict()
        return bool(changed)

    def resource(self, owner: Owner, response_id: str) -> Json | None:
        found = self.find(owner, response_id)
        return found.resource if found else None

    @mended
    def find(self, owner: Owner, response_id: str) -> StoredResponse | None:
        """Reading refreshes the order of eviction, not the time to live."""
        with self._db as db:
            self._expire()
            row = db.execute(
                "SELECT CAST(resource AS BLOB), run, streamed FROM responses WHERE id = ? AND owner = ? AND hidden = 0",
                (response_id, owner),
            ).fetchone()
            if row is None:
                return None
            db.execute("UPDATE responses SET used = ? WHERE id = ?", (self._tick(), response_id))
        data, run, is_streamed = row
        resource = self._read(response_id, data, dict)
        if resource is not None and run and not self.file.runs.is_alive(run):
            resource = as_lost(resource)
            self.finish(owner, resource)
        return StoredResponse(resource, run == self.file.runs.own, bool(is_streamed)) if resource is not None else None

    @mended
    def history_bytes(self, owner: Owner, response_id: str) -> int:
        """Memory that `conversation` makes, at most; 0 if there is none."""
        (found,) = self._db.execute(_MEMORY, (response_id, owner)).fetchone()
        return int(found or 0)

    @mended
    def item_bytes(self, owner: Owner, item_id: str) -> int:
        """The same of `item`."""
        row = self._db.execute(
            "SELECT sum(CASE r.memory WHEN 0 THEN ? * r.size ELSE r.memory END) FROM owned_items AS i"
            " JOIN responses AS r ON r.id = i.response WHERE i.id = ? AND i.owner = ? AND r.hidden = 0",
            (UNCOUNTED, item_id, owner),
        ).fetchone()
        return int(row[0] or 0)

    @mended
    def conversation(self, owner: Owner, response_id: str, *, with_output: bool) -> list[Json] | None:
        """Raises InvalidRequest for the output of one that isn't finished."""
        newest = self.resource(owner, response_id)
        if newest is None:
            return None
        if with_output:
            _check_continued(newest)
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

    @mended
    def item(self, owner: Owner, item_id: str) -> Json | None:
        row = self._db.execute(
            "SELECT response FROM owned_items WHERE id = ? AND owner = ?", (item_id, owner)
        ).fetchone()
        resource = self.resource(owner, row[0]) if row else None
        if resource is None:
            return None
        (asked,) = self._db.execute("SELECT CAST(input AS BLOB) FROM responses WHERE id = ?", row).fetchone()
        items = [*(self._read(row[0], asked, list) or ()), *resource["output"]]
        return next((item for item in items if item["id"] == item_id), None)

    @mended
    def delete(self, owner: Owner, response_id: str) -> bool:
        with self._db as db:
            self._expire()
            changed = db.execute(
                "UPDATE responses SET hidden = 1 WHERE id = ? AND owner = ? AND hidden = 0", (response_id, owner)
            ).rowcount
            self._purge()
        return bool(changed)

    @mended
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
        """The owner who holds most of what is too much gives first, the response that wasn't used for longest."""
        while True:
            n_entries, n_bytes = self.totals()
            if n_entries <= self._max_entries and n_bytes <= self._max_bytes:
                return
            held = "sum(hidden = 0)" if n_entries > self._max_entries else "sum(size)"
            (owner,) = self._db.execute(
                "SELECT owner FROM responses INDEXED BY by_owner GROUP BY owner HAVING sum(hidden = 0) > 0"
                f" ORDER BY {held} DESC, min(used) LIMIT 1"
            ).fetchone()
            self._db.execute(
                "UPDATE responses SET hidden = 1 WHERE id ="
                " (SELECT id FROM responses WHERE owner = ? AND hidden = 0 ORDER BY used LIMIT 1)",
                (owner,),
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
        return self.file.db

    def _prepare(self, db: sqlite3.Connection) -> None:
        self._last_use = max(self._last_use, _prepared(db))

    def close(self) -> None:
        self.file.close()


def _check_continued(response: Json) -> None:
    """Raises InvalidRequest for one that nothing can go on from."""
    problem = ""
    if response.get("status") in UNFINISHED:
        problem = "is still being made; wait for its end"
    elif named := response.get("conversation"):
        problem = f"belongs to a conversation; send its id, {named['id']}, as conversation instead"
    if problem:
        message = f"response {response['id']} {problem}"
        raise InvalidRequest(message, param="previous_response_id", code="invalid_history")


def _prepared(db: sqlite3.Connection) -> int:
    """Tables of today in the file; the highest mark of use. Raises DamagedStore for a database of another kind."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    known = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "responses" in known:
        for name, kind in _LATER_COLUMNS.items():
            if name not in columns(db, "responses"):
                db.execute(f"ALTER TABLE responses ADD COLUMN {name} {kind}")
    if any(not _COLUMNS[table] <= columns(db, table) for table in _COLUMNS if table in known):
        raise DamagedStore("its tables aren't those of this server")
    db.executescript(_SCHEMA)
    if "items" in known:
        db.executescript(_OLD_ITEMS)
    return int(db.execute("SELECT coalesce(max(used), 0) FROM responses").fetchone()[0])
