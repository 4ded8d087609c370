"""Tensors of a model file -> the planes of formats.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from imp_server.backends.cpu.block_types import take_apart
from imp_server.backends.cpu.layouts import MatrixParts
from imp_server.backends.cuda.formats import BLOCK, FLOATS, FORMATS, Format
from imp_server.backends.cuda.operations import PackedMatrix
from imp_server.core import UnsupportedModel
from imp_server.models.source import RawTensor

Bytes = npt.NDArray[np.uint8]
_FLOAT_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
_FROM_FILES = tuple(name for name in FORMATS if name not in ("FP8", "NVFP4"))
PLANES = ("codes", "high", "scale", "minimum", "sub_scale", "sub_minimum")
_ROWS_AT_ONCE = 4096
"""Rows taken apart at once: bounds the memory of packing a large tensor."""


def check_packable(type_name: str) -> None:
    """Raises UnsupportedModel if there is no format for a matrix of this type."""
    if type_name not in _FROM_FILES and type_name not in FLOATS:
        known = ", ".join([*_FROM_FILES, *FLOATS])
        raise UnsupportedModel(f"the cuda backend has no format for tensors of type {type_name} (it has {known})")


def pack(raw: RawTensor, device: torch.device) -> PackedMatrix:
    """All but the last axis of `raw` are rows. Raises UnsupportedModel for a type without a format."""
    name = raw.type.name
    check_packable(name)
    n_out, n_in = math.prod(raw.shape[:-1]), raw.shape[-1]
    rows = np.ascontiguousarray(raw.data).reshape(n_out, -1)
    if name in FLOATS:
        codes = torch.from_numpy(rows.copy()).view(_FLOAT_DTYPES[name]).to(device)
        return PackedMatrix(name, n_out, n_in, codes)
    pieces = []
    for first in range(0, n_out, _ROWS_AT_ONCE):
        part = rows[first : first + _ROWS_AT_ONCE]
        parts = take_apart(name, part.reshape(len(part), -1, raw.type.block_bytes))
        pieces.append(matrix_of(name, parts, device))
    return replace(stacked(pieces), n_in=n_in)


def matrix_of(name: str, parts: MatrixParts, device: torch.device) -> PackedMatrix:
    """`parts` of a block format as planes."""
    form = FORMATS[name]
    codes, high = code_planes(form, parts.payload)

    def tensor(values: npt.NDArray[Any] | None, dtype: torch.dtype | None = None) -> torch.Tensor | None:
        if values is None:
            return None
        made = torch.from_numpy(np.ascontiguousarray(values))
        return (made if dtype is None else made.view(dtype)).to(device)

    scale_dtype = None if form.scales == "e8m0" else torch.float16
    made = tensor(codes)
    assert made is not None
    return PackedMatrix(
        name,
        len(parts.payload),
        parts.payload.shape[1] * BLOCK,
        made,
        tensor(high),
        tensor(_halves(parts.scale), scale_dtype),
        tensor(None if parts.minimum is None else _halves(parts.minimum), torch.float16),
        tensor(parts.sub_scale),
        tensor(parts.sub_minimum),
    )


def _halves(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """torch has no operations on uint16; e8m0 exponents are bytes already."""
    return bits.view(np.int16) if bits.dtype == np.uint16 else bits


def code_planes(form: Format, codes: Bytes) -> tuple[Bytes, Bytes | None]:
    """Codes [n_out, n_blocks, 32], one a byte -> the planes `codes` and `high`."""
    if form.bits == 8:
        return codes, None
    low = _fours(codes & np.uint8(15)) if form.low_bits == 4 else _twos(codes & np.uint8(3))
    if not form.high_bits:
        return low, None
    above = codes >> np.uint8(form.low_bits)
    high = np.packbits(above, axis=2, bitorder="little") if form.high_bits == 1 else _twos(above)
    return low, high


def _fours(codes: Bytes) -> Bytes:
    return np.asarray(codes[:, :, :16] | codes[:, :, 16:] << 4, dtype=np.uint8)


def _twos(codes: Bytes) -> Bytes:
    runs = codes.reshape(*codes.shape[:2], 4, 8)
    return np.asarray(runs[:, :, 0] | runs[:, :, 1] << 2 | runs[:, :, 2] << 4 | runs[:, :, 3] << 6, dtype=np.uint8)


def can_stack(matrices: Sequence[PackedMatrix]) -> bool:
    """They are rows of one matrix as well."""
    first = matrices[0]
    return all(
        (each.format, each.n_in, each.whole_scale) == (first.format, first.n_in, first.whole_scale) for each in matrices
    )


def stacked(matrices: Sequence[PackedMatrix]) -> PackedMatrix:
    """Rows of all, in order."""
    first = matrices[0]
    if len(matrices) == 1:
        return first
    planes: dict[str, Any] = {
        name: torch.cat([getattr(each, name) for each in matrices])
        for name in PLANES
        if getattr(first, name) is not None
    }
    return replace(first, n_out=sum(each.n_out for each in matrices), **planes)


def rows_of(matrix: PackedMatrix, first: int, end: int) -> PackedMatrix:
    """Rows [first, end), a view."""
    planes: dict[str, Any] = {
        name: getattr(matrix, name)[first:end] for name in PLANES if getattr(matrix, name) is not None
    }
    return replace(matrix, n_out=end - first, **planes)


def matrix_bytes(matrix: PackedMatrix) -> int:
    planes = (getattr(matrix, name) for name in PLANES)
    return sum(plane.numel() * plane.element_size() for plane in planes if plane is not None)
