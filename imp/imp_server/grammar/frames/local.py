"""What a local state is: the top frame of a configuration, interned, known to the tables by a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from imp_server.grammar.tables import DEAD

if TYPE_CHECKING:
    from imp_server.grammar.frames.space import Space

N_BEFORE = 2
"""Blanks allowed before the newline of a gap."""
N_AFTER = 48
"""Blanks allowed after it."""


class Local:
    """One frame. Subclasses fill their row of the table; a waiting frame's row is indexed by results."""

    __slots__ = ("id", "space")

    captures = False
    """Whoever advances keeps the bytes read from here on (tape); see frames/stack.py."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.id = space.tables.new_local()

    def fill(self, byte: int) -> int:
        """The table entry for `byte` (or for result `byte` of a child); stores it, or the whole row."""
        entries = self.entries()
        # only now: making the entries may have moved the rows
        row = self.space.tables.rows[self.id]
        row[:] = DEAD
        for at, entry in entries.items():
            row[at] = entry
        return entries.get(byte, DEAD)

    def entries(self) -> dict[int, int]:
        """The possible bytes; all others are DEAD."""
        raise NotImplementedError

    @property
    def end_result(self) -> int:
        """The result with which the frame may end without a further byte; -1 if it may not."""
        return -1

    def lead(self) -> bytes:
        """A short text, never empty, that brings the frame nearer to its end. Only for frames on top."""
        raise NotImplementedError


def gap(used: int, byte: int) -> int | None:
    """The state of a run of whitespace after one more byte: at most one newline, bounded blanks."""
    if byte in (0x20, 0x09):
        if used < N_BEFORE or N_BEFORE < used < N_BEFORE + 1 + N_AFTER:
            return used + 1
        return None
    return N_BEFORE + 1 if byte == 0x0A and used <= N_BEFORE else None


def gap_entries(used: int, target: Callable[[int], int]) -> dict[int, int]:
    """Entries of the whitespace bytes; `target(used)` is the local's number after them."""
    found = {}
    for byte in (0x20, 0x09, 0x0A):
        after = gap(used, byte)
        if after is not None:
            found[byte] = target(after)
    return found
