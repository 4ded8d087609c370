"""Random arguments of operations: packed matrices of each format, rectangles of rows, caches; on any device."""

from __future__ import annotations

import torch

from imp_server.backends.cuda.formats import BLOCK, FORMATS, SUPER_BLOCKS
from imp_server.backends.cuda.operations import KvPart, LayerKv, PackedMatrix, Rows
from imp_server.backends.kv_layout import ELEMENT_TYPES, layer_place
from imp_server.models.mixers import CachedPart

Tensor = torch.Tensor
_FLOATS = {"f32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def seeded(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """What it makes lies on its device."""
    return torch.Generator(device).manual_seed(seed)


def normal(g: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=g, device=g.device, dtype=dtype)


def whole(g: torch.Generator, low: int, end: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """From `low` to below `end`."""
    return torch.randint(low, end, shape, generator=g, device=g.device, dtype=dtype)


def matrix(name: str, n_out: int, n_in: int, seed: int, device: torch.device | str = "cpu") -> PackedMatrix:
    """Random codes, and scales that make weights of about 1 / sqrt(n_in)."""
    g = seeded(seed, device)
    if name in _DTYPES:
        values = normal(g, n_out, n_in, dtype=_DTYPES[name])
        return PackedMatrix(name, n_out, n_in, values.mul_(n_in**-0.5))
    form, n_blocks = FORMATS[name], n_in // BLOCK
    codes = whole(g, 0, 256, n_out, n_blocks, 4 * form.low_bits, dtype=torch.uint8)
    if form.float8:
        codes = torch.where(codes % 128 == 127, codes - 1, codes)
    high = whole(g, 0, 256, n_out, n_blocks, 4 * form.high_bits, dtype=torch.uint8) if form.high_bits else None
    planes, whole_scale = _scales(name, n_out, n_in, g)
    return PackedMatrix(name, n_out, n_in, codes, high, whole_scale=whole_scale, **planes)


def _scales(name: str, n_out: int, n_in: int, g: torch.Generator) -> tuple[dict[str, Tensor], float]:
    form, n_blocks, size = FORMATS[name], n_in // BLOCK, n_in**-0.5
    most = max(abs(v) for v in form.table) if form.table else 240.0 if form.float8 else 2.0 ** (form.bits - 1)
    n_supers, has_two = -(-n_blocks // SUPER_BLOCKS), form.scales == "two"

    def shares(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g, device=g.device)

    def halves(count: int, times: float) -> Tensor:
        return ((shares(n_out, count) - 0.3) * times).half()

    found: dict[str, Tensor] = {}
    whole_scale = 1.0
    if form.scales == "f16":
        found["scale"] = halves(n_blocks, size / most)
    elif form.scales == "e8m0":
        found["scale"] = whole(g, 118, 126, n_out, n_blocks, dtype=torch.uint8)
        found["scale"][0, 0] = 0
        found["scale"][-1, -1] = 1
    elif form.scales == "row":
        found["scale"] = (shares(n_out) + 0.1) * size / most
    elif form.scales == "e4m3":
        found["scale"] = whole(g, 0, 127, n_out, n_blocks, 2, dtype=torch.uint8)
        whole_scale = size / most / 200
    else:
        found["scale"] = halves(n_supers, size / most / 32)
        low = -32 if form.zero else 0
        found["sub_scale"] = whole(g, low, 64, n_out, n_blocks, form.n_groups, dtype=torch.int8)
    if form.minimum:
        found["minimum"] = halves(n_supers if has_two else n_blocks, size / (32 if has_two else 1))
        if has_two:
            found["sub_minimum"] = whole(g, 0, 64, n_out, n_blocks, form.n_groups, dtype=torch.int8)
    return found, whole_scale


def filled_pool(dtype: str, n_blocks: int, block_bytes: int, parts: tuple[KvPart, ...], g: torch.Generator) -> Tensor:
    """uint8 [n_blocks + 1, block_bytes] with random numbers of the type in the vectors of `parts`."""
    element = ELEMENT_TYPES[dtype]
    pool = torch.zeros(n_blocks + 1, block_bytes, dtype=torch.uint8, device=g.device)
    for part in parts:
        for head in range(part.heads):
            shape = (n_blocks + 1, 16, part.size)
            begin = part.values + head * part.stride
            n_bytes = 16 * element.value_bytes(part.size)
            if dtype in _FLOATS:
                numbers = normal(g, *shape).to(_FLOATS[dtype]).view(torch.uint8).reshape(n_blocks + 1, -1)
            else:
                numbers = whole(g, 0, 256, n_blocks + 1, n_bytes, dtype=torch.uint8)
                own = _kv_scales(dtype, n_blocks + 1, 16 * element.scales_bytes(part.size), g)
                at_scale = part.scales + head * part.stride
                pool[:, at_scale : at_scale + own.shape[1]] = own
            pool[:, begin : begin + n_bytes] = numbers
    return pool


def _kv_scales(dtype: str, n_blocks: int, n_bytes: int, g: torch.Generator) -> Tensor:
    """Of whole numbers: such that these come to about one."""
    if dtype == "nvfp4":
        return whole(g, 8, 48, n_blocks, n_bytes, dtype=torch.uint8)
    n, times, to = (n_bytes // 4, 1 / 64, torch.float32) if dtype == "int8" else (n_bytes // 2, 1 / 4, torch.float16)
    return (torch.rand(n_blocks, n, generator=g, device=g.device) * times).to(to).view(torch.uint8)


def cache(dtype: str, n_blocks: int, heads: int, size: int, value_size: int, seed: int) -> LayerKv:
    """A layer in the middle of its group's blocks, filled with random numbers of its type."""
    place = layer_place((CachedPart("k", heads, size), CachedPart("v", heads, value_size)), ELEMENT_TYPES[dtype], 16)
    at, stride = 64, place.parts[0].stride
    parts = tuple(
        KvPart(heads, p.part.size, at + p.values, at + p.scales if p.scales >= 0 else -1, stride) for p in place.parts
    )
    block_bytes = 64 + heads * stride + 32
    block_bytes += -block_bytes % 16
    pool = filled_pool(dtype, n_blocks, block_bytes, parts, seeded(seed))
    return LayerKv(pool, dtype, 0, (parts[0], parts[1]))  # type: ignore[arg-type]


def rows(starts: list[int], counts: list[int], width: int, n_blocks: int, seed: int, spare_columns: int = 1) -> Rows:
    """Rows with blocks of their own, in random order; columns before them may be given up by the caller."""
    columns = max((s + c + 15) // 16 for s, c in zip(starts, counts)) + spare_columns
    order = torch.randperm(n_blocks, generator=seeded(seed)).tolist()
    table = torch.full((len(starts), columns), -1, dtype=torch.int32)
    for r, (start, count) in enumerate(zip(starts, counts)):
        if count:
            for column in range((start + count + 15) // 16):
                table[r, column] = order.pop()
    ints = [torch.tensor(x, dtype=torch.int32) for x in (range(len(starts)), starts, counts)]
    return Rows(len(starts), width, ints[0], ints[1], ints[2], (table,))
