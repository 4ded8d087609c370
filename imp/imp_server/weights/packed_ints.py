"""Integers of 2, 4 or 8 bits packed into int32: GPTQ, AWQ and compressed-tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from imp_server.weights.blocks import Floats

Ints = npt.NDArray[Any]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of an AWQ word holds column AWQ_ORDER[i] of its eight."""


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


def gptq(qweight: Ints, qzeros: Ints, scales: Floats, group_of: Ints, bits: int, *, zero_offset: int) -> Floats:
    """[out, in]. `qweight` [in * bits / 32, out], `qzeros` [groups, out * bits / 32], `scales` [groups, out].

    `group_of` [in]. `zero_offset` is 1 for the first checkpoint format, which stores zero points less one.
    """
    values = unpack(qweight, bits, 0)
    zeros = unpack(qzeros, bits, 1) + zero_offset
    weight = (values - zeros[group_of]).astype(np.float32) * scales[group_of]
    return np.ascontiguousarray(weight.T)


def awq(qweight: Ints, qzeros: Ints, scales: Floats, group_size: int) -> Floats:
    """[out, in]. `qweight` [in, out / 8], `qzeros` [groups, out / 8], `scales` [groups, out]."""
    values = unpack(qweight, 4, 1, AWQ_ORDER)
    zeros = unpack(qzeros, 4, 1, AWQ_ORDER)
    group_of = np.arange(len(values)) // group_size
    weight = (values - zeros[group_of]).astype(np.float32) * scales[group_of]
    return np.ascontiguousarray(weight.T)


def compressed(
    packed: Ints, scales: Floats, zeros: Ints | None, group_of: Ints | None, bits: int, columns: int
) -> Floats:
    """[out, in]. `packed` [out, in * bits / 32] holds q + 2^(bits-1); `scales` and `zeros` [out, groups]."""
    half = 1 << (bits - 1)
    values = (unpack(packed, bits, 1)[:, :columns] - half).astype(np.float32)
    n_groups = scales.shape[1]
    if group_of is None:
        group_of = np.arange(columns) // max(1, -(-columns // n_groups))
    if zeros is not None:
        values -= zeros.astype(np.float32)[:, group_of]
    return values * scales[:, group_of]
