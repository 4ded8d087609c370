"""For backends whose forward is a function on the host: slots, and steps that wait for whoever collects them.

Nothing runs before it is collected, so launching costs nothing and a step finds whatever the host has done meanwhile:
the contract in its plainest form, under both loops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from imp_server.backends.base import (
    LAST_SAMPLED,
    WANT_NOTHING,
    WANT_SAMPLE,
    Embeddings,
    Int32s,
    RowResult,
    Step,
    StepResult,
    StepRow,
    UInt32s,
)

_NO_BLOCK = -1


@dataclass(slots=True)
class PlainStep:
    """A step for which nothing need be remembered: every id is known, samplers have all of their ids, tables are whole.

    `block_tables[g][r, i]` is the block of group g that holds positions [16 i, 16 i + 16) of row r, or -1.
    """

    ids: Int32s
    positions: Int32s
    row_starts: Int32s
    rows: list[StepRow]
    block_tables: tuple[Int32s, ...]
    masks: UInt32s | None = None
    mask_flags: UInt32s | None = None
    embeddings: Embeddings | None = None


class Slots:
    """Owner of what is known of each slot: block tables and the id sampled last."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, int], Int32s] = {}
        """By group and slot."""
        self._sampled: dict[int, int] = {}

    def plain(self, step: Step) -> PlainStep:
        """Once the steps before have been noted. Rows that wait for an id that there isn't want nothing."""
        self._change_tables(step)
        ids, rows = step.ids, []
        ahead = np.flatnonzero(ids == LAST_SAMPLED).tolist()
        if ahead:
            ids = ids.copy()
        for index, row in enumerate(step.rows):
            own = [at for at in ahead if step.row_starts[index] <= at < step.row_starts[index + 1]]
            sampled = self._sampled.get(row.slot, -1) if own else -1
            ids[own] = max(0, sampled)
            rows.append(replace(row, wants=WANT_NOTHING) if own and sampled < 0 else _known(row, sampled))
        tables = tuple(self._padded(group, step.rows) for group in range(len(step.table_changes)))
        return PlainStep(
            ids, step.positions, step.row_starts, rows, tables, step.masks, step.mask_flags, step.embeddings
        )

    def note(self, rows: Sequence[StepRow], results: Sequence[RowResult]) -> None:
        """The step has run. `rows`: as it asked for them."""
        for row, result in zip(rows, results, strict=True):
            if row.wants & WANT_SAMPLE:
                self._sampled[row.slot] = int(result.tokens[-1]) if len(result.tokens) else -1

    def forget(self) -> None:
        self._tables.clear()
        self._sampled.clear()

    def _change_tables(self, step: Step) -> None:
        for group, (slots, columns, blocks) in enumerate(step.table_changes):
            for slot in dict.fromkeys(slots.tolist()):
                own = slots == slot
                table = self._tables.get((group, slot), np.empty(0, dtype=np.int32))
                n_more = int(columns[own].max()) + 1 - len(table)
                if n_more > 0:
                    table = np.concatenate([table, np.full(n_more, _NO_BLOCK, dtype=np.int32)])
                table[columns[own]] = blocks[own]
                self._tables[group, slot] = table

    def _padded(self, group: int, rows: Sequence[StepRow]) -> Int32s:
        """As wide as the widest."""
        none = np.empty(0, dtype=np.int32)
        tables = [self._tables.get((group, row.slot), none) for row in rows]
        out = np.full((len(rows), max(len(table) for table in tables)), _NO_BLOCK, dtype=np.int32)
        for index, own in enumerate(tables):
            out[index, : len(own)] = own
        return out


def _known(row: StepRow, sampled: int) -> StepRow:
    """The row with a sampler that has the ids in front of the one to be sampled, and no more."""
    state = row.sampler
    if state is None or (not row.is_ahead and row.n_history in (-1, state.length)):
        return row
    then = [sampled] if row.is_ahead else []
    return replace(row, sampler=state.as_of(row.n_history - len(then), then), n_history=-1, is_ahead=False)


class HostQueue:
    """Owner of the slots, and of the steps and block moves that have yet to run, in order."""

    def __init__(self, forward: Callable[[PlainStep], list[RowResult]]) -> None:
        self.slots = Slots()
        self._forward = forward
        self._waiting: deque[Callable[[], None]] = deque()

    def launch(self, step: Step) -> HostPending:
        # The length counts that the history has now, not the one that it will have when the step runs.
        rows = [_counted(row) for row in step.rows]
        pending = HostPending(self, replace(step, rows=rows))
        self._waiting.append(pending.run)
        return pending

    def move(self, action: Callable[[], None]) -> None:
        """Do something with blocks, behind the steps that wait."""
        if self._waiting:
            self._waiting.append(action)
        else:
            action()

    def finish(self) -> None:
        """Run all that waits."""
        while self._waiting:
            self._waiting.popleft()()

    def forget(self) -> None:
        """New pools. Raises RuntimeError while steps wait."""
        if self._waiting:
            raise RuntimeError("pools can't change while steps are under way")
        self.slots.forget()

    def run_until(self, pending: HostPending) -> None:
        while not pending.is_done:
            self._waiting.popleft()()

    def results(self, step: Step) -> StepResult:
        plain = self.slots.plain(step)
        results = self._forward(plain)
        self.slots.note(step.rows, results)
        return StepResult(results)


class HostPending:
    """Implements backends/base.py `Pending`."""

    def __init__(self, queue: HostQueue, step: Step) -> None:
        self._queue, self._step = queue, step
        self._result: StepResult | None = None
        self._error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self._result is not None or self._error is not None

    def run(self) -> None:
        try:
            self._result = self._queue.results(self._step)
        except Exception as error:
            self._error = error

    def collect(self) -> StepResult:
        self._queue.run_until(self)
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


def _counted(row: StepRow) -> StepRow:
    if row.sampler is None or row.n_history >= 0:
        return row
    return replace(row, n_history=row.sampler.length)
