"""Stored responses in one SQLite file. Synchronous: runs in the worker pool.

A response keeps its own input and names its parent, so a conversation is a chain and is stored once. A
response that was deleted, has expired or was evicted is hidden at once and its row goes when no later
response continues it: those still need its items.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# The indexes cover what every put asks (age, number, bytes), so that no answer is read for it.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT NOT NULL UNIQUE, parent TEXT, created REAL NOT NULL, used INTEGER NOT NULL,
    hidden INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL, resource TEXT NOT NULL, input TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_parent ON responses (parent);
CREATE INDEX IF NOT EXISTS by_age ON responses (hidden, created);
CREATE INDEX IF NOT EXISTS by_use ON responses (hidden, used, id);
CREATE INDEX IF NOT EXISTS by_size ON responses (size, hidden);
CREATE TABLE IF NOT EXISTS items (id TEXT PRIMARY KEY, response TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_response ON items (response);
"""
_PURGE = """DELETE FROM responses WHERE hidden = 1
            AND NOT EXISTS (SELECT 1 FROM responses AS later WHERE later.parent = responses.id)"""


@dataclass(slots=True)
class Counts:
    """Since the process started."""

    evicted: int = 0
    expired: int = 0


class ResponsesStore:
    """Owner of the file. Opened at its first use; `path` may be ":memory:"."""

    def __init__(
        self, path: str, *, ttl_s: float, max_entries: int, max_bytes: int, now: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._now = now
        self._opened: sqlite3.Connection | None = None
        self._last_use = 0
        self.counts = Counts()

    def put(self, resource: Json, items: list[Json]) -> bool:
        """False if the entry alone is larger than the cap: it isn't stored and nothing is evicted for it."""
        answer, asked = json.dumps(resource), json.dumps(items)
        size = len(answer) + len(asked)
        if size > self._max_bytes:
            return False
        names = {item["id"] for item in [*items, *resource["output"]]}
        with self._db as db:
            self._expire()
            values = (resource["id"], resource["previous_response_id"], self._now(), self._tick(), size, answer, asked)
            db.execute(
                "INSERT INTO responses (id, parent, created, used, size, resource, input) VALUES (?,?,?,?,?,?,?)",
                values,
            )
            db.executemany("INSERT OR IGNORE INTO items VALUES (?, ?)", [(name, resource["id"]) for name in names])
            self._evict()
        return True

    def resource(self, response_id: str) -> Json | None:
        """Reading refreshes the order of eviction, not the time to live."""
        with self._db as db:
            self._expire()
            row = db.execute("SELECT resource FROM responses WHERE id = ? AND hidden = 0", (response_id,)).fetchone()
            if row is None:
                return None
            db.execute("UPDATE responses SET used = ? WHERE id = ?", (self._tick(), response_id))
        value: Json = json.loads(row[0])
        return value

    def conversation(self, response_id: str, *, with_output: bool) -> list[Json] | None:
        if self.resource(response_id) is None:
            return None
        turns: list[list[Json]] = []
        here: str | None = response_id
        while here is not None:
            parent, resource, asked = self._db.execute(
                "SELECT parent, resource, input FROM responses WHERE id = ?", (here,)
            ).fetchone()
            wanted = with_output or here != response_id
            turns.append(json.loads(asked) + (json.loads(resource)["output"] if wanted else []))
            here = parent
        return [item for turn in reversed(turns) for item in turn]

    def item(self, item_id: str) -> Json | None:
        row = self._db.execute("SELECT response FROM items WHERE id = ?", (item_id,)).fetchone()
        items = self.conversation(row[0], with_output=True) if row else None
        return next((item for item in items or () if item["id"] == item_id), None)

    def delete(self, response_id: str) -> bool:
        with self._db as db:
            self._expire()
            changed = db.execute("UPDATE responses SET hidden = 1 WHERE id = ? AND hidden = 0", (response_id,)).rowcount
            self._purge()
        return bool(changed)

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
        self._db.execute("DELETE FROM items WHERE response NOT IN (SELECT id FROM responses)")

    def _tick(self) -> int:
        self._last_use += 1
        return self._last_use

    @property
    def _db(self) -> sqlite3.Connection:
        if self._opened is None:
            if self._path != ":memory:":
                Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            # One thread at a time by the caller's order of work, but not always the same one.
            db = sqlite3.connect(self._path, timeout=10.0, check_same_thread=False)
            db.executescript(_SCHEMA)
            self._last_use = db.execute("SELECT coalesce(max(used), 0) FROM responses").fetchone()[0]
            self._opened = db
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            with closing(self._opened):
                self._opened = None
