"""Whitespace between the parts of a value: a frame of its own, pushed above the one it stands in."""

from __future__ import annotations

from typing import cast

from imp_server.grammar.frames.native_store import AFTER_GAP
from imp_server.grammar.frames.store import Frame, ListedFrame, Store
from imp_server.grammar.frames.tables import DEAD, POP_AGAIN

N_BEFORE = 2
"""Most blanks before the newline of a gap."""
N_BLANKS = 48
"""Most blanks in a row, unless told otherwise."""
BLANKS = (0x20, 0x09, 0x0A)


class Gap(Frame):
    """A run of whitespace: at most one newline, bounded blanks."""

    __slots__ = ("gaps", "used")

    def __init__(self, gaps: Gaps, used: int) -> None:
        super().__init__(gaps.store)
        self.gaps = gaps
        self.used = used

    def fill(self, byte: int) -> int:
        tables = self.store.tables
        row = [tables.op(POP_AGAIN, 0)] * 256
        for blank in BLANKS:
            after = gap_after(self.used, blank, self.store.n_blanks)
            row[blank] = DEAD if after is None else self.gaps.gap(after).id
        tables.rows[self.id] = row
        return row[byte]

    @property
    def end_result(self) -> int:
        return 0

    def lead(self) -> bytes:
        return b""


class AfterGap(ListedFrame):
    """Waits for a gap to end; the frame then goes on as `tight`, which allows no more whitespace."""

    __slots__ = ("tight",)

    def __init__(self, store: Store, tight: int) -> None:
        super().__init__(store)
        self.tight = tight

    def entries(self) -> dict[int, int]:
        return {0: self.tight}


class Gaps:
    """The frames of whitespace."""

    def __init__(self, store: Store) -> None:
        self.store = store.owned_by(self)
        self._gaps: dict[int, Gap] = store.table()
        self._after: dict[int, AfterGap] = store.table()

    def gap(self, used: int) -> Gap:
        return self.store.local(self._gaps, used, lambda: Gap(self, used))

    def after(self, tight: int) -> AfterGap:
        if self.store.native is not None:
            return cast(AfterGap, self.store.native_local(AFTER_GAP, tight))
        return self.store.local(self._after, tight, lambda: AfterGap(self.store, tight))

    def entries(self, tight: int) -> dict[int, int]:
        """Entries of the whitespace bytes of a frame that goes on as the local `tight`."""
        n_blanks = self.store.n_blanks
        if not n_blanks:
            return {}
        waiting = self.after(tight).id
        return {
            blank: self.store.tables.op(waiting, self.gap(after).id)
            for blank in BLANKS
            if (after := gap_after(0, blank, n_blanks)) is not None
        }


def gap_after(used: int, byte: int, n_blanks: int) -> int | None:
    """The gap behind one more blank: `used` counts those before the newline, from N_BEFORE + 1 on those after it."""
    if byte != 0x0A:
        most = min(N_BEFORE, n_blanks) if used <= N_BEFORE else N_BEFORE + 1 + n_blanks
        return used + 1 if used < most else None
    return N_BEFORE + 1 if used <= N_BEFORE and n_blanks else None
