"""Cases become calls: arguments of the described shapes, random, and such as the operation may be given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from imp_server.backends.cuda import operations as listed
from imp_server.backends.cuda.operations import (
    Floats,
    Ints,
    KvPart,
    LayerKv,
    PackedMatrix,
    Rows,
    SampleInputs,
    SampleOutputs,
    SlotState,
)
from imp_server.backends.cuda.proof.cases import OperationCall
from imp_server.backends.cuda.proof.made_up import filled_pool, matrix, normal, seeded, whole

Tensor = torch.Tensor
OUTPUTS = {
    "qkv_epilogue": ("q", "gate"),
    "route": ("chosen", "weights"),
}
"""Arguments that are written, where that isn't `out` alone."""
MOST_BLOCKS = 2048
"""Of a made-up pool; longer tables name blocks more than once."""
VOCABULARY = 151


def made(case: OperationCall, device: torch.device, seed: int) -> dict[str, Any]:
    """Its arguments by name."""
    g = seeded(seed, device)
    maker = _Maker(case, g)
    found = {name: maker.made(name, value) for name, value in case.arguments.items()}
    for name, value in case.arguments.items():
        if isinstance(value, dict) and "same" in value:
            found[name] = found[value["same"]]
    _make_sense(case.operation, found, g)
    for name in OUTPUTS.get(case.operation, ("out",)):
        value = case.arguments.get(name)
        if isinstance(value, dict) and "tensor" in value:
            found[name].fill_(float("nan") if found[name].is_floating_point() else -7)
    return found


class _Maker:
    def __init__(self, case: OperationCall, g: torch.Generator) -> None:
        self._g, self._case = g, case
        rows = case.arguments.get("rows")
        self._shape: list[int] = rows["rows"] if rows else [1, 1, 1]

    def made(self, name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, own),) = value.items()
        return getattr(self, f"_{kind}")(name, own)

    def _same(self, name: str, own: str) -> None:
        return None

    def _tensor(self, name: str, own: Any) -> Tensor:
        dtype, shape, stride = getattr(torch, own[0]), tuple(own[1]), own[2]
        inner = 1
        for size in shape[1:]:
            inner *= size
        wide = (shape[0], max(stride, inner)) if len(shape) > 1 else shape
        made = normal(self._g, *wide) if dtype.is_floating_point else whole(self._g, 0, 2, *wide)
        made = made.to(dtype)
        if len(shape) < 2:
            return made
        rows = made[:, :inner]
        return rows if len(shape) == 2 else rows.contiguous().view(shape)

    def _matrix(self, name: str, own: Any) -> PackedMatrix:
        return matrix(own[0], own[1], own[2], len(name), self._g.device)

    def _tuple(self, name: str, own: Any) -> tuple[Any, ...]:
        return tuple(self.made(name, each) for each in own)

    def _form(self, name: str, own: Any) -> Any:
        kind, values = own
        return getattr(listed, kind)(**{key: self.made(key, value) for key, value in values.items()})

    def _kv(self, name: str, own: Any) -> LayerKv:
        parts = tuple(KvPart(*part) for part in own["parts"])
        ends = [p.heads * p.stride + min(p.values, p.stride) for p in parts]
        ends += [p.values + (p.heads - 1) * p.stride + 16 * p.size * 4 for p in parts]
        block_bytes = max(ends) + -max(ends) % 16
        pool = filled_pool(own["dtype"], _n_blocks(*self._shape), block_bytes, parts, self._g)
        return LayerKv(pool, own["dtype"], 0, (parts[0], parts[1]), own["latent"])

    def _rows(self, name: str, own: Any) -> Rows:
        return ragged(own[0], own[1], own[2], self._g)

    def _slots(self, name: str, own: Any) -> SlotState:
        _, capacity = own
        n = 1 + max(self._shape[0], self._case.arguments.get("inputs", {"sampled": [0]})["sampled"][0])
        return SlotState(whole(self._g, 0, VOCABULARY, n), whole(self._g, 0, VOCABULARY, n, capacity))

    def _outputs(self, name: str, own: Any) -> SampleOutputs:
        n, width, n_logprobs, k = own
        on: dict[str, Any] = {"dtype": torch.int32, "device": self._g.device}
        tokens, n_tokens, n_accepted, flags = (torch.full(s, -7, **on) for s in ((n, width), (n,), (n,), (n,)))
        logprobs = torch.zeros((n, width, n_logprobs), device=self._g.device)
        ranks, top_ids = torch.zeros((n, width), **on), torch.zeros((n, width, k), **on)
        return SampleOutputs(tokens, n_tokens, n_accepted, flags, logprobs, ranks, top_ids)

    def _sampled(self, name: str, own: Any) -> SampleInputs:
        vocab = self._case.arguments["logits"]["tensor"][1][1] if "logits" in self._case.arguments else VOCABULARY
        return sampled(own, vocab, self._g)


def _n_blocks(n_rows: int, width: int, columns: int) -> int:
    return max(_written(n_rows, width), min(MOST_BLOCKS, n_rows * columns))


