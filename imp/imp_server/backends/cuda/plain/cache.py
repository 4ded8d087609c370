"""Keys and values in their blocks: written in the cache's type, read as float32."""

from __future__ import annotations

from functools import cache

import torch

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.backends.cuda.operations import KvPart, LayerKv, Rows
from imp_server.backends.kv_layout import ELEMENT_TYPES

Tensor = torch.Tensor

FOUR_BITS = ("int4", "nvfp4")
_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
_TYPES |= dict.fromkeys(("fp8", *FOUR_BITS), torch.uint8)
_SCALE_TYPES = {"int8": torch.float32, "int4": torch.float16, "nvfp4": torch.uint8}
FP8_MOST, F16_MOST = 448.0, 65504.0
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
FP4_MIDDLES = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
"""Between two neighbours; what lies right there becomes the even one."""
LEAST_ALIVE = 1e-30


def positions_of(rows: Rows) -> Tensor:
    """int64 [T]."""
    within = torch.arange(rows.width, device=rows.starts.device)
    return (rows.starts.long()[:, None] + within).flatten()


def places_of(rows: Rows, kv: LayerKv) -> tuple[Tensor, Tensor]:
    """Block and place in it of each token, int64 [T]; padding goes to the scratch block."""
    positions = positions_of(rows).view(rows.n_rows, rows.width)
    table = rows.tables[kv.group]
    columns = (positions // BLOCK_TOKENS).clamp(max=table.shape[1] - 1)
    blocks = table.long().gather(1, columns)
    within = torch.arange(rows.width, device=table.device)
    is_real = (within < rows.counts[:, None]) & (blocks >= 0)
    blocks = torch.where(is_real, blocks, kv.scratch)
    return blocks.flatten(), (positions % BLOCK_TOKENS).flatten()


def write(kv: LayerKv, part: int, blocks: Tensor, places: Tensor, x: Tensor) -> None:
    """x float32 [T, heads, size]."""
    values, scales = _views(kv, kv.parts[part])
    if kv.dtype == "int8":
        amax = x.abs().amax(dim=-1)
        is_alive = amax >= LEAST_ALIVE
        safe = torch.where(is_alive, amax, 1.0)
        assert scales is not None
        scales[blocks, :, places] = torch.where(is_alive, amax / 127.0, 0.0)[..., None]
        values[blocks, :, places] = (x * torch.where(is_alive, 127.0 / safe, 0.0)[..., None]).round().to(torch.int8)
    elif kv.dtype in FOUR_BITS:
        codes, own = (_as_int4 if kv.dtype == "int4" else _as_nvfp4)(x)
        assert scales is not None
        scales[blocks, :, places] = own
        values[blocks, :, places] = codes[..., 0::2] | codes[..., 1::2] << 4
    elif kv.dtype == "fp8":
        values[blocks, :, places] = _as_e4m3(x)
    else:
        values[blocks, :, places] = x.to(values.dtype)


def _as_e4m3(x: Tensor) -> Tensor:
    return x.clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn).view(torch.uint8)


def _as_int4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [T, heads, size], one a byte, and scales."""
    groups = _groups(x, 32)
    scales = (groups.abs().amax(dim=-1) / 7.0).clamp(max=F16_MOST).half()
    steps = scales.float()[..., None]
    codes = torch.where(steps > 0, groups / torch.where(steps > 0, steps, 1.0), 0.0).round().clamp(-8, 7)
    return (codes.to(torch.int8).view(torch.uint8) & 15).flatten(-2)[..., : x.shape[-1]], scales


def _as_nvfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same."""
    groups = _groups(x, 16)
    scales = _as_e4m3(groups.abs().amax(dim=-1) / 6.0)
    steps = scales.view(torch.float8_e4m3fn).float()[..., None]
    size = torch.where(steps > 0, groups.abs() / torch.where(steps > 0, steps, 1.0), 0.0)
    codes = torch.zeros_like(size, dtype=torch.uint8)
    for middle, goes_up in FP4_MIDDLES:
        codes += (size >= middle) if goes_up else (size > middle)
    codes |= (groups < 0).to(torch.uint8) << 3
    return codes.flatten(-2)[..., : x.shape[-1]], scales


def _groups(x: Tensor, group: int) -> Tensor:
    """[T, heads, groups, group], zeros behind the end."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % group))
    return padded.view(*x.shape[:-1], -1, group)


def gather(kv: LayerKv, part: int, blocks: Tensor) -> Tensor:
    """blocks [R, c] -> float32 [R, heads, 16 c, size]; zeros for -1."""
    values, scales = _views(kv, kv.parts[part])
    at = torch.where(blocks >= 0, blocks, kv.scratch).long()
    found = values[at]
    if kv.dtype in FOUR_BITS:
        assert scales is not None
        numbers = _of_four_bits(kv.dtype, found, scales[at], kv.parts[part].size)
    else:
        numbers = found.view(torch.float8_e4m3fn).float() if kv.dtype == "fp8" else found.float()
        numbers = numbers if scales is None else numbers * scales[at]
    # By selection, not by a product: what a stranger left may be no number.
    numbers = torch.where((blocks >= 0)[:, :, None, None, None], numbers, 0.0)
    return numbers.transpose(1, 2).flatten(2, 3)


def _of_four_bits(dtype: str, packed: Tensor, scales: Tensor, size: int) -> Tensor:
    """Bytes [..., size / 2] and scales [..., groups] -> float32 [..., size]."""
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    if dtype == "int4":
        numbers, steps, group = (codes ^ 8).float() - 8.0, scales.float(), 32
    else:
        steps, group = scales.view(torch.float8_e4m3fn).float(), 16
        numbers = _table(FP4_VALUES, codes.device)[codes.long()]
    return numbers * steps.repeat_interleave(group, dim=-1, output_size=steps.shape[-1] * group)[..., :size]


@cache
def _table(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)


def _views(kv: LayerKv, part: KvPart) -> tuple[Tensor, Tensor | None]:
    """[blocks, heads, 16, size] (of four bits: bytes) and [blocks, heads, 16, scales] in the pool's own memory."""
    element = ELEMENT_TYPES[kv.dtype]
    n_blocks, typed = kv.pool.shape[0], kv.pool.view(_TYPES[kv.dtype])
    n = typed.element_size()
    width = element.value_bytes(part.size) // n
    values = typed.as_strided(
        (n_blocks, part.heads, BLOCK_TOKENS, width),
        (kv.block_bytes // n, part.stride // n, width, 1),
        part.values // n,
    )
    if part.scales < 0:
        return values, None
    scale_type = kv.pool.view(_SCALE_TYPES[kv.dtype])
    n, n_scales = element.scale_bytes, element.scales_bytes(part.size) // element.scale_bytes
    scales = scale_type.as_strided(
        (n_blocks, part.heads, BLOCK_TOKENS, n_scales),
        (kv.block_bytes // n, part.stride // n, n_scales, 1),
        part.scales // n,
    )
    return values, scales
