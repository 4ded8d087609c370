"""Weights of 8-bit and 4-bit floats with scales: FP8 per tensor, channel or block, MXFP4, NVFP4."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from imp_server.core import InvalidModel
from imp_server.weights.blocks import Bytes, Floats
from imp_server.weights.dequantise_tables import E2M1_LEVELS, e8m0


def scaled(weight: Floats, scale: Floats, what: str, block: tuple[int, int]) -> Floats:
    """`weight` [out, in] times a scalar, a column [out, 1], groups of a row [out, groups] or a grid of `block`s.

    Raises InvalidModel naming `what`.
    """
    if scale.size == 1:
        return weight * scale.reshape(())
    rows, columns = weight.shape
    if scale.ndim == 1:
        scale = scale[:, None]
    if scale.shape == (rows, 1):
        return weight * scale
    if scale.ndim != 2:
        raise InvalidModel(f"the scales of '{what}' have the shape {scale.shape}")
    height, width = (1, -(-columns // max(scale.shape[1], 1))) if scale.shape[0] == rows else block
    if -(-rows // height) != scale.shape[0] or -(-columns // width) != scale.shape[1]:
        raise InvalidModel(
            f"the scales of '{what}' {scale.shape} don't cover its {weight.shape} in blocks of {height}x{width}"
        )
    out = np.empty_like(weight)
    for row in range(scale.shape[0]):  # row of blocks by row of blocks: no second copy of the weight
        part = slice(row * height, (row + 1) * height)
        out[part] = weight[part] * np.repeat(scale[row], width)[:columns]
    return out


def pairs(packed: Bytes) -> Floats:
    """[..., k] bytes -> [..., 2k] 4-bit floats, the low half of each byte first."""
    levels = E2M1_LEVELS[np.stack([packed & 15, packed >> 4], axis=-1)]
    return levels.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


class Microscaled(NamedTuple):
    """An MXFP4 weight: `blocks` [..., groups, 16], two 4-bit floats a byte in order (`pairs`), `scales` [..., groups].

    Scales are E8M0 codes.
    """

    blocks: Bytes
    scales: Bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Raises IndexError for scales without dimensions."""
        return (*self.scales.shape[:-1], 32 * self.scales.shape[-1])

    def floats(self) -> Floats:
        return (pairs(self.blocks) * e8m0(self.scales)[..., None]).reshape(self.shape)


def grouped(packed: Bytes, scales: Floats) -> Floats:
    """`packed` [out, in / 2] and `scales` [out, groups] -> [out, in]."""
    values = pairs(packed)
    rows, columns = values.shape
    return (values.reshape(rows, scales.shape[1], -1) * scales[:, :, None]).reshape(rows, columns)
