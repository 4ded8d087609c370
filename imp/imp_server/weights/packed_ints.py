"""Integers of 2, 4 or 8 bits packed into int32: GPTQ, AWQ and compressed-tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from imp_server.weights.blocks import Floats

Ints = npt.NDArray[Any]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of an AWQ word holds column AWQ_ORDER[i] of its eight."""


class Grouped(NamedTuple):
    """A weight [out, in] as signed integers, zero points taken off: value = scales[row, group_of[column]] * integer.

    `values` [out, in]; `scales` [out, groups]; `group_of` [in]; `bits`: the width the integers were stored in.
    """

    values: Ints
    scales: Floats
    group_of: Ints
    bits: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def floats(self) -> Floats:
        return np.ascontiguousarray(self.values.astype(np.float32) * self.scales[:, self.group_of])


def unpack(words: Ints, bits: int, axis: int, order: tuple[int, ...] | None = None) -> npt.NDArray[np.int32]:
    """int32 words -> 32/bits as many values along `axis`, lowest bits first (or at the places of `order`)."""
    n = 32 // bits
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    if order is not None:
        inverse = np.argsort(np.array(order))
        shifts = shifts[inverse]
    words = np.moveaxis(words.view(np.uint32) if words.dtype == np.int32 else words.astype(np.uint32), axis, -1)
    values = (words[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    flat = values.reshape(*words.shape[:-1], words.shape[-1] * n)
    return np.moveaxis(flat, -1, axis).astype(np.int32)


def gptq(qweight: Ints, qzeros: Ints, scales: Floats, group_of: Ints, bits: int, *, zero_offset: int) -> Grouped:
    """`qweight` [in * bits / 32, out], `qzeros` [groups, out * bits / 32], `scales` [groups, out].

    `group_of` [in]. `zero_offset` is 1 for the first checkpoint format, which stores zero points less one.
    """
    values = unpack(qweight, bits, 0)
    zeros = unpack(qzeros, bits, 1) + zero_offset
    return _fitting(Grouped((values - zeros[group_of]).T, scales.T, group_of, bits))


def awq(qweight: Ints, qzeros: Ints, scales: Floats, group_size: int) -> Grouped:
    """`qweight` [in, out / 8], `qzeros` [groups, out / 8], `scales` [groups, out]."""
    values = unpack(qweight, 4, 1, AWQ_ORDER)
    zeros = unpack(qzeros, 4, 1, AWQ_ORDER)
    group_of = np.arange(len(values)) // group_size
    return _fitting(Grouped((values - zeros[group_of]).T, scales.T, group_of, 4))


def compressed(
    packed: Ints, scales: Floats, zeros: Ints | None, group_of: Ints | None, bits: int, columns: int
) -> Grouped:
    """`packed` [out, in * bits / 32] holds q + 2^(bits-1); `scales` and `zeros` [out, groups]."""
    values = unpack(packed, bits, 1)[:, :columns] - (1 << (bits - 1))
    n_groups = max(1, scales.shape[1])
    if group_of is None:
        group_of = np.arange(columns) // max(1, -(-columns // n_groups))
    if zeros is not None:
        values -= zeros.astype(np.int32)[:, group_of]
    return _fitting(Grouped(values, scales, group_of, bits))


def int8_rows(values: Ints, scales: Floats) -> Grouped | None:
    """`values` [out, in] int8; `scales` one number, [out], [out, 1] or [out, groups]; None for scales in a grid."""
    rows, columns = values.shape
    if scales.size == 1:
        scales = np.broadcast_to(scales.reshape(1, 1), (rows, 1))
    elif scales.ndim == 1:
        scales = scales[:, None]
    if scales.ndim != 2 or len(scales) != rows:
        return None
    n_groups = max(1, scales.shape[1])
    width = max(1, -(-columns // n_groups))
    if -(-columns // width) != scales.shape[1]:
        return None
    return Grouped(values, scales, np.arange(columns) // width, 8)


def _fitting(grouped: Grouped) -> Grouped:
    """Raises ValueError for scales or groups that don't cover the integers."""
    rows, columns = grouped.values.shape
    n_rows, n_groups = grouped.scales.shape
    if n_rows != rows or len(grouped.group_of) != columns:
        raise ValueError(f"scales for {n_rows} rows, groups for {len(grouped.group_of)} columns: {rows} x {columns}")
    if columns and not 0 <= int(grouped.group_of.min()) <= int(grouped.group_of.max()) < n_groups:
        raise ValueError(f"a column is in a group beyond the {n_groups} that have scales")
    return grouped
