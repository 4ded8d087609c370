"""Keys and values in their blocks: written in the cache's type, read as float32."""

from __future__ import annotations

import torch

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.backends.cuda.operations import KvPart, LayerKv, Rows

Tensor = torch.Tensor

_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.uint8, "int8": torch.int8}
FP8_MOST = 448.0
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
        scales[blocks, :, places] = torch.where(is_alive, amax / 127.0, 0.0)
        values[blocks, :, places] = (x * torch.where(is_alive, 127.0 / safe, 0.0)[..., None]).round().to(torch.int8)
    elif kv.dtype == "fp8":
        fitting = x.clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)
        values[blocks, :, places] = fitting.view(torch.uint8)
    else:
        values[blocks, :, places] = x.to(values.dtype)


def gather(kv: LayerKv, part: int, blocks: Tensor) -> Tensor:
    """blocks [R, c] -> float32 [R, heads, 16 c, size]; zeros for -1."""
    values, scales = _views(kv, kv.parts[part])
    at = torch.where(blocks >= 0, blocks, kv.scratch).long()
    found = values[at]
    numbers = found.view(torch.float8_e4m3fn).float() if kv.dtype == "fp8" else found.float()
    if scales is not None:
        numbers = numbers * scales[at][..., None]
    # By selection, not by a product: what a stranger left may be no number.
    numbers = torch.where((blocks >= 0)[:, :, None, None, None], numbers, 0.0)
    return numbers.transpose(1, 2).flatten(2, 3)


def _views(kv: LayerKv, part: KvPart) -> tuple[Tensor, Tensor | None]:
    """[blocks, heads, 16, size] and [blocks, heads, 16] in the pool's own memory."""
    size = (kv.pool.shape[0], part.heads, BLOCK_TOKENS, part.size)
    typed = kv.pool.view(_TYPES[kv.dtype])
    n = typed.element_size()
    values = typed.as_strided(size, (kv.block_bytes // n, part.stride // n, part.size, 1), part.values // n)
    if part.scales < 0:
        return values, None
    floats = kv.pool.view(torch.float32)
    scales = floats.as_strided(size[:3], (kv.block_bytes // 4, part.stride // 4, 1), part.scales // 4)
    return values, scales
