"""Keys of an object that takes undeclared names: along the trie of known names, and off it as a free text.

Off the trie every name is treated alike, so those frames are shared with all other free texts: leaving the trie
pushes one, and its quote comes back to WaitingKey. What the name was is on the tape (stack.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.frames.keys import Keys
from imp_server.grammar.frames.store import Frame, ListedFrame
from imp_server.grammar.frames.tables import HOLE
from imp_server.grammar.frames.texts import BACKSLASH, QUOTE, WIDTHS, Texts
from imp_server.grammar.machines.machine import DEAD
from imp_server.grammar.values.json_values import spelled


class KeyText(Frame):
    """On the trie. `missing`: continuation bytes that the current code point still needs."""

    __slots__ = ("_filled", "frames", "keys", "missing", "state")

    captures = True

    def __init__(self, frames: KeyTexts, keys: Keys, state: int, missing: int) -> None:
        super().__init__(frames.store)
        self.frames = frames
        self.keys = keys
        self.state = state
        self.missing = missing
        self._filled = False

    def fill(self, byte: int) -> int:
        if byte == QUOTE and self._filled and self.missing == 0:
            entry = self._close()
            self.store.tables.rows[self.id, QUOTE] = entry
            return entry
        leaving = self._leaving()
        moves = []
        for at, after in self.keys.known_moves(self.state).items():
            if at >= 0x20 and at not in (QUOTE, BACKSLASH):
                missing = self.missing - 1 if self.missing else WIDTHS[at]
                moves.append((at, self.frames.text(self.keys, after, missing).id))
        escape = self.frames.texts.escape(self, b"").id if self.missing == 0 else DEAD
        rows = self.store.tables.rows
        row = rows[self.id]
        row[:] = leaving
        for at, local in moves:
            row[at] = local
        row[BACKSLASH] = escape
        row[QUOTE] = HOLE if self.missing == 0 else DEAD
        self._filled = True
        return self.fill(byte) if byte == QUOTE and self.missing == 0 else int(row[byte])

    def _close(self) -> int:
        result = self.keys.result(self.state)
        if result >= 0:
            return self.keys.closed(result)
        return DEAD if self.keys.is_known(self.state) else self.frames.waiting(self.keys).colon()

    def _leaving(self) -> NDArray[np.int32]:
        """The row of a free text in the same place, each of its steps pushed above WaitingKey."""
        return self.frames.waiting(self.keys).leaving(self.keys.pending(self.state))

    # --- what Escape asks -------------------------------------------------------------------

    strict = True

    def after_char(self, char: str) -> int:
        state = self.state
        for byte in char.encode():
            state = self.keys.known_moves(state).get(byte, DEAD)
            if state == DEAD:
                waiting = self.frames.waiting(self.keys)
                return self.store.tables.op(waiting.id, self.frames.texts.free().id)
        return self.frames.text(self.keys, state, 0).id

    def takes(self, low: int, high: int) -> bool:
        return low <= high

    def lead(self) -> bytes:
        rest = self.keys.nearest(self.state)
        if rest is None:
            rest = self.keys.undeclared_rest(self.state)
        return rest[: self.missing] + spelled(("string", rest[self.missing :].decode())).encode()[1:]


class WaitingKey(ListedFrame):
    """The object's frame while an undeclared name is read above it."""

    __slots__ = ("_leaving", "_texts", "keys")

    captures = True

    def __init__(self, texts: Texts, keys: Keys) -> None:
        super().__init__(texts.store)
        self._texts = texts
        self.keys = keys
        self._leaving: dict[bytes, NDArray[np.int32]] = {}

    def colon(self) -> int:
        return self.keys.undeclared()

    def named(self, name: str) -> int:
        """The local behind an undeclared name, which is remembered as used."""
        return self.keys.undeclared_named(name)

    def entries(self) -> dict[int, int]:
        return {0: self.colon()}

    def leaving(self, pending: bytes) -> NDArray[np.int32]:
        """Entries of the bytes that leave the trie; `pending`: the bytes of an unfinished code point."""
        found = self._leaving.get(pending)
        if found is None:
            tables, local = self.store.tables, self._texts.free().id
            for byte in pending:
                local = tables.entry(local, byte)
            tables.entry(local, 0)
            row = tables.rows[local].copy()
            row[QUOTE] = row[BACKSLASH] = DEAD
            for target in {int(t) for t in row if t >= 0}:
                row[row == target] = tables.op(self.id, target)
            found = self._leaving[pending] = row
        return found


class KeyTexts:
    """The frames of keys."""

    def __init__(self, texts: Texts) -> None:
        self.store = texts.store.owned_by(self)
        self.texts = texts
        self._on_trie: dict[tuple[Keys, int, int], KeyText] = self.store.table()
        self._waiting: dict[Keys, WaitingKey] = self.store.table()

    def text(self, keys: Keys, state: int, missing: int) -> KeyText:
        return self.store.local(self._on_trie, (keys, state, missing), lambda: KeyText(self, keys, state, missing))

    def waiting(self, keys: Keys) -> WaitingKey:
        return self.store.local(self._waiting, keys, lambda: WaitingKey(self.texts, keys))

    def opened(self, keys: Keys) -> int:
        """Entry for the quote that opens a key."""
        if not keys.apart:
            return self.texts.text(keys, keys.start, 0, keys).id
        if keys.start == DEAD:
            return self.store.tables.op(self.waiting(keys).id, self.texts.free().id)
        return self.text(keys, keys.start, 0).id
