"""One tensor of a model file -> its packed matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu import abi
from imp_server.backends.cpu.block_types import take_apart
from imp_server.backends.cpu.errors import KernelError, check
from imp_server.backends.cpu.layouts import (
    ALL_LAYOUTS,
    BLOCK,
    FLOAT_LAYOUTS,
    LAYOUTS,
    PANEL_ROWS,
    SPLIT,
    MatrixParts,
    assemble,
    assemble_floats,
)
from imp_server.core import UnsupportedModel
from imp_server.models.source import RawTensor
from imp_server.native import library_path

Bytes = npt.NDArray[np.uint8]
_DTYPES = {"F16": "<u2", "BF16": "<u2", "F32": "<f4"}
_ROWS_AT_ONCE = 4096
"""Rows taken apart at once: bounds the memory of packing a large tensor."""


@dataclass(frozen=True, slots=True)
class PackedShape:
    """What describes a packed matrix besides its bytes. `type`: name of its layout."""

    type: str
    n_out: int
    n_in: int

    @property
    def n_blocks(self) -> int:
        return -(-self.n_in // BLOCK)

    @property
    def n_panels(self) -> int:
        return -(-self.n_out // PANEL_ROWS)

    @property
    def format_index(self) -> int:
        """FormatId."""
        return FLOAT_LAYOUTS[self.type] if self.type in FLOAT_LAYOUTS else ALL_LAYOUTS[self.type].index

    @property
    def panel_bytes(self) -> int:
        if self.type in FLOAT_LAYOUTS:
            return self.n_blocks * BLOCK * PANEL_ROWS * (4 if self.type == "F32" else 2)
        return ALL_LAYOUTS[self.type].panel_bytes(self.n_blocks)

    @property
    def upper_bytes(self) -> int:
        """Of a split layout what a search reads: headers and upper bits; else all."""
        layout = ALL_LAYOUTS.get(self.type)
        return self.n_panels * layout.stream_bytes(self.n_blocks) if layout else self.nbytes

    @property
    def nbytes(self) -> int:
        return self.n_panels * self.panel_bytes


def packed_shape(
    type_name: str, shape: tuple[int, ...], quantize: str = "none", *, is_split: bool = False
) -> PackedShape:
    """The layout a tensor of a file is packed to; all but its last axis are rows. `is_split`: a head to be searched by
    its upper bits, if it is an 8-bit one.

    Raises UnsupportedModel if there is none for its type.
    """
    if type_name in FLOAT_LAYOUTS:
        target = {"q8": "Q8_0", "q4": "Q4_1"}.get(quantize, type_name)
    elif type_name in LAYOUTS:
        target = type_name
    else:
        known = ", ".join([*LAYOUTS, *FLOAT_LAYOUTS])
        raise UnsupportedModel(f"the cpu backend has no layout for tensors of type {type_name} (it has {known})")
    if is_split and target == "Q8_0":
        target = SPLIT
    return PackedShape(target, math.prod(shape[:-1]), shape[-1])


def pack(raw: RawTensor, shape: PackedShape, out: Bytes) -> None:
    """Pack a matrix into `out` [nbytes]: natively where that is built and knows the type."""
    if raw.type.name in FLOAT_LAYOUTS or library_path("engine") is None or not _packed_natively(raw, shape, out):
        pack_plainly(raw, shape, out)


def _packed_natively(raw: RawTensor, shape: PackedShape, out: Bytes) -> bool:
    rows = np.ascontiguousarray(raw.data)
    sizes = shape.n_out, shape.n_blocks
    code = abi.library().imp_cpu_pack(shape.format_index, rows.ctypes.data, *sizes, out.ctypes.data)
    if code != KernelError.unknown_layout:
        check(code, "a tensor can't be packed")
    return bool(code == KernelError.ok)


def pack_plainly(raw: RawTensor, shape: PackedShape, out: Bytes) -> None:
    """The same in numpy: the native packing's twin, and the way of types that it doesn't know."""
    panels = out.reshape(shape.n_panels, shape.panel_bytes)
    rows = raw.data.reshape(shape.n_out, -1)
    for first in range(0, shape.n_out, _ROWS_AT_ONCE):
        part = rows[first : first + _ROWS_AT_ONCE]
        target = panels[first // PANEL_ROWS : -(-(first + len(part)) // PANEL_ROWS)]
        if raw.type.name not in FLOAT_LAYOUTS:
            assemble(
                ALL_LAYOUTS[shape.type],
                take_apart(raw.type.name, part.reshape(len(part), -1, raw.type.block_bytes)),
                target,
            )
            continue
        values = np.ascontiguousarray(part).view(_DTYPES[raw.type.name])
        if shape.type in FLOAT_LAYOUTS:
            assemble_floats(values, target)
        else:
            assemble(ALL_LAYOUTS[shape.type], quantise(shape.type, widened(raw.type.name, values)), target)


def widened(type_name: str, bits: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """The float32 values of F16, BF16 or F32 numbers that are given by their bits."""
    if type_name == "F16":
        return bits.view("<f2").astype(np.float32)
    if type_name == "BF16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.astype(np.float32)


def quantise(type_name: str, values: npt.NDArray[np.float32]) -> MatrixParts:
    """Round-to-nearest Q8_0 (or its split) or Q4_1 of [n_out, n_in], in blocks of 32, against the scale as stored."""
    n_out, n_in = values.shape
    blocks = np.zeros((n_out, -(-n_in // BLOCK) * BLOCK), dtype=np.float32)
    blocks[:, :n_in] = values
    blocks = blocks.reshape(n_out, -1, BLOCK)
    if type_name != "Q4_1":
        scale = (np.abs(blocks).max(axis=2) / 127).astype(np.float16)
        codes = np.clip(np.rint(_divided(blocks, scale)), -127, 127)
        return MatrixParts((codes + 128).astype(np.uint8), scale.view(np.uint16))
    low = blocks.min(axis=2).astype(np.float16)
    scale = ((blocks.max(axis=2) - low.astype(np.float32)) / 15).astype(np.float16)
    codes = np.clip(np.rint(_divided(blocks - low.astype(np.float32)[:, :, None], scale)), 0, 15).astype(np.uint8)
    return MatrixParts(codes, scale.view(np.uint16), low.view(np.uint16))


def _divided(blocks: npt.NDArray[np.float32], scale: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    wide = scale.astype(np.float32)[:, :, None]
    return np.divide(blocks, wide, out=np.zeros_like(blocks), where=wide != 0)
