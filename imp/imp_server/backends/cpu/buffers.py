"""Arrays that steps point to, kept from step to step: numpy takes a microsecond to make one or to tell an address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu import abi


class Buffer:
    """Owner of one array of one type that grows and never shrinks. `address` is that of its first element."""

    __slots__ = ("address", "array")

    def __init__(self, dtype: npt.DTypeLike, n: int = 64) -> None:
        self._make(np.dtype(dtype), n)

    def hold(self, values: Sequence[int] | npt.NDArray[Any]) -> int:
        """Copy 1-dimensional values to the front; the address."""
        n = len(values)
        if n > len(self.array):
            self._make(self.array.dtype, 2 * n)
        self.array[:n] = values
        return self.address

    def at_least(self, n: int) -> int:
        """Room for n elements, undefined after growth; the address."""
        if n > len(self.array):
            self._make(self.array.dtype, 2 * n)
        return self.address

    def _make(self, dtype: np.dtype[Any], n: int) -> None:
        self.array: npt.NDArray[Any] = np.zeros(n, dtype=dtype)
        self.address: int = int(self.array.ctypes.data)


class StepBuffers:
    """The buffers of a step, both ways."""

    def __init__(self, n_groups: int) -> None:
        self.ids, self.positions, self.row_starts = Buffer(np.int32), Buffer(np.int32), Buffer(np.int32)
        self.slots, self.best_heads, self.embedded_tokens = Buffer(np.int32), Buffer(np.int32), Buffer(np.int32)
        self.changes = [(Buffer(np.int32), Buffer(np.int32), Buffer(np.int32)) for _ in range(n_groups)]
        """Slots, columns and blocks."""
        self.rope_tables, self.rope_positions = Buffer(np.uint64, 1), Buffer(np.int32, 1)
        self.head_tokens, self.best = Buffer(np.int32), Buffer(np.int32)
        self.logit_pointers = Buffer(np.uint64)
        self.hidden_tokens = Buffer(np.int32)


class StepRoom:
    """Owner of all that a step is made of, from its launch until it is collected; then it is the next one's."""

    def __init__(self, n_groups: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.buffers = StepBuffers(n_groups)
        self.plan = abi.StepPlan()
        self.changes = (abi.TableChanges * max(1, n_groups))()
        self.plan.table_changes = self.changes
        self.embeddings = np.empty((0, 0), dtype=np.float32)
        self.adapters: tuple[object, ...] = ()
        self._logits = np.empty((0, vocab_size), dtype=np.float32)

    def logits_of(self, n: int) -> npt.NDArray[np.float32]:
        """[at least n, vocab], reused from step to step and given back after a much wider one."""
        if n > len(self._logits) or len(self._logits) > 4 * max(n, 16):
            self._logits = np.empty((n, self.vocab_size), dtype=np.float32)
        return self._logits
