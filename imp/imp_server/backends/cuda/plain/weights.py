"""PackedArrays matrices as float32, and products with them, a bounded piece of the rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from imp_server.backends.cuda.formats import BLOCK, FORMATS, SUPER_BLOCKS, Format
from imp_server.backends.cuda.operations import PackedMatrix
from imp_server.backends.cuda.packing import PLANES, rows_of

Tensor = torch.Tensor

PIECE_BYTES = 64 << 20
"""Most float32 bytes of a matrix that are there at once; at least one row."""


def pieces(matrix: PackedMatrix, unit: int = 1) -> Iterator[tuple[int, int, Tensor]]:
    """(first row, end, values [end - first, n_in]); whole units of rows."""
    n = max(1, PIECE_BYTES // (4 * matrix.n_in * unit)) * unit
    for first in range(0, matrix.n_out, n):
        end = min(first + n, matrix.n_out)
        yield first, end, dequantised(rows_of(matrix, first, end))


def dequantised(matrix: PackedMatrix) -> Tensor:
    """float32 [n_out, n_in]."""
    if matrix.format not in FORMATS:
        return matrix.codes.float()
    form = FORMATS[matrix.format]
    values = _values(form, matrix).view(matrix.n_out, -1, form.n_groups, form.group)
    scale, minimum = _scales(form, matrix)
    weights = values * scale[..., None]
    if minimum is not None:
        weights = weights + minimum[..., None]
    return weights.flatten(1)


def gathered(matrix: PackedMatrix, parts: Tensor, n_parts: int) -> PackedMatrix:
    """Of a matrix of `n_parts` parts, those named by int64 `parts` [n], one after the other."""
    planes = {}
    for name in PLANES:
        plane = getattr(matrix, name)
        if plane is not None:
            planes[name] = plane.view(n_parts, -1, *plane.shape[1:]).index_select(0, parts).flatten(0, 1)
    n_out = matrix.n_out // n_parts * len(parts)
    return PackedMatrix(matrix.format, n_out, matrix.n_in, whole_scale=matrix.whole_scale, **planes)


def multiply(x: Tensor, matrix: PackedMatrix, bias: Tensor | None, out: Tensor) -> None:
    """out [..., n_out] = x [..., n_in] times matrix transposed, plus bias."""
    for first, end, values in pieces(matrix):
        part = torch.matmul(x, values.T)
        out[..., first:end].copy_(part if bias is None else part + bias[first:end])


def _values(form: Format, matrix: PackedMatrix) -> Tensor:
    """float32 [n_out, n_blocks, 32]."""
    if form.float8:
        return matrix.codes.view(torch.float8_e4m3fn).float()
    codes = _codes(form, matrix)
    if form.table:
        return _table(form.table, codes.device)[codes.long()]
    return codes.float() - form.zero


def _codes(form: Format, matrix: PackedMatrix) -> Tensor:
    if form.bits == 8:
        return matrix.codes
    low = _unpacked(matrix.codes, form.low_bits)
    if matrix.high is None:
        return low
    return low | _unpacked(matrix.high, form.high_bits) << form.low_bits


def _unpacked(plane: Tensor, bits: int) -> Tensor:
    """[.., bytes of a block] -> [.., 32]."""
    if bits == 4:
        return torch.cat([plane & 15, plane >> 4], dim=-1)
    if bits == 2:
        return torch.cat([plane >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)
    shifts = torch.arange(8, dtype=torch.uint8, device=plane.device)
    return (plane[..., None] >> shifts & 1).flatten(-2)


@cache
def _table(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)


def _scales(form: Format, matrix: PackedMatrix) -> tuple[Tensor, Tensor | None]:
    """Scale and minimum of each group: [n_out, n_blocks, groups] or what broadcasts to it."""
    assert matrix.scale is not None
    if form.scales == "row":
        return matrix.scale[:, None, None], None
    if form.scales == "e4m3":
        return matrix.scale.view(torch.float8_e4m3fn).float() * matrix.whole_scale, None
    if form.scales == "e8m0":
        # 2^(e - 128) by its bits: those of a normal number, or of the two below.
        exponents = matrix.scale.to(torch.int32)
        bits = torch.where(exponents >= 2, (exponents - 1) << 23, 1 << (exponents + 21).clamp(max=22))
        return bits.view(torch.float32)[..., None], None
    scale = matrix.scale.float()
    minimum = None if matrix.minimum is None else matrix.minimum.float()
    if form.scales == "f16":
        return scale[..., None], None if minimum is None else minimum[..., None]
    assert matrix.sub_scale is not None
    n = matrix.n_in // BLOCK
    wide = scale.repeat_interleave(SUPER_BLOCKS, 1, output_size=scale.shape[1] * SUPER_BLOCKS)[:, :n, None]
    subs = matrix.sub_scale.float()
    if minimum is None:
        return wide * subs, None
    assert matrix.sub_minimum is not None
    least = minimum.repeat_interleave(SUPER_BLOCKS, 1, output_size=minimum.shape[1] * SUPER_BLOCKS)[:, :n, None]
    return wide * subs, -(least * matrix.sub_minimum.float())
