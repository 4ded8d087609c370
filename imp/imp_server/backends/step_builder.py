"""Makes the flat arrays of a Step: the one place that does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from imp_server.backends.base import Embeddings, Int32s, Step, StepRow, TableChanges, UInt32s

_NONE = np.empty(0, dtype=np.int32)
_NO_CHANGES = TableChanges(_NONE, _NONE, _NONE)


class StepBuilder:
    """Owner of the step under construction."""

    def __init__(self, n_groups: int) -> None:
        self.rows: list[StepRow] = []
        self._parts: list[Int32s] = []
        self._firsts: list[int] = []
        self._changes: list[list[tuple[int, Int32s, Int32s]]] = [[] for _ in range(n_groups)]
        """By group: slot, columns, blocks."""

    def add(self, row: StepRow, ids: Int32s, first: int) -> None:
        """A row's ids from position `first` on, its drafts at the end."""
        self.rows.append(row)
        self._parts.append(ids)
        self._firsts.append(first)

    def change_table(self, group: int, slot: int, columns: Int32s, blocks: Int32s) -> None:
        """What is new in the slot's table."""
        self._changes[group].append((slot, columns, blocks))

    def add_alone(self, row: StepRow, ids: Int32s, first: int, tables: Sequence[Int32s]) -> None:
        """A row that nobody keeps a slot for: it gets its number in the step, and `tables` of all groups are whole."""
        row.slot = len(self.rows)
        for group, table in enumerate(tables):
            self.change_table(group, row.slot, np.arange(len(table), dtype=np.int32), table)
        self.add(row, ids, first)

    def finish(
        self,
        masks: UInt32s | None = None,
        mask_flags: UInt32s | None = None,
        embeddings: Embeddings | None = None,
    ) -> Step:
        starts = np.zeros(len(self.rows) + 1, dtype=np.int32)
        starts[1:] = [len(part) for part in self._parts]
        np.cumsum(starts, out=starts)
        ids, positions = np.empty(starts[-1], dtype=np.int32), np.empty(starts[-1], dtype=np.int32)
        at = 0
        for part, first in zip(self._parts, self._firsts, strict=True):
            n = len(part)
            ids[at : at + n] = part
            positions[at : at + n] = first if n == 1 else np.arange(first, first + n, dtype=np.int32)
            at += n
        changes = tuple(_joined(of_group) for of_group in self._changes)
        return Step(ids, positions, starts, self.rows, changes, masks, mask_flags, embeddings)


def _joined(changes: Sequence[tuple[int, Int32s, Int32s]]) -> TableChanges:
    if not changes:
        return _NO_CHANGES
    slots = np.repeat(
        np.array([slot for slot, _, _ in changes], dtype=np.int32), [len(columns) for _, columns, _ in changes]
    )
    columns = np.concatenate([columns for _, columns, _ in changes]).astype(np.int32, copy=False)
    blocks = np.concatenate([blocks for _, _, blocks in changes]).astype(np.int32, copy=False)
    return TableChanges(slots, columns, blocks)
