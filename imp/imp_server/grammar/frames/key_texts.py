"""Keys of an object that takes undeclared names: along the trie of known names, and off it as a free text.

Off the trie every name is treated alike, so those frames are shared with all other free texts: leaving the trie
pushes one, and its quote comes back to WaitingKey. What the name was is on the tape (stack.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.frames.keys import Keys
from imp_server.grammar.frames.local import Listed, Local
from imp_server.grammar.frames.tables import HOLE
from imp_server.grammar.frames.texts import BACKSLASH, QUOTE, WIDTHS, Text
from imp_server.grammar.machines.machine import DEAD
from imp_server.grammar.values.json_values import spelled

if TYPE_CHECKING:
    from imp_server.grammar.frames.space import Space


class KeyText(Local):
    """On the trie. `missing`: continuation bytes that the current code point still needs."""

    __slots__ = ("_filled", "keys", "missing", "state")

    captures = True

    def __init__(self, space: Space, keys: Keys, state: int, missing: int) -> None:
        super().__init__(space)
        self.keys = keys
        self.state = state
        self.missing = missing
        self._filled = False

    def fill(self, byte: int) -> int:
        if byte == QUOTE and self._filled and self.missing == 0:
            entry = self._close()
            self.space.tables.rows[self.id, QUOTE] = entry
            return entry
        leaving = self._leaving()
        moves = []
        for at, after in self.keys.known_moves(self.state).items():
            if at >= 0x20 and at not in (QUOTE, BACKSLASH):
                missing = self.missing - 1 if self.missing else WIDTHS[at]
                moves.append((at, self.space.key_text(self.keys, after, missing).id))
        escape = self.space.escape(self, b"").id if self.missing == 0 else DEAD
        rows = self.space.tables.rows
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
        return DEAD if self.keys.is_known(self.state) else self.space.waiting_key(self.keys).colon()

    def _leaving(self) -> NDArray[np.int32]:
        """The row of a free text in the same place, each of its steps pushed above WaitingKey."""
        return self.space.waiting_key(self.keys).leaving(self.keys.pending(self.state))

    # --- what Escape asks -------------------------------------------------------------------

    strict = True

    def after_char(self, char: str) -> int:
        state = self.state
        for byte in char.encode():
            state = self.keys.known_moves(state).get(byte, DEAD)
            if state == DEAD:
                waiting = self.space.waiting_key(self.keys)
                return self.space.tables.op(waiting.id, self.space.free_start().id)
        return self.space.key_text(self.keys, state, 0).id

    def takes(self, low: int, high: int) -> bool:
        return low <= high

    def lead(self) -> bytes:
        rest = self.keys.nearest(self.state)
        if rest is None:
            rest = self.keys.undeclared_rest(self.state)
        return rest[: self.missing] + spelled(("string", rest[self.missing :].decode())).encode()[1:]


class WaitingName(Listed):
    """The object's frame while the rest of its only possible key is read above it."""

    __slots__ = ("keys", "result")

    captures = True

    def __init__(self, space: Space, keys: Keys, result: int) -> None:
        super().__init__(space)
        self.keys = keys
        self.result = result

    def entries(self) -> dict[int, int]:
        return {0: self.keys.closed(self.result)}


class WaitingKey(Listed):
    """The object's frame while an undeclared name is read above it."""

    __slots__ = ("_leaving", "keys")

    captures = True

    def __init__(self, space: Space, keys: Keys) -> None:
        super().__init__(space)
        self.keys = keys
        self._leaving: dict[bytes, NDArray[np.int32]] = {}

    def colon(self) -> int:
        member = self.keys.undeclared()
        return DEAD if member is None else member.colon

    def named(self, name: str) -> int:
        """The local behind an undeclared name, which is remembered as used."""
        member = self.keys.undeclared_named(name)
        return DEAD if member is None else member.colon

    def entries(self) -> dict[int, int]:
        return {0: self.colon()}

    def leaving(self, pending: bytes) -> NDArray[np.int32]:
        """Entries of the bytes that leave the trie; `pending`: the bytes of an unfinished code point."""
        found = self._leaving.get(pending)
        if found is None:
            space = self.space
            start: Text = space.free_start()
            local = start.id
            for byte in pending:
                local = space.tables.entry(local, byte)
            space.tables.entry(local, 0)
            row = space.tables.rows[local].copy()
            row[QUOTE] = row[BACKSLASH] = DEAD
            for target in {int(t) for t in row if t >= 0}:
                row[row == target] = space.tables.op(self.id, target)
            found = self._leaving[pending] = row
        return found
