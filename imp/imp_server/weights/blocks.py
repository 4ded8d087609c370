"""Fields of quantised blocks, [n_blocks, bytes per block], as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def field(blocks: Bytes, start: int, stop: int, dtype: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(blocks[:, start:stop]).view(dtype)


def half(blocks: Bytes, start: int) -> Floats:
    """An f16 as [n_blocks, 1]."""
    return field(blocks, start, start + 2, "<f2").astype(np.float32)


def signed(blocks: Bytes, start: int, stop: int) -> Floats:
    return field(blocks, start, stop, "i1").astype(np.float32)


def bits_of(packed: Bytes, width: int) -> Bytes:
    """[n, m, k] bytes of 8/width values each -> [n, m, 8/width, k]: first the lowest bits of all k bytes."""
    shifts = np.arange(0, 8, width, dtype=np.uint8).reshape(1, 1, -1, 1)
    return (packed[:, :, None, :] >> shifts) & np.uint8((1 << width) - 1)


def nibbles(packed: Bytes) -> Bytes:
    """[n, k] bytes -> [n, 2k] values: the low halves of all bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)
