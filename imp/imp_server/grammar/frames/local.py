"""What a local state is: the top frame of a configuration, interned, known to the tables by a number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from imp_server.grammar.frames.tables import DEAD, POP_AGAIN

if TYPE_CHECKING:
    from imp_server.grammar.frames.space import Space

N_BEFORE = 2
"""Most blanks before the newline of a gap."""
N_BLANKS = 48
"""Most blanks in a row, unless told otherwise."""


class Local(ABC):
    """One frame. Subclasses fill their row of the table; a waiting frame's row is indexed by results."""

    __slots__ = ("id", "space")

    captures = False
    """Whoever advances keeps the bytes read from here on (tape); see frames/stack.py."""

    def __init__(self, space: Space, n_rows: int = 1) -> None:
        """`n_rows`: more than one where more than 256 results are possible."""
        self.space = space
        self.id = space.claim(n_rows)

    @abstractmethod
    def fill(self, byte: int) -> int:
        """The table entry for `byte` (or for result `byte` of a child); stores it, or the whole row."""

    @property
    def end_result(self) -> int:
        """The result with which the frame may end without a further byte; -1 if it may not."""
        return -1

    def lead(self) -> bytes:
        """A short text, never empty, that brings the frame nearer to its end. Only of frames that may be on top."""
        raise AssertionError(f"{type(self).__name__} is never on top")


class Listed(Local):
    """A frame that few bytes lead on from."""

    __slots__ = ()

    @abstractmethod
    def entries(self) -> dict[int, int]:
        """The possible bytes; all others are DEAD."""

    def fill(self, byte: int) -> int:
        entries = self.entries()
        # only now: making the entries may have moved the rows
        row = self.space.tables.rows[self.id]
        row[:] = DEAD
        for at, entry in entries.items():
            row[at] = entry
        return entries.get(byte, DEAD)


class Gap(Local):
    """A run of whitespace, pushed above the frame it stands in: at most one newline, bounded blanks."""

    __slots__ = ("used",)

    def __init__(self, space: Space, used: int) -> None:
        super().__init__(space)
        self.used = used

    def fill(self, byte: int) -> int:
        row = [self.space.tables.op(POP_AGAIN, 0)] * 256
        for blank in BLANKS:
            after = gap_after(self.used, blank, self.space.n_blanks)
            row[blank] = DEAD if after is None else self.space.gap(after).id
        self.space.tables.rows[self.id] = row
        return row[byte]

    @property
    def end_result(self) -> int:
        return 0

    def lead(self) -> bytes:
        return b""


class AfterGap(Listed):
    """Waits for a gap to end; the frame then goes on as `tight`, which allows no more whitespace."""

    __slots__ = ("tight",)

    def __init__(self, space: Space, tight: int) -> None:
        super().__init__(space)
        self.tight = tight

    def entries(self) -> dict[int, int]:
        return {0: self.tight}


BLANKS = (0x20, 0x09, 0x0A)


def gap_after(used: int, byte: int, n_blanks: int) -> int | None:
    """The gap behind one more blank: `used` counts those before the newline, from N_BEFORE + 1 on those after it."""
    if byte != 0x0A:
        most = min(N_BEFORE, n_blanks) if used <= N_BEFORE else N_BEFORE + 1 + n_blanks
        return used + 1 if used < most else None
    return N_BEFORE + 1 if used <= N_BEFORE and n_blanks else None


def gap_entries(space: Space, tight: int) -> dict[int, int]:
    """Entries of the whitespace bytes of a frame that goes on as the local `tight`."""
    if not space.n_blanks:
        return {}
    waiting = space.after_gap(tight).id
    return {
        blank: space.tables.op(waiting, space.gap(after).id)
        for blank in BLANKS
        if (after := gap_after(0, blank, space.n_blanks)) is not None
    }
