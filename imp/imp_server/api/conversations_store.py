"""Conversations in the file of the stored responses: their notes, and their items in order. Synchronous, like it.

They don't expire by time; where there are too many, or they take too much, the owner who holds most gives the one that
wasn't used for the longest time.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from imp_server.api.json_size import memory_of
from imp_server.api.responses_store import UNCOUNTED
from imp_server.api.store_file import DamagedStore, StoreFile, columns, mended
from imp_server.core import PayloadTooLarge
from imp_server.core.owner import Owner
from imp_server.dialects.ids import new_id
from imp_server.dialects.openai_conversations.kept import ItemPage

Json = dict[str, Any]

MOST_BYTES = 16 << 20
"""Of one conversation."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created INTEGER NOT NULL, used REAL NOT NULL, metadata TEXT NOT NULL,
    size INTEGER NOT NULL, next INTEGER NOT NULL, memory INTEGER NOT NULL DEFAULT 0
);
DROP INDEX IF EXISTS conversations_by_use;
CREATE INDEX IF NOT EXISTS conversations_by_owner ON conversations (owner, used, size);
CREATE INDEX IF NOT EXISTS conversations_by_size ON conversations (size);
CREATE TABLE IF NOT EXISTS conversation_items (
    conversation TEXT NOT NULL, place INTEGER NOT NULL, id TEXT NOT NULL, item TEXT NOT NULL,
    PRIMARY KEY (conversation, place)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS conversation_items_by_id ON conversation_items (id, conversation);
"""
_COLUMNS = {
    "conversations": {"id", "owner", "created", "used", "metadata", "size", "next", "memory"},
    "conversation_items": {"conversation", "place", "id", "item"},
}


class ConversationsStore:
    """Owner of the tables of conversations. Methods raise sqlite3.Error or OSError where the disk won't have it."""

    def __init__(
        self, file: StoreFile, *, max_entries: int, max_bytes: int, now: Callable[[], float] = time.time
    ) -> None:
        self.file = file
        file.prepares.append(_prepare)
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._now = now

    @mended
    def create(self, owner: Owner, name: str, metadata: Json, items: Sequence[Json]) -> Json:
        """The conversation as clients see it. Raises PayloadTooLarge."""
        notes, created = json.dumps(metadata), int(self._now())
        with self.file.db as db:
            row = (name, owner, created, self._now(), notes, len(notes))
            db.execute(
                "INSERT INTO conversations (id, owner, created, used, metadata, size, next) VALUES (?,?,?,?,?,?,0)", row
            )
            self._append(db, name, items)
            self._evict(db, name)
        return _shown(name, created, metadata)

    @mended
    def get(self, owner: Owner, name: str) -> Json | None:
        with self.file.db as db:
            return self._get(db, owner, name)

    @mended
    def update(self, owner: Owner, name: str, metadata: Json) -> Json | None:
        notes = json.dumps(metadata)
        with self.file.db as db:
            db.execute(
                "UPDATE conversations SET size = size + ? - length(metadata), metadata = ? WHERE id = ? AND owner = ?",
                (len(notes), notes, name, owner),
            )
            return self._get(db, owner, name)

    @mended
    def delete(self, owner: Owner, name: str) -> bool:
        with self.file.db as db:
            gone = db.execute("DELETE FROM conversations WHERE id = ? AND owner = ?", (name, owner)).rowcount
            if gone:
                db.execute("DELETE FROM conversation_items WHERE conversation = ?", (name,))
        return bool(gone)

    @mended
    def append(self, owner: Owner, name: str, items: Sequence[Json]) -> list[Json] | None:
        """The items as they are now: one whose id is taken in the conversation gets another. All of them or none.

        Raises PayloadTooLarge.
        """
        with self.file.db as db:
            if self._get(db, owner, name) is None:
                return None
            added = self._append(db, name, items)
            self._evict(db, name)
        return added

    @mended
    def history_bytes(self, owner: Owner, name: str) -> int:
        """Memory that `history` makes, at most; 0 if there is none."""
        row = self.file.db.execute(
            "SELECT size, memory FROM conversations WHERE id = ? AND owner = ?", (name, owner)
        ).fetchone()
        return int(_memory(*row)) if row else 0

    @mended
    def history(self, owner: Owner, name: str) -> list[Json] | None:
        """All items, oldest first."""
        with self.file.db as db:
            if self._get(db, owner, name) is None:
                return None
            rows = db.execute("SELECT item FROM conversation_items WHERE conversation = ? ORDER BY place", (name,))
            return [json.loads(item) for (item,) in rows]

    @mended
    def page(self, owner: Owner, name: str, *, after: str | None, limit: int, is_ascending: bool) -> ItemPage | None:
        """From behind the item `after`; from the first one if there is no such item."""
        with self.file.db as db:
            if self._get(db, owner, name) is None:
                return None
            row = db.execute(
                "SELECT place FROM conversation_items WHERE conversation = ? AND id = ?", (name, after)
            ).fetchone()
            sign, order = (">", "ASC") if is_ascending else ("<", "DESC")
            behind = f"AND place {sign} ?" if row else ""
            rows = db.execute(
                f"SELECT item FROM conversation_items WHERE conversation = ? {behind} ORDER BY place {order} LIMIT ?",
                (name, *(row or ()), limit + 1),
            ).fetchall()
        return ItemPage([json.loads(item) for (item,) in rows[:limit]], len(rows) > limit)

    @mended
    def item(self, owner: Owner, name: str, item_id: str) -> Json | None:
        with self.file.db as db:
            if self._get(db, owner, name) is None:
                return None
            return self._item(db, name, item_id)

    @mended
    def item_anywhere(self, owner: Owner, item_id: str) -> Json | None:
        """In any conversation of the owner's."""
        row = self.file.db.execute(
            "SELECT item FROM conversation_items AS i JOIN conversations AS c ON c.id = i.conversation"
            " WHERE i.id = ? AND c.owner = ? LIMIT 1",
            (item_id, owner),
        ).fetchone()
        return _object(row)

    @mended
    def delete_item(self, owner: Owner, name: str, item_id: str) -> Json | None:
        """The conversation; None if there is no such item in it."""
        with self.file.db as db:
            found = self._get(db, owner, name)
            row = db.execute(
                "SELECT item FROM conversation_items WHERE conversation = ? AND id = ?", (name, item_id)
            ).fetchone()
            if found is None or row is None:
                return None
            db.execute("DELETE FROM conversation_items WHERE conversation = ? AND id = ?", (name, item_id))
            db.execute(
                "UPDATE conversations SET size = size - ?, memory = max(0, memory - ?) WHERE id = ?",
                (len(row[0]), memory_of(row[0]), name),
            )
        return found

    @mended
    def totals(self) -> tuple[int, int]:
        """(conversations, bytes)."""
        return self._totals(self.file.db)

    # --- inside a transaction

    def _get(self, db: sqlite3.Connection, owner: Owner, name: str) -> Json | None:
        row = db.execute(
            "SELECT created, metadata FROM conversations WHERE id = ? AND owner = ?", (name, owner)
        ).fetchone()
        if row is None:
            return None
        db.execute("UPDATE conversations SET used = ? WHERE id = ?", (self._now(), name))
        return _shown(name, row[0], json.loads(row[1]))

    def _item(self, db: sqlite3.Connection, name: str, item_id: str) -> Json | None:
        row = db.execute(
            "SELECT item FROM conversation_items WHERE conversation = ? AND id = ?", (name, item_id)
        ).fetchone()
        return _object(row)

    def _append(self, db: sqlite3.Connection, name: str, items: Sequence[Json]) -> list[Json]:
        query = "SELECT size, next, memory FROM conversations WHERE id = ?"
        size, place, memory = db.execute(query, (name,)).fetchone()
        added: list[Json] = []
        taken: set[str] = set()
        for item in items:
            kind, _, _ = item["id"].partition("_")
            while item["id"] in taken or self._item(db, name, item["id"]) is not None:
                item = item | {"id": new_id(f"{kind[:16]}_")}  # random: a client can't have sent it before
            taken.add(item["id"])
            added.append(item)
        texts = [json.dumps(item) for item in added]
        memory = _memory(size, memory) + memory_of(*texts)
        size += sum(map(len, texts))
        if size > min(MOST_BYTES, self._max_bytes):
            raise PayloadTooLarge("the conversation would be larger than a conversation may be; begin another one")
        rows = [(name, place + i, item["id"], text) for i, (item, text) in enumerate(zip(added, texts, strict=True))]
        db.executemany("INSERT INTO conversation_items VALUES (?,?,?,?)", rows)
        values = (size, place + len(added), memory, name)
        db.execute("UPDATE conversations SET size = ?, next = ?, memory = ? WHERE id = ?", values)
        return added

    def _totals(self, db: sqlite3.Connection) -> tuple[int, int]:
        n, n_bytes = db.execute("SELECT count(*), coalesce(sum(size), 0) FROM conversations").fetchone()
        return int(n), int(n_bytes)

    def _evict(self, db: sqlite3.Connection, kept: str) -> None:
        while True:
            n, n_bytes = self._totals(db)
            if n <= self._max_entries and n_bytes <= self._max_bytes:
                return
            held = "count(*)" if n > self._max_entries else "sum(size)"
            row = db.execute(
                "SELECT id FROM conversations WHERE id != ?1 AND owner = (SELECT owner FROM conversations"
                f" GROUP BY owner HAVING sum(id != ?1) > 0 ORDER BY {held} DESC, min(used) LIMIT 1)"
                " ORDER BY used LIMIT 1",
                (kept,),
            ).fetchone()
            if row is None:
                return
            db.execute("DELETE FROM conversations WHERE id = ?", row)
            db.execute("DELETE FROM conversation_items WHERE conversation = ?", row)


def _memory(size: int, memory: int) -> int:
    """What a conversation takes in memory, at most; `memory` 0: nobody has counted."""
    return memory or UNCOUNTED * size


def _shown(name: str, created: int, metadata: Json) -> Json:
    return {"id": name, "object": "conversation", "created_at": created, "metadata": metadata}


def _object(row: Any) -> Json | None:
    if row is None:
        return None
    found: Json = json.loads(row[0])
    return found


def _prepare(db: sqlite3.Connection) -> None:
    known = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "conversations" in known and "memory" not in columns(db, "conversations"):
        db.execute("ALTER TABLE conversations ADD COLUMN memory INTEGER NOT NULL DEFAULT 0")
    if any(not _COLUMNS[table] <= columns(db, table) for table in _COLUMNS if table in known):
        raise DamagedStore("its tables aren't those of this server")
    db.executescript(_SCHEMA)
