"""Packed checkpoint weights in the blocks of GGUF, where those say exactly the same numbers.

The block layouts are facts of ggml's block structs, stated in dequantise.py and dequantise_tables.py: 32 consecutive
inputs of a row share a scale; the 4-bit types keep inputs k (low half) and 16 + k (high half) in one byte.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from imp_server.weights.blocks import Bytes
from imp_server.weights.float_blocks import Microscaled
from imp_server.weights.packed_ints import Grouped

_BLOCK = 32


class Repacked(NamedTuple):
    """`data`: flat, the blocks in the order of the weight's elements."""

    type_name: str
    data: Bytes


def repack(weight: Grouped | Microscaled) -> Repacked | None:
    """Q4_0, Q8_0 or MXFP4; None where none of them is exact."""
    return _mxfp4(weight) if isinstance(weight, Microscaled) else _integers(weight)


def _integers(weight: Grouped) -> Repacked | None:
    """Q4_0: f16 scale, 16 bytes of q + 8. Q8_0: f16 scale, 32 signed bytes."""
    half = {4: 8, 8: 128}.get(weight.bits)
    scales = _block_scales(weight)
    if half is None or scales is None or not weight.values.size:
        return None
    if int(weight.values.min()) < -half or int(weight.values.max()) >= half:
        return None  # a zero point off the middle
    rows = np.ascontiguousarray(weight.values)
    if weight.bits == 4:
        return Repacked("Q4_0", _joined(scales, _paired((rows + half).astype(np.uint8).reshape(-1, _BLOCK))))
    return Repacked("Q8_0", _joined(scales, rows.astype(np.int8).view(np.uint8).reshape(-1, _BLOCK)))


def _block_scales(weight: Grouped) -> npt.NDArray[np.float16] | None:
    """[out, in / 32]; None where a block has columns of several groups or float16 can't hold a scale exactly."""
    columns = weight.shape[1]
    if columns % _BLOCK:
        return None
    groups = weight.group_of.reshape(-1, _BLOCK)
    if (groups != groups[:, :1]).any():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = weight.scales.astype(np.float16)
    if not np.isfinite(narrow).all() or (narrow.astype(np.float32) != weight.scales).any():
        return None
    return np.ascontiguousarray(narrow[:, groups[:, 0]])


def _mxfp4(weight: Microscaled) -> Repacked | None:
    """E8M0 scale, 16 bytes of codes. The scale 255 is left out: GGUF's halved scale makes it a finite number."""
    if weight.blocks.dtype != np.uint8 or weight.scales.dtype != np.uint8 or (weight.scales == 255).any():
        return None
    pairs = weight.blocks.reshape(-1, 16)
    codes = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1, _BLOCK)
    return Repacked("MXFP4", _joined(weight.scales, _paired(codes)))


def _paired(codes: Bytes) -> Bytes:
    """[n, 32] 4-bit codes -> [n, 16] bytes."""
    return codes[:, :16] | (codes[:, 16:] << np.uint8(4))


def _joined(scales: npt.NDArray[Any], payload: Bytes) -> Bytes:
    """The scale of each block before its payload [n, bytes]; flat."""
    head = np.ascontiguousarray(scales).reshape(-1, 1).view(np.uint8)
    return np.concatenate([head, payload], axis=1).reshape(-1)
