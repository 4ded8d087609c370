"""Random arguments of operations: packed matrices of each format, rectangles of rows, caches."""

from __future__ import annotations

import torch
from imp_server.backends.cuda.formats import BLOCK, FORMATS, SUPER_BLOCKS
from imp_server.backends.cuda.operations import KvPart, LayerKv, PackedMatrix, Rows

Tensor = torch.Tensor
BYTES = {"f32": 4, "bf16": 2, "fp8": 1, "int8": 1}
_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g)


def nothing(*shape: int) -> Tensor:
    """An output that was never written."""
    return torch.full(shape, float("nan"))


def _bytes(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=g, dtype=torch.uint8)


def matrix(name: str, n_out: int, n_in: int, seed: int) -> PackedMatrix:
    """Random codes, and scales that make weights of about 1 / sqrt(n_in)."""
    g = seeded(seed)
    if name in _DTYPES:
        return PackedMatrix(name, n_out, n_in, (normal(g, n_out, n_in) * n_in**-0.5).to(_DTYPES[name]))
    form, n_blocks, size = FORMATS[name], n_in // BLOCK, n_in**-0.5
    codes = _bytes(g, n_out, n_blocks, 4 * form.low_bits)
    if form.float8:
        codes = torch.where(codes % 128 == 127, codes - 1, codes)
    high = _bytes(g, n_out, n_blocks, 4 * form.high_bits) if form.high_bits else None
    most = max(abs(v) for v in form.table) if form.table else 240.0 if form.float8 else 2.0 ** (form.bits - 1)
    n_supers = -(-n_blocks // SUPER_BLOCKS)

    def halves(count: int, times: float) -> Tensor:
        return ((torch.rand(n_out, count, generator=g) - 0.3) * times).half()

    found: dict[str, Tensor] = {}
    whole_scale = 1.0
    if form.scales == "f16":
        found["scale"] = halves(n_blocks, size / most)
    elif form.scales == "e8m0":
        found["scale"] = torch.randint(118, 126, (n_out, n_blocks), generator=g, dtype=torch.uint8)
        found["scale"][0, 0] = 0
        found["scale"][-1, -1] = 1
    elif form.scales == "row":
        found["scale"] = (torch.rand(n_out, generator=g) + 0.1) * size / most
    elif form.scales == "e4m3":
        found["scale"] = torch.randint(0, 127, (n_out, n_blocks, 2), generator=g, dtype=torch.uint8)
        whole_scale = size / most / 200
    else:
        found["scale"] = halves(n_supers, size / most / 32)
        shape = (n_out, n_blocks, form.n_groups)
        found["sub_scale"] = torch.randint(-32 if form.zero else 0, 64, shape, generator=g, dtype=torch.int8)
    if form.minimum:
        two = form.scales == "two"
        found["minimum"] = halves(n_supers if two else n_blocks, size / (32 if two else 1))
        if two:
            found["sub_minimum"] = torch.randint(0, 64, (n_out, n_blocks, form.n_groups), generator=g, dtype=torch.int8)
    return PackedMatrix(name, n_out, n_in, codes, high, whole_scale=whole_scale, **found)


def cache(dtype: str, n_blocks: int, heads: int, size: int, value_size: int, seed: int) -> LayerKv:
    """A layer in the middle of its group's blocks, filled with random numbers of its type."""
    g = seeded(seed)
    parts, at = [], 64
    scale_bytes = 64 if dtype == "int8" else 0
    stride = 16 * BYTES[dtype] * (size + value_size) + 2 * scale_bytes
    keys, values = 16 * BYTES[dtype] * size, 16 * BYTES[dtype] * value_size
    scales = at + keys + values
    for width, first, scale in ((size, at, scales), (value_size, at + keys, scales + scale_bytes)):
        parts.append(KvPart(heads, width, first, scale if scale_bytes else -1, stride))
    block_bytes = 64 + heads * stride + 32
    block_bytes += -block_bytes % 16
    pool = torch.zeros(n_blocks + 1, block_bytes, dtype=torch.uint8)
    for part in parts:
        for head in range(heads):
            shape = (n_blocks + 1, 16, part.size)
            begin = part.values + head * stride
            if dtype == "int8":
                numbers = _bytes(g, *shape)
                own = (torch.rand(n_blocks + 1, 16, generator=g) / 64).view(torch.uint8)
                at_scale = part.scales + head * stride
                pool[:, at_scale : at_scale + 64] = own.view(n_blocks + 1, 64)
            else:
                to = {"f32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[dtype]
                numbers = normal(g, *shape).to(to).view(torch.uint8)
            pool[:, begin : begin + 16 * BYTES[dtype] * part.size] = numbers.reshape(n_blocks + 1, -1)
    return LayerKv(pool, dtype, 0, tuple(parts))  # type: ignore[arg-type]


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
    return Rows(len(starts), width, *ints, tables=(table,))
