"""Arrays that steps point to, kept from step to step: numpy takes a microsecond to make one or to tell an address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


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
    """The buffers of one model's steps, both ways."""

    def __init__(self, n_groups: int) -> None:
        self.ids, self.positions, self.row_starts = Buffer(np.int32), Buffer(np.int32), Buffer(np.int32)
        self.tables = [Buffer(np.int32) for _ in range(n_groups)]
        self.table_pointers, self.table_widths = Buffer(np.uint64, n_groups), Buffer(np.int32, n_groups)
        self.head_tokens, self.best = Buffer(np.int32), Buffer(np.int32)
        self.logit_pointers = Buffer(np.uint64)
        self.hidden_tokens = Buffer(np.int32)
