"""Bytes of a tensor type -> float32: the plain statement of what each type means (facts of ggml's block layouts)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from imp_server.core import UnsupportedModel
from imp_server.weights import dequantise_k, dequantise_tables
from imp_server.weights.blocks import Bytes, Floats, field, half, nibbles, signed
from imp_server.weights.ggml_types import GgmlType


def dequantise(kind: GgmlType, data: Bytes) -> Floats:
    """The elements, flat and in order. `data` holds whole blocks. Raises UnsupportedModel for a type not known here."""
    decode = _DECODERS.get(kind.name)
    if decode is None:
        known = ", ".join(_DECODERS)
        raise UnsupportedModel(f"tensor type {kind.name} isn't supported; quantise the model to one of {known}")
    return decode(np.ascontiguousarray(data).reshape(-1, kind.block_bytes)).reshape(-1)


def is_known(kind: GgmlType) -> bool:
    return kind.name in _DECODERS


def _f32(blocks: Bytes) -> Floats:
    return field(blocks, 0, 4, "<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return field(blocks, 0, 2, "<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (field(blocks, 0, 2, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    """f16 scale, 16 bytes; value = scale * (q - 8)."""
    return half(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8))


def _q4_1(blocks: Bytes) -> Floats:
    """f16 scale, f16 minimum, 16 bytes; value = scale * q + minimum."""
    return half(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + half(blocks, 2)


def _with_fifth_bits(blocks: Bytes, start: int) -> Floats:
    """4 bytes of fifth bits, one per element, then the nibbles."""
    high = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    return (nibbles(blocks[:, start + 4 :]) | (high << 4)).astype(np.float32)


def _q5_0(blocks: Bytes) -> Floats:
    """f16 scale, fifth bits, 16 bytes; value = scale * (q - 16)."""
    return half(blocks, 0) * (_with_fifth_bits(blocks, 2) - np.float32(16))


def _q5_1(blocks: Bytes) -> Floats:
    """f16 scale, f16 minimum, fifth bits, 16 bytes; value = scale * q + minimum."""
    return half(blocks, 0) * _with_fifth_bits(blocks, 4) + half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    """f16 scale, 32 signed bytes; value = scale * q."""
    return half(blocks, 0) * signed(blocks, 2, 34)


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": dequantise_k.q2_k,
    "Q3_K": dequantise_k.q3_k,
    "Q4_K": dequantise_k.q4_k,
    "Q5_K": dequantise_k.q5_k,
    "Q6_K": dequantise_k.q6_k,
    "IQ4_NL": dequantise_tables.iq4_nl,
    "IQ4_XS": dequantise_tables.iq4_xs,
    "MXFP4": dequantise_tables.mxfp4,
    "NVFP4": dequantise_tables.nvfp4,
}
