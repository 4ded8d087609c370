"""KV memory of all cache groups, and the block tables that rows draw from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.blocks import EMPTY, BlockCounts, BlockPool


class BlockCopy(NamedTuple):
    """A block to be copied before the step runs (copy on write)."""

    group: int
    source: int
    target: int


class Memory:
    """Owner of the pools, one per cache group."""

    def __init__(self, groups: Sequence[CacheGroup], n_blocks: Sequence[int]) -> None:
        self.groups = tuple(groups)
        self.pools = [BlockPool(n) for n in n_blocks]
        self.reclaim: Callable[[int, int], int] = lambda _group, _n_blocks: 0
        """Gives up cached blocks of a group, so many; how many became free. Set by whoever keeps an index."""

    def take(self, group: int) -> int | None:
        """A block for writing; cached contents are given up if nothing is free."""
        block = self.pools[group].take()
        if block is None and self.reclaim(group, 1):
            block = self.pools[group].take()
        return block

    @property
    def has_state(self) -> bool:
        """Some layers keep a state that can't be rolled back."""
        return any(group.kind == "state" for group in self.groups)

    def settle_copies(self) -> None:
        for pool in self.pools:
            pool.settle_copies()

    def n_available(self, group: int) -> int:
        counts = self.pools[group].counts
        return counts.free + counts.cached

    def n_columns(self, group: int, n_positions: int) -> int:
        """Table columns that cover `n_positions`."""
        return 1 if self.groups[group].kind == "state" else -(-n_positions // BLOCK_TOKENS)

    def n_needed(self, group: int, n_positions: int) -> int:
        """Blocks that a row of that length holds at once."""
        columns = self.n_columns(group, n_positions)
        window = self.groups[group].window
        # A window row keeps the blocks of its window, the one it writes and one that it straddles.
        return min(columns, self.n_columns(group, window) + 2) if window else columns

    def can_copy(self, n_known: int, n_positions: int) -> bool:
        """A row of that length, alone in memory, has a block left to copy the last one of its known prefix into."""
        if not n_known % BLOCK_TOKENS:
            return True
        with_blocks = (group for group, description in enumerate(self.groups) if description.kind != "state")
        return all(self.n_needed(group, n_positions) < self.pools[group].n_blocks for group in with_blocks)

    def n_shared(self, group: int, blocks: Sequence[Sequence[int]]) -> int:
        """Of blocks by group, how many rows hold already: adopting them takes nothing away."""
        own = blocks[group] if blocks else ()
        return sum(block != EMPTY and self.pools[group].is_held(block) for block in own)

    def counts(self) -> list[BlockCounts]:
        return [pool.counts for pool in self.pools]

    def check(self, tables: Iterable[RowTables]) -> None:
        """free + held + cached = total, and the rows hold what the pools say. Raises AssertionError."""
        rows = list(tables)
        for group, pool in enumerate(self.pools):
            pool.check(block for row in rows for block in row.held(group))


class RowTables:
    """Owner of one row's block tables, one per cache group, and of what the backend has yet to hear of them.

    Unused columns are -1.
    """

    def __init__(self, memory: Memory, max_positions: int) -> None:
        self._memory = memory
        self._tables = [
            np.full(memory.n_columns(g, max_positions), EMPTY, dtype=np.int32) for g in range(len(memory.groups))
        ]
        self._n_columns = [0] * len(memory.groups)
        self._first_kept = [0] * len(memory.groups)
        self._changed: list[list[int]] = [[] for _ in memory.groups]
        """By group: columns that were written to since the last step."""

    def columns(self, group: int) -> NDArray[np.int32]:
        return self._tables[group][: self._n_columns[group]]

    def take_changes(self, group: int) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """Columns that changed since the last call and their blocks; None if none did."""
        changed = self._changed[group]
        if not changed:
            return None
        columns = np.array(changed, dtype=np.int32)
        self._changed[group] = []
        return columns, self._tables[group][columns]

    def tell_all(self) -> None:
        """The tables belong to another slot from now on, which knows nothing of them."""
        self._changed = [list(range(n)) for n in self._n_columns]

    def held(self, group: int) -> list[int]:
        columns = self.columns(group)
        return [int(b) for b in columns[columns != EMPTY]]

    def n_held(self, group: int) -> int:
        return int(np.count_nonzero(self.columns(group) != EMPTY))

    def reserve(self, start: int, stop: int) -> tuple[list[BlockCopy], bool]:
        """Make positions [start, stop) writable by this row alone.

        The copies that must happen before the next step, and False if memory ran out: what was taken so far
        stays, so a later call goes on from there; the copies are due all the same.
        """
        copies: list[BlockCopy] = []
        for group, description in enumerate(self._memory.groups):
            wanted = self._memory.n_columns(group, stop)
            first = 0 if description.kind == "state" else start // BLOCK_TOKENS
            for column in range(first, self._n_columns[group]):
                if not self._own(group, column, copies):
                    return copies, False
            while self._n_columns[group] < wanted:
                block = self._memory.take(group)
                if block is None:
                    return copies, False
                self._tables[group][self._n_columns[group]] = block
                self._changed[group].append(self._n_columns[group])
                self._n_columns[group] += 1
        return copies, True

    def fork(self) -> RowTables:
        """A second row over the same blocks; whoever writes first copies."""
        twin = RowTables(self._memory, 0)
        twin._tables = [table.copy() for table in self._tables]
        twin._n_columns = list(self._n_columns)
        twin._first_kept = list(self._first_kept)
        twin.tell_all()
        for group in range(len(self._tables)):
            for block in self.held(group):
                self._memory.pools[group].share(block)
        return twin

    def adopt(self, blocks_of: Sequence[Sequence[int]]) -> None:
        """Begin with the blocks of a known prefix, by group. Only for an empty table."""
        for group, blocks in enumerate(blocks_of):
            for column, block in enumerate(blocks):
                self._tables[group][column] = block
                if block != EMPTY:
                    self._memory.pools[group].share(block)
            self._n_columns[group] = len(blocks)
        self.tell_all()

    def fill(self, group: int, column: int, block: int) -> None:
        """A column of an adopted prefix that was missing. The row holds the block from now on, as counted already."""
        self._tables[group][column] = block
        self._changed[group].append(column)

    def hold_state(self, group: int, slot: int) -> None:
        """The row's slot of a state group, held already. Only for a table without one."""
        self._tables[group][0] = slot
        self._n_columns[group] = 1
        self._changed[group].append(0)

    def trim(self, n_computed: int) -> None:
        """Release blocks that no later position of a window group can see."""
        for group, description in enumerate(self._memory.groups):
            if not description.window:
                continue
            first = max(0, n_computed + 1 - description.window) // BLOCK_TOKENS
            for column in range(self._first_kept[group], min(first, self._n_columns[group])):
                block = int(self._tables[group][column])
                if block != EMPTY:
                    self._memory.pools[group].release(block)
                    self._tables[group][column] = EMPTY
                    self._changed[group].append(column)
            self._first_kept[group] = max(self._first_kept[group], first)

    def release(self) -> None:
        """Give everything back; idempotent."""
        for group in range(len(self._tables)):
            for block in self.held(group):
                self._memory.pools[group].release(block)
            self._tables[group][:] = EMPTY
            self._n_columns[group] = 0
            self._first_kept[group] = 0

    def _own(self, group: int, column: int, copies: list[BlockCopy]) -> bool:
        source = int(self._tables[group][column])
        pool = self._memory.pools[group]
        if source == EMPTY or not pool.is_shared(source):
            return True
        target = self._memory.take(group)
        if target is None:
            return False
        # The source may be free from here on, even be written by this very step: copies run before it.
        pool.release(source)
        self._tables[group][column] = target
        self._changed[group].append(column)
        pool.expect_copy(target)
        copies.append(BlockCopy(group, source, target))
        return True
