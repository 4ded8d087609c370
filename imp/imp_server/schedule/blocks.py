"""KV blocks of one cache group: which are free, held by rows, or kept for their contents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

EMPTY = -1
"""In the place of a block: there is none."""


class BlockCounts(NamedTuple):
    free: int
    held: int
    cached: int


class BlockPool:
    """Owner of the blocks of one cache group.

    A block is *held* while rows reference it, *cached* when no row does but an index keeps its contents,
    else *free*: free + held + cached = total, always.
    """

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._refs = np.zeros(n_blocks, dtype=np.int32)
        self._kept = np.zeros(n_blocks, dtype=np.bool_)
        self._free = list(range(n_blocks - 1, -1, -1))
        self._n_cached = 0
        self._unsettled: set[int] = set()

    @property
    def counts(self) -> BlockCounts:
        n_free = len(self._free)
        return BlockCounts(n_free, self.n_blocks - n_free - self._n_cached, self._n_cached)

    def take(self) -> int | None:
        """A free block, now held once; None if there is none."""
        if not self._free:
            return None
        block = self._free.pop()
        self._refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more row holds the block (a held or a cached one)."""
        if self._refs[block] == 0:
            if not self._kept[block]:
                raise RuntimeError(f"block {block} is free and can't be shared")
            self._n_cached -= 1
        self._refs[block] += 1

    def release(self, block: int) -> None:
        """One row fewer holds the block."""
        if self._refs[block] <= 0:
            raise RuntimeError(f"block {block} is released once too often")
        self._refs[block] -= 1
        if self._refs[block] == 0:
            if self._kept[block]:
                self._n_cached += 1
            else:
                self._free.append(block)

    def keep(self, block: int) -> None:
        """An index wants the contents to survive their rows. The block must be held."""
        if self._refs[block] == 0:
            raise RuntimeError(f"block {block} isn't held: its contents are nobody's")
        self._kept[block] = True

    def drop(self, block: int) -> None:
        """The index no longer keeps the block."""
        if self._kept[block]:
            self._kept[block] = False
            if self._refs[block] == 0:
                self._n_cached -= 1
                self._free.append(block)

    def is_kept(self, block: int) -> bool:
        """An index wants its contents."""
        return bool(self._kept[block])

    def expect_copy(self, block: int) -> None:
        """The next step will fill the block before it runs; until then its contents are nobody's."""
        self._unsettled.add(block)

    def is_unsettled(self, block: int) -> bool:
        """A copy into the block is planned and has not run."""
        return block in self._unsettled

    def settle_copies(self) -> None:
        """All planned copies have run, or their rows are gone."""
        self._unsettled.clear()

    @property
    def kept(self) -> set[int]:
        """Blocks whose contents an index wants."""
        return set(np.flatnonzero(self._kept).tolist())

    def is_held(self, block: int) -> bool:
        """Some row references the block."""
        return bool(self._refs[block] > 0)

    def is_shared(self, block: int) -> bool:
        """Writing into the block would change what others see."""
        return bool(self._refs[block] > 1 or self._kept[block])

    def idle_fault(self) -> str:
        """What is wrong when no row lives; "" = nothing."""
        counts = self.counts
        n_kept = int(np.count_nonzero(self._kept))
        if self._refs.any():
            return f"{np.count_nonzero(self._refs)} blocks are held by nobody"
        if counts.free + n_kept != self.n_blocks or counts.cached != n_kept:
            return f"{counts.free} free and {n_kept} cached blocks aren't the {self.n_blocks} there are"
        return ""

    def check(self, held: Iterable[int]) -> None:
        """Compare with the blocks that rows say they hold (with repetitions). Raises AssertionError."""
        refs = np.bincount(np.fromiter(held, dtype=np.int64), minlength=self.n_blocks)
        assert (refs == self._refs).all(), "reference counts differ from the rows' tables"
        free = np.zeros(self.n_blocks, dtype=np.bool_)
        free[self._free] = True
        assert len(self._free) == int(free.sum()), "a block is free twice"
        assert (free == ((self._refs == 0) & ~self._kept)).all(), "a free block is in use, or an unused one lost"
        counts = self.counts
        assert sum(counts) == self.n_blocks and counts.cached == int((self._kept & (self._refs == 0)).sum())
