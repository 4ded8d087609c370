"""What the device keeps of each slot: block tables, the id sampled last, the text so far of rows that need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from imp_server.backends.base import Int32s, Step, StepRow, TableChanges
from imp_server.backends.cuda.buffers import power_of_two
from imp_server.backends.cuda.device import Device
from imp_server.backends.cuda.operations import SlotState
from imp_server.backends.sampled_rows import n_history
from imp_server.decode.state import SamplerState

Tensor = torch.Tensor

_FIRST_SLOTS, _FIRST_COLUMNS, _FIRST_HISTORY = 16, 64, 256


@dataclass(slots=True)
class _Sent:
    """Of a row's text, what the device has: the first `n` ids, as `sampler` had them after losing `n_gone`."""

    sampler: SamplerState
    n: int
    n_gone: int
    n_prompt: int


class DeviceSlots:
    """Owner of the tables. They grow by doubling, which moves them: graphs that read them are forgotten."""

    def __init__(self, device: Device, n_groups: int) -> None:
        self._device, self._n_groups = device, n_groups
        self._n_slots, self._n_columns, self._n_history = _FIRST_SLOTS, _FIRST_COLUMNS, _FIRST_HISTORY
        self._sent: dict[int, _Sent] = {}
        self.tables: list[Tensor] = []
        self._make()

    @property
    def scratch(self) -> int:
        return self._n_slots

    def make_room(self, step: Step, columns: int) -> None:
        """For the slots of the step, tables of so many columns, and the texts of rows that need theirs."""
        n_slots = 1 + max(row.slot for row in step.rows)
        texts = [row.sampler.capacity for row in step.rows if row.sampler is not None and needs_history(row)]
        wanted = (
            max(self._n_slots, power_of_two(n_slots)),
            max([self._n_columns, power_of_two(columns), *(self._last_column(c) for c in step.table_changes)]),
            max([self._n_history, *(power_of_two(n) for n in texts)]),
        )
        if wanted == (self._n_slots, self._n_columns, self._n_history):
            return
        old_tables, old = self.tables, self.state
        n_kept = self._n_slots
        self._n_slots, self._n_columns, self._n_history = wanted
        self._make()
        for table, before in zip(self.tables, old_tables, strict=True):
            table[:n_kept, : before.shape[1]] = before[:n_kept]
        self.state.last[:n_kept] = old.last[:n_kept]
        self.state.histories[:n_kept, : old.histories.shape[1]] = old.histories[:n_kept]
        self._device.forget_graphs()

    def change_tables(self, changes: Sequence[TableChanges]) -> None:
        for table, (slots, columns, blocks) in zip(self.tables, changes, strict=True):
            if len(slots):
                self._put(table, slots, columns, blocks)

    def send_histories(self, rows: Sequence[StepRow]) -> None:
        """Of rows under penalties, the ids that their samplers have got since the step before."""
        slots, columns, ids = [], [], []
        for row in rows:
            if row.sampler is None or not needs_history(row):
                continue
            known = n_known(row)
            first = self._first_unsent(row.slot, row.sampler, known)
            text = row.sampler.history[first:known]
            slots.append(np.full(len(text), row.slot, dtype=np.int32))
            columns.append(np.arange(first, known, dtype=np.int32))
            ids.append(text)
        if ids and sum(map(len, ids)):
            self._put(self.state.histories, np.concatenate(slots), np.concatenate(columns), np.concatenate(ids))

    def _first_unsent(self, slot: int, sampler: SamplerState, known: int) -> int:
        sent = self._sent.get(slot)
        if (
            sent is None
            or sent.sampler is not sampler
            or (sent.n_gone, sent.n_prompt) != (sampler.n_gone, sampler.n_prompt)
        ):
            first = 0
        else:
            first = min(sent.n, known)
        self._sent[slot] = _Sent(sampler, known, sampler.n_gone, sampler.n_prompt)
        return first

    def _put(self, table: Tensor, rows: Int32s, columns: Int32s, values: Int32s) -> None:
        """Padded to a power of two with what goes to the scratch slot."""
        n = power_of_two(len(rows))
        packed = np.zeros((3, n), dtype=np.int32)
        packed[0, len(rows) :] = self.scratch
        for line, own in zip(packed, (rows, columns, values), strict=True):
            line[: len(rows)] = own
        sent = torch.empty((3, n), dtype=torch.int32, device=self._device.torch_device)
        self._device.upload(sent, packed)
        table[sent[0].long(), sent[1].long()] = sent[2]

    def _make(self) -> None:
        def filled(value: int, *shape: int) -> Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=self._device.torch_device)

        self.tables = [filled(-1, self._n_slots + 1, self._n_columns) for _ in range(self._n_groups)]
        self.state = SlotState(filled(-1, self._n_slots + 1), filled(0, self._n_slots + 1, self._n_history))

    @staticmethod
    def _last_column(changes: TableChanges) -> int:
        return power_of_two(int(changes.columns.max()) + 1) if len(changes.columns) else 0


def needs_history(row: StepRow) -> bool:
    """Sampling looks at the row's text so far: it has a penalty."""
    if row.sampler is None:
        return False
    p = row.sampler.params
    return bool(p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0)


def n_known(row: StepRow) -> int:
    """How many ids of the row's text its sampler has; behind them comes at most the one of the step under way."""
    return n_history(row) - int(row.is_ahead)
