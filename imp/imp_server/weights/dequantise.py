"""Bytes of a tensor type -> float32: the plain statement of what each type means (facts of ggml's block layouts)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from imp_server.core import UnsupportedModel
from imp_server.weights.ggml_types import GgmlType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def dequantise(kind: GgmlType, data: Bytes) -> Floats:
    """The elements, flat and in order. `data` holds whole blocks. Raises UnsupportedModel for a type not known here."""
    decode = _DECODERS.get(kind.name)
    if decode is None:
        known = ", ".join(_DECODERS)
        raise UnsupportedModel(f"tensor type {kind.name} isn't supported; quantise the model to one of {known}")
    return decode(np.ascontiguousarray(data).reshape(-1, kind.block_bytes)).reshape(-1)


def is_known(kind: GgmlType) -> bool:
    return kind.name in _DECODERS


def _field(blocks: Bytes, start: int, stop: int, dtype: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(blocks[:, start:stop]).view(dtype)


def _f32(blocks: Bytes) -> Floats:
    return _field(blocks, 0, 4, "<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return _field(blocks, 0, 2, "<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (_field(blocks, 0, 2, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _nibbles(packed: Bytes) -> Floats:
    """16 bytes hold 32 values: the low halves first, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    """f16 scale, 16 bytes; value = scale * (q - 8)."""
    scale = _field(blocks, 0, 2, "<f2").astype(np.float32)
    return scale * (_nibbles(blocks[:, 2:]) - np.float32(8))


def _q4_1(blocks: Bytes) -> Floats:
    """f16 scale, f16 minimum, 16 bytes; value = scale * q + minimum."""
    scale = _field(blocks, 0, 2, "<f2").astype(np.float32)
    minimum = _field(blocks, 2, 4, "<f2").astype(np.float32)
    return scale * _nibbles(blocks[:, 4:]) + minimum


def _q8_0(blocks: Bytes) -> Floats:
    """f16 scale, 32 signed bytes; value = scale * q."""
    scale = _field(blocks, 0, 2, "<f2").astype(np.float32)
    return scale * _field(blocks, 2, 34, "i1").astype(np.float32)


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}
