"""The tensor types of GGUF files taken apart into the parts of the packed layouts (facts of ggml's block structs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu.layouts import MatrixParts

Bytes = npt.NDArray[np.uint8]


def take_apart(type_name: str, blocks: Bytes) -> MatrixParts:
    """`blocks` [n_out, blocks per row, bytes of a block] of one of the types in LAYOUTS."""
    return _TYPES[type_name](blocks)


def _view(blocks: Bytes, start: int, stop: int, dtype: str) -> npt.NDArray[Any]:
    """A field of every block; the trailing axis is kept for fields of several elements."""
    field = np.ascontiguousarray(blocks[:, :, start:stop]).view(dtype)
    return field[:, :, 0] if field.shape[2] == 1 else field


def _nibbles(qs: Bytes) -> Bytes:
    """[.., 16] bytes -> [.., 32] codes: inputs k (low) and 16 + k (high)."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def _q4_0(b: Bytes) -> MatrixParts:
    return MatrixParts(_nibbles(b[:, :, 2:]), _view(b, 0, 2, "<u2"))


def _q4_1(b: Bytes) -> MatrixParts:
    return MatrixParts(_nibbles(b[:, :, 4:]), _view(b, 0, 2, "<u2"), _view(b, 2, 4, "<u2"))


def _q8_0(b: Bytes) -> MatrixParts:
    return MatrixParts(b[:, :, 2:] ^ np.uint8(0x80), _view(b, 0, 2, "<u2"))


def _fifth_bits(b: Bytes, start: int) -> Bytes:
    """The 32 high bits of a block, each at bit 4."""
    bits = np.unpackbits(b[:, :, start : start + 4], axis=2, bitorder="little")
    return np.asarray(bits << 4, dtype=np.uint8)


def _q5_0(b: Bytes) -> MatrixParts:
    return MatrixParts(_nibbles(b[:, :, 6:]) | _fifth_bits(b, 2), _view(b, 0, 2, "<u2"))


def _q5_1(b: Bytes) -> MatrixParts:
    return MatrixParts(_nibbles(b[:, :, 8:]) | _fifth_bits(b, 4), _view(b, 0, 2, "<u2"), _view(b, 2, 4, "<u2"))


def _mxfp4(b: Bytes) -> MatrixParts:
    """E8M0 exponents, read as 2^(e - 128): half of what they say, because the codes are doubled."""
    return MatrixParts(_nibbles(b[:, :, 1:]), b[:, :, 0])


def _k_scales(b: Bytes) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """The 6-bit scales and minima of the 8 sub-blocks of Q4_K and Q5_K: [n_out, 8 * blocks, 1] each."""
    low, mid, high = b[:, :, 0:4], b[:, :, 4:8], b[:, :, 8:12]
    scale = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=2)
    minimum = np.concatenate([mid & 63, (high >> 4) | ((mid >> 6) << 4)], axis=2)
    shape = (len(b), -1, 1)
    return scale.reshape(shape).view(np.int8), minimum.reshape(shape).view(np.int8)


def _low_then_high(qs: Bytes) -> Bytes:
    """K-quants keep 64 values in 32 bytes, first the low halves: [.., 128] -> [.., 8, 32]."""
    chunks = qs.reshape(*qs.shape[:2], 4, 32)
    return np.stack([chunks & 15, chunks >> 4], axis=3).reshape(*qs.shape[:2], 8, 32)


def _q4_k(b: Bytes) -> MatrixParts:
    scale, minimum = _k_scales(b[:, :, 4:16])
    payload = _low_then_high(b[:, :, 16:]).reshape(len(b), -1, 32)
    return MatrixParts(payload, _view(b, 0, 2, "<u2"), _view(b, 2, 4, "<u2"), scale, minimum)


def _q5_k(b: Bytes) -> MatrixParts:
    scale, minimum = _k_scales(b[:, :, 4:16])
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    high = ((b[:, :, None, 16:48] >> shifts) & 1) << 4
    payload = np.asarray(_low_then_high(b[:, :, 48:]) | high, dtype=np.uint8).reshape(len(b), -1, 32)
    return MatrixParts(payload, _view(b, 0, 2, "<u2"), _view(b, 2, 4, "<u2"), scale, minimum)


def _q6_k(b: Bytes) -> MatrixParts:
    low = b[:, :, :128].reshape(*b.shape[:2], 2, 64)
    high = b[:, :, 128:192].reshape(*b.shape[:2], 2, 1, 32)
    fours = np.concatenate([low & 15, low >> 4], axis=3).reshape(*b.shape[:2], 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    sixes: Bytes = np.asarray(fours | (((high >> shifts) & 3) << 4), dtype=np.uint8)
    scale = b[:, :, 192:208].reshape(len(b), -1, 2).view(np.int8)
    return MatrixParts(sixes.reshape(len(b), -1, 32), _view(b, 208, 210, "<u2"), sub_scale=scale)


def _two_bits(qs: Bytes) -> Bytes:
    """[.., 64] -> [.., 8, 32]: per half, four runs of 32 at shifts 0, 2, 4, 6."""
    halves = qs.reshape(*qs.shape[:2], 2, 1, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return np.asarray((halves >> shifts) & 3, dtype=np.uint8).reshape(*qs.shape[:2], 8, 32)


def _q2_k(b: Bytes) -> MatrixParts:
    scales = b[:, :, :16].reshape(len(b), -1, 2)
    payload = _two_bits(b[:, :, 16:80]).reshape(len(b), -1, 32)
    scale, minimum = (scales & 15).view(np.int8), (scales >> 4).view(np.int8)
    return MatrixParts(payload, _view(b, 80, 82, "<u2"), _view(b, 82, 84, "<u2"), scale, minimum)


def _q3_k(b: Bytes) -> MatrixParts:
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    high = ((b[:, :, None, :32] >> shifts) & 1) << 2
    payload = np.asarray(_two_bits(b[:, :, 32:96]) | high, dtype=np.uint8).reshape(len(b), -1, 32)
    packed = b[:, :, 96:108]
    low = np.concatenate([packed[:, :, :8] & 15, packed[:, :, :8] >> 4], axis=2)
    top = (packed[:, :, None, 8:] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3
    scale = (low | (top.reshape(*low.shape) << 4)).astype(np.int8) - np.int8(32)
    return MatrixParts(payload, _view(b, 108, 110, "<u2"), sub_scale=scale.reshape(len(b), -1, 2))


def _iq4_xs(b: Bytes) -> MatrixParts:
    high = _view(b, 2, 4, "<u2")[:, :, None] >> np.arange(0, 16, 2, dtype=np.uint16)
    low = np.stack([b[:, :, 4:8] & 15, b[:, :, 4:8] >> 4], axis=3).reshape(*b.shape[:2], 8)
    scale = (low | ((high & 3).astype(np.uint8) << 4)).astype(np.int8) - np.int8(32)
    payload = _nibbles(b[:, :, 8:].reshape(len(b), -1, 16))
    return MatrixParts(payload, _view(b, 0, 2, "<u2"), sub_scale=scale.reshape(len(b), -1, 1))


_TYPES: dict[str, Callable[[Bytes], MatrixParts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _q4_0,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