def _written(n_rows: int, width: int) -> int:
    """Most blocks that a rectangle writes to."""
    return n_rows * (width // 16 + 2)


def ragged(n_rows: int, width: int, columns: int, g: torch.Generator) -> Rows:
    """The first row as long as its table, the last one padding where there are some, the others anything between."""
    n_blocks, last = _n_blocks(n_rows, width, columns), columns * 16 - width
    on: dict[str, Any] = {"device": g.device, "dtype": torch.int32}
    starts, counts = whole(g, 0, last + 1, n_rows), whole(g, 1, width + 1, n_rows)
    starts[0], counts[0] = last, width
    if n_rows > 2:
        starts[-1], counts[-1] = 0, 0
    table = whole(g, 0, n_blocks, n_rows, columns)
    order = torch.randperm(n_blocks, generator=g, device=g.device).to(torch.int32)
    # Blocks that are written to belong to one row alone; those behind a row's end to nobody.
    column = torch.arange(columns, **on)[None]
    first, end = starts[:, None] // 16, (starts + counts + 15)[:, None] // 16
    at = torch.arange(n_rows, **on)[:, None] * (width // 16 + 2) + (column - first).clamp(0, width // 16 + 1)
    is_written = (column >= first) & (column < end)
    written = order[at.clamp(max=n_blocks - 1).long()]
    free = order[_written(n_rows, width) :]
    if len(free):
        table = free[(table % len(free)).long()]
    table = torch.where(is_written, written, table)
    table = torch.where(column < end, table, -1)
    return Rows(n_rows, width, torch.arange(n_rows, **on), starts, counts, tables=(table.contiguous(),))


def sampled(own: Any, vocab: int, g: torch.Generator) -> SampleInputs:
    """Rows of every kind of law that the bucket has."""
    n, width, n_biases, uses_history, n_read, draws, n_logprobs = own
    ints = torch.zeros((n, len(Ints)), dtype=torch.int32, device=g.device)
    row = torch.arange(n, device=g.device)
    ints[:, Ints.N_POSITIONS] = whole(g, 1, width + 1, n)
    ints[:, Ints.MASK_FIRST] = torch.where(row % 2 == 0, (row * width).int(), -1)
    ints[:, Ints.N_HISTORY] = whole(g, 1, max(2, n_read + 1), n)
    ints[:, Ints.N_PROMPT] = ints[:, Ints.N_HISTORY] // 2
    ints[:, Ints.REPEAT_LAST_N] = whole(g, 0, 64, n)
    ints[:, Ints.TOP_K] = torch.where(row % 3 == 0, 0, whole(g, 1, min(50, vocab), n))
    ints[:, Ints.SEED_LOW], ints[:, Ints.SEED_HIGH] = whole(g, -(2**31), 2**31, n), whole(g, -(2**31), 2**31, n)
    ints[:, Ints.CHOICE], ints[:, Ints.POSITION] = whole(g, 0, 4, n), whole(g, 0, 1000, n)
    ints[:, Ints.COUNTS] = int(uses_history)
    floats = torch.zeros((n, len(Floats)), dtype=torch.float64, device=g.device)
    floats[:, Floats.TEMPERATURE] = torch.where(row % 4 == 3, 0.0, 0.8) if draws else 0.0
    floats[:, Floats.TOP_P] = torch.where(row % 3 == 1, 0.9, 1.0)
    floats[:, Floats.MIN_P] = torch.where(row % 5 == 4, 0.05, 0.0)
    floats[:, Floats.REPETITION], floats[:, Floats.PRESENCE], floats[:, Floats.FREQUENCY] = 1.2, 0.2, 0.1
    masks = whole(g, -(2**31), 2**31, n * width, -(-vocab // 32))
    ids = torch.stack([torch.randperm(vocab, generator=g, device=g.device)[:n_biases] for _ in range(n)]).int()
    drafts = whole(g, 0, vocab, n, width - 1)
    return SampleInputs(
        ints, floats, row.int(), drafts, ids, 2 * normal(g, n, n_biases), masks, uses_history, n_read, draws, n_logprobs
    )


def _make_sense(operation: str, found: dict[str, Any], g: torch.Generator) -> None:
    """Whole numbers that name something get what there is."""
    if operation == "embed":
        found["ids"].copy_(whole(g, -1, found["table"].n_out, len(found["ids"])))
    elif operation in ("experts_gated", "experts_down"):
        chosen = found["chosen"]
        size = found["out"].shape[-1]
        count = (found["gate"] if operation == "experts_gated" else found["down"]).n_out // size
        order = torch.rand((len(chosen), count), generator=g, device=g.device).argsort(dim=1)
        chosen.copy_(order[:, : chosen.shape[1]])
    elif operation == "take_best":
        found["best"].copy_(whole(g, 0, VOCABULARY, len(found["best"])))
    elif operation == "copy_blocks":
        pool, pairs = found["pool"], found["pairs"]
        pool.copy_(whole(g, 0, 256, *pool.shape, dtype=torch.uint8))
        n = len(pairs)
        pairs[:, 0] = whole(g, 0, len(pool), n)
        pairs[:, 1] = torch.randperm(len(pool), generator=g, device=g.device)[:n]
    elif operation == "sample":
        found["logits"].mul_(3)


def copied(arguments: dict[str, Any]) -> dict[str, Any]:
    """With tensors of its own, but for weights; what was one tensor stays one."""
    known: dict[int, Any] = {}
    return {name: _copied(value, known) for name, value in arguments.items()}


def _copied(value: Any, known: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        if id(value) not in known:
            own = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            known[id(value)] = own.copy_(value)
        return known[id(value)]
    if isinstance(value, LayerKv):
        return replace(value, pool=value.pool.clone())
    if isinstance(value, SlotState):
        return SlotState(value.last.clone(), value.histories.clone())
    if isinstance(value, SampleOutputs):
        names = SampleOutputs.__dataclass_fields__
        return SampleOutputs(**{name: getattr(value, name).clone() for name in names})
    return value


def tensors_of(arguments: dict[str, Any]) -> list[Tensor]:
    """Those that `copied` made, in order."""
    found: list[Tensor] = []
    for value in arguments.values():
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, LayerKv):
            found.append(value.pool)
        elif isinstance(value, SlotState):
            found += [value.last, value.histories]
        elif isinstance(value, SampleOutputs):
            found += [getattr(value, name) for name in SampleOutputs.__dataclass_fields__]
    return found
