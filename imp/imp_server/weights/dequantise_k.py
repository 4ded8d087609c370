"""The K types: blocks of 256 with small scales of 16 or 32 elements, themselves scaled by one f16."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from imp_server.weights.blocks import Bytes, Floats, bits_of, half, signed


def scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """12 bytes -> eight 6-bit scales and eight 6-bit minima (Q4_K, Q5_K).

    Bytes 0-3 hold the low six bits' owners d0-d3, bytes 4-7 m0-m3; their top two bits are the top bits of
    d4-d7 and m4-m7, whose low nibbles share bytes 8-11.
    """
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    return scales, minima


def q2_k(blocks: Bytes) -> Floats:
    """16 bytes of (scale, minimum) nibbles per 16 elements, 64 bytes of 2-bit values, f16 scale, f16 minimum."""
    scale, minimum = half(blocks, 80), half(blocks, 82)
    per_group = scale * (blocks[:, :16] & 15).astype(np.float32)
    offset = minimum * (blocks[:, :16] >> 4).astype(np.float32)
    values = bits_of(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16).astype(np.float32)
    return (per_group[:, :, None] * values - offset[:, :, None]).reshape(len(blocks), 256)


def q3_k(blocks: Bytes) -> Floats:
    """32 bytes of inverted high bits, 64 bytes of low two bits, 12 bytes of 6-bit scales, f16 scale."""
    packed = blocks[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = bits_of(packed[:, None, 8:], 2).reshape(-1, 16)
    scales = (low | (high << 4)).astype(np.float32) - np.float32(32)
    per_group = half(blocks, 108) * scales
    values = bits_of(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 16, 16).astype(np.float32)
    missing = 1 - bits_of(blocks[:, None, :32], 1).reshape(-1, 16, 16).astype(np.float32)
    weights: Floats = per_group[:, :, None] * (values - 4 * missing)
    return weights.reshape(len(blocks), 256)


def q4_k(blocks: Bytes) -> Floats:
    """f16 scale, f16 minimum, 12 bytes of scales and minima per 32 elements, 128 bytes of 4-bit values."""
    values = bits_of(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _with_minima(blocks, values.astype(np.float32))


def q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with 32 bytes of fifth bits before the values."""
    low = bits_of(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    high = bits_of(blocks[:, None, 16:48], 1).reshape(-1, 8, 32)
    return _with_minima(blocks, (low | (high << 4)).astype(np.float32))


def q6_k(blocks: Bytes) -> Floats:
    """128 bytes of low nibbles, 64 bytes of high two bits, sixteen int8 scales per 16 elements, f16 scale."""
    low = bits_of(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 8, 32)
    high = bits_of(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    values = (low | (high << 4)).astype(np.float32) - np.float32(32)
    per_group = half(blocks, 208) * signed(blocks, 192, 208)
    return (per_group[:, :, None] * values.reshape(-1, 16, 16)).reshape(len(blocks), 256)


def _with_minima(blocks: Bytes, values: npt.NDArray[np.float32]) -> Floats:
    scales, minima = scales_and_minima(blocks[:, 4:16])
    per_group = half(blocks, 0) * scales.astype(np.float32)
    offset = half(blocks, 2) * minima.astype(np.float32)
    return (per_group[:, :, None] * values - offset[:, :, None]).reshape(len(blocks), 256)
