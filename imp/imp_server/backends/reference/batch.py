"""A step's arrays as tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from imp_server.backends.base import BLOCK_TOKENS, AdapterShare, Int32s
from imp_server.backends.host_queue import PlainStep
from imp_server.backends.reference.pools import KeptParts, Pools
from imp_server.backends.reference.tiles import padded


class Span(NamedTuple):
    """A row's ids: flat begin and end, and the position of the first."""

    begin: int
    end: int
    start: int


class Batch:
    """Padded with copies of its last id to a multiple of 16."""

    def __init__(self, step: PlainStep) -> None:
        self.n = len(step.ids)
        self.n_rows = len(step.rows)
        self._step = step
        self.embeddings = step.embeddings
        self.adapters = [row.adapters for row in step.rows]
        n_more = padded(self.n) - self.n
        self.ids = torch.from_numpy(np.pad(step.ids.astype(np.int64), (0, n_more), mode="edge"))
        self.positions = torch.from_numpy(np.pad(step.positions.astype(np.int64), (0, n_more), mode="edge"))
        self._slots: dict[int, torch.Tensor] = {}

    def spans(self) -> list[Span]:
        starts = self._step.row_starts.tolist()
        return [Span(a, b, int(self._step.positions[a])) for a, b in pairwise(starts)]

    def rows_with(self, adapters: tuple[AdapterShare, ...]) -> torch.Tensor:
        """[n padded]: true for the ids of rows with just these adapters."""
        has = np.repeat([own == adapters for own in self.adapters], np.diff(self._step.row_starts))
        return torch.from_numpy(np.pad(has, (0, len(self.ids) - self.n)))

    def table(self, group: int, row: int) -> Int32s:
        table: Int32s = self._step.block_tables[group][row]
        return table

    def slots(self, group: int) -> torch.Tensor:
        """Where each id of the step is written in the group's pools."""
        if group not in self._slots:
            step = self._step
            rows = np.repeat(np.arange(self.n_rows), np.diff(step.row_starts))
            blocks = step.block_tables[group][rows, step.positions // BLOCK_TOKENS].astype(np.int64)
            if (blocks < 0).any():
                raise ValueError("the step writes a position that its block table doesn't cover")
            self._slots[group] = torch.from_numpy(blocks * BLOCK_TOKENS + step.positions % BLOCK_TOKENS)
        return self._slots[group]


class LayerCache:
    """One layer's share of the pools, for one step; nothing is kept where there are none."""

    def __init__(self, pools: Pools | None, layer: int, group: int, batch: Batch) -> None:
        self._pools, self._layer, self._group, self._batch = pools, layer, group, batch
        self._new: dict[str, torch.Tensor] = {}

    def write(self, **parts: torch.Tensor) -> None:
        """Each part [at least n, heads, size] of the step's ids."""
        self._new = parts
        if self._pools is not None:
            slots = self._batch.slots(self._group)
            for name, pool in self._pools.of_layer(self._layer).items():
                pool[slots] = parts[name][: self._batch.n]

    def read(self, row: int, span: Span, window: int = 0, layer: int = -1) -> KeptParts:
        """What the row has up to the end of its ids, of positions that a window of this size sees. `layer`: another one
        of its group.
        """
        if self._pools is None:
            return KeptParts({name: part[span.begin : span.end] for name, part in self._new.items()}, 0)
        first = max(0, span.start - window + 1) if window else 0
        table = self._batch.table(self._group, row)
        return self._pools.read(layer if layer >= 0 else self._layer, table, first, span.start + span.end - span.begin)
