"""Some operations once more, from the words of operations.py alone: numpy, float64, one token at a time, padding left
as it was. They stand in for kernels in tests of random subsets."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any, cast

import numpy as np
import torch
from imp_server.backends.cuda.operations import (
    AttentionForm,
    Floats,
    Ints,
    LayerKv,
    NormForm,
    Operations,
    PackedMatrix,
    QkvForm,
    RouterForm,
    Rows,
    SampleInputs,
    SampleOutputs,
    SlotState,
)
from imp_server.backends.cuda.plain.operations import PlainOperations
from imp_server.backends.cuda.plain.weights import dequantised
from imp_server.core import SamplingParams
from imp_server.decode.logprobs import position_logprobs
from imp_server.decode.processors import process
from imp_server.decode.sampling import sample as sample_by_law

Array = np.ndarray[Any, Any]


def _values(matrix: PackedMatrix) -> Array:
    return dequantised(matrix).numpy().astype(np.float64)


def _normed(x: Array, norm: NormForm) -> Array:
    if norm.centred:
        x = x - x.mean()
    x = x / math.sqrt(float((x * x).mean()) + norm.eps)
    if norm.weight is not None:
        x = x * norm.weight.numpy()
    return x if norm.bias is None else x + norm.bias.numpy()


def add_norm(stream: Any, delta: Any, scale: float, norm: NormForm, out: Any) -> None:
    if delta is not None:
        stream += torch.from_numpy(delta.numpy() * np.float32(scale))
    for i, line in enumerate(stream.numpy().astype(np.float64)):
        out[i] = torch.from_numpy(_normed(line, norm))


def project(x: Any, matrix: PackedMatrix, bias: Any, out: Any) -> None:
    weights = _values(matrix)
    for i, line in enumerate(x.numpy().astype(np.float64)):
        out[i] = torch.from_numpy(weights @ line + (0.0 if bias is None else bias.numpy()))


def gated_project(x: Any, gate: PackedMatrix, up: PackedMatrix, biases: Any, act: str, out: Any) -> None:
    assert act == "silu"
    b0, b1 = (0.0, 0.0) if biases is None else (b.numpy() for b in biases)
    for i, line in enumerate(x.numpy().astype(np.float64)):
        g, u = _values(gate) @ line + b0, _values(up) @ line + b1
        out[i] = torch.from_numpy(g / (1 + np.exp(-g)) * u)


def _real_tokens(rows: Rows) -> Iterator[tuple[int, int, int]]:
    """Token, row, position."""
    for r in range(rows.n_rows):
        for j in range(int(rows.counts[r])):
            yield r * rows.width + j, r, int(rows.starts[r]) + j


def _vector(kv: LayerKv, part: int, block: int, head: int, place: int) -> Array:
    """A view of the bytes of one vector, and its scale."""
    p = kv.parts[part]
    size = {"f32": 4, "bf16": 2, "int8": 1, "fp8": 1}[kv.dtype]
    at = block * kv.block_bytes + p.values + head * p.stride + place * p.size * size
    return kv.pool.numpy().reshape(-1)[at : at + p.size * size]


def _read(kv: LayerKv, part: int, block: int, head: int, place: int) -> Array:
    raw = _vector(kv, part, block, head, place)
    if kv.dtype == "f32":
        return raw.view(np.float32).astype(np.float64)
    assert kv.dtype == "bf16"
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _write(kv: LayerKv, part: int, block: int, head: int, place: int, x: Array) -> None:
    raw = _vector(kv, part, block, head, place)
    wide = x.astype(np.float32)
    if kv.dtype == "f32":
        raw[:] = wide.view(np.uint8)
        return
    bits = wide.view(np.uint32).astype(np.uint64)
    raw[:] = (
        ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16).view(np.uint8)
    )


def _turned(x: Array, form: QkvForm, position: int) -> Array:
    rotation = form.rotation
    if rotation is None:
        return x
    n = rotation.dims // 2
    line, out = rotation.table[position].numpy().astype(np.float64), x.copy()
    for i in range(n):
        a, b = (2 * i, 2 * i + 1) if rotation.interleaved else (i, n + i)
        out[a], out[b] = x[a] * line[i] - x[b] * line[n + i], x[a] * line[n + i] + x[b] * line[i]
    return out


def qkv_epilogue(qkv: Any, form: QkvForm, rows: Rows, kv: LayerKv | None, q: Any, gate: Any) -> None:
    """Without gates, norms over whole vectors and temperatures."""
    assert not form.gated and form.order == "norm_first" and form.temperature is None and kv is not None
    size, n_kv = form.head_size, form.n_kv_heads

    def placed(x: Array, norm: NormForm | None, position: int) -> Array:
        return _turned(x if norm is None else _normed(x, norm), form, position)

    for t, r, position in _real_tokens(rows):
        line = qkv[t].numpy().astype(np.float64)
        for head in range(form.n_heads):
            q[t, head] = torch.from_numpy(placed(line[head * size :][:size], form.q_norm, position))
        block = int(rows.tables[kv.group][r, position // 16])
        for head in range(n_kv):
            k = line[form.q_width + head * size :][:size]
            v = line[form.q_width + n_kv * size + head * form.value_size :][: form.value_size]
            _write(kv, 0, block, head, position % 16, placed(k, form.k_norm, position))
            _write(kv, 1, block, head, position % 16, v if form.v_norm is None else _normed(v, form.v_norm))


def attention(q: Any, rows: Rows, kv: LayerKv, form: AttentionForm, gate: Any, out: Any) -> None:
    table, group = rows.tables[kv.group], form.n_heads // form.n_kv_heads
    for t, r, position in _real_tokens(rows):
        first = max(0, position - form.window + 1) if form.window else 0
        seen = [(int(table[r, p // 16]), p % 16) for p in range(first, position + 1)]
        for head in range(form.n_heads):
            query = q[t, head].numpy().astype(np.float64)
            keys = np.stack([_read(kv, 0, block, head // group, place) for block, place in seen])
            values = np.stack([_read(kv, 1, block, head // group, place) for block, place in seen])
            scores = keys @ query * form.scale
            if form.softcap:
                scores = form.softcap * np.tanh(scores / form.softcap)
            more = [] if form.sinks is None else [float(form.sinks[head])]
            peak = max([*scores, *more])
            weights = np.exp(scores - peak)
            made = weights @ values / (weights.sum() + sum(math.exp(s - peak) for s in more))
            opened = 1.0 if gate is None else 1 / (1 + np.exp(-gate[t, head].numpy().astype(np.float64)))
            out[t, head] = torch.from_numpy(made * opened)


def route(logits: Any, form: RouterForm, chosen: Any, weights: Any) -> None:
    assert form.gating == "softmax" and form.selection_bias is None and form.n_groups == 1
    for t, line in enumerate(logits.numpy().astype(np.float64)):
        order = sorted(range(form.count), key=lambda e: (-line[e], e))[: form.top_k]
        shares = np.exp(line - line.max()) / np.exp(line - line.max()).sum()
        own = shares[order] / (shares[order].sum() if form.normalise else 1.0) * form.scale
        chosen[t], weights[t] = torch.tensor(order, dtype=torch.int32), torch.from_numpy(own)


def head_argmax(hidden: Any, head: PackedMatrix, bias: Any, scale: float, softcap: float, out: Any) -> None:
    weights = _values(head).astype(np.float32)
    for i, line in enumerate(hidden.numpy()):
        made = weights @ line + (0.0 if bias is None else bias.numpy())
        out[i] = -1 if np.isnan(made).any() else int(made.argmax())


def sample(logits: Any, inputs: SampleInputs, slots: SlotState, out: SampleOutputs) -> None:
    """By the law itself, position by position."""
    n_rows, width = out.tokens.shape
    for r in range(n_rows):
        _sample_row(logits.view(n_rows, width, -1)[r].numpy(), r, inputs, slots, out)


def _sample_row(logits: Array, r: int, inputs: SampleInputs, slots: SlotState, out: SampleOutputs) -> None:
    ints = {name: int(inputs.ints[r, name]) for name in Ints}
    for name in ("n_tokens", "n_accepted", "flags"):
        getattr(out, name)[r] = 0
    if not ints[Ints.N_POSITIONS]:
        return
    slot = int(inputs.slots[r])
    params = _params(inputs, r, ints)
    history = (
        slots.histories[slot, : ints[Ints.N_HISTORY]].numpy() if ints[Ints.COUNTS] else np.zeros(0, dtype=np.int32)
    )
    tokens: list[int] = []
    for j in range(ints[Ints.N_POSITIONS]):
        raw = logits[j].copy()
        for token_id, bias in zip(inputs.bias_ids[r].tolist(), inputs.biases[r].numpy(), strict=True):
            if token_id >= 0:
                raw[token_id] += bias
        text = np.concatenate([history, np.array(tokens, dtype=np.int32)])
        mask = None
        if ints[Ints.MASK_FIRST] >= 0:
            mask = inputs.masks[ints[Ints.MASK_FIRST] + j].numpy().view(np.uint32)
        processed = process(raw, params, text, min(ints[Ints.N_PROMPT], len(text)), mask)
        choice = ints[Ints.CHOICE] & 0xFFFFFFFF
        try:
            token_id = sample_by_law(processed, params, choice, ints[Ints.POSITION] + j, 0.0).id
        except FloatingPointError:
            tokens, out.flags[r] = [], 2
            break
        if token_id < 0:
            out.flags[r] = 1
            break
        out.tokens[r, j] = token_id
        if inputs.n_logprobs >= 0:
            entry = position_logprobs(processed, token_id, inputs.n_logprobs)
            out.ranks[r, j], out.logprobs[r, j, 0] = entry.rank, entry.token
            if inputs.n_logprobs:
                out.top_ids[r, j] = torch.from_numpy(entry.top_ids)
                out.logprobs[r, j, 1:] = torch.from_numpy(entry.top)
        tokens.append(token_id)
        if j + 1 < ints[Ints.N_POSITIONS] and token_id == int(inputs.drafts[r, j]):
            out.n_accepted[r] += 1
        else:
            break
    out.n_tokens[r] = len(tokens)
    slots.last[slot] = tokens[-1] if tokens else -1
    for i, token_id in enumerate(tokens):
        if inputs.uses_history and ints[Ints.N_HISTORY] + i < slots.histories.shape[1]:
            slots.histories[slot, ints[Ints.N_HISTORY] + i] = token_id


def _params(inputs: SampleInputs, r: int, ints: dict[Ints, int]) -> SamplingParams:
    values = {name: float(inputs.floats[r, name]) for name in Floats}
    seed = (ints[Ints.SEED_HIGH] & 0xFFFFFFFF) << 32 | ints[Ints.SEED_LOW] & 0xFFFFFFFF
    return SamplingParams(
        temperature=values[Floats.TEMPERATURE],
        top_k=ints[Ints.TOP_K],
        top_p=values[Floats.TOP_P],
        min_p=values[Floats.MIN_P],
        repetition_penalty=values[Floats.REPETITION],
        presence_penalty=values[Floats.PRESENCE],
        frequency_penalty=values[Floats.FREQUENCY],
        repeat_last_n=ints[Ints.REPEAT_LAST_N],
        seed=seed,
    )


NAIVE = {
    "add_norm": add_norm,
    "project": project,
    "gated_project": gated_project,
    "qkv_epilogue": qkv_epilogue,
    "decode_attention": attention,
    "prefill_attention": attention,
    "route": route,
    "head_argmax": head_argmax,
    "sample": sample,
}

OPERATIONS: tuple[str, ...] = tuple(
    name for name, value in vars(Operations).items() if callable(value) and not name.startswith("_")
)
"""The names of all that are on the list."""


class Mixed:
    """The naive operations of some names, the plain ones for the rest."""

    def __init__(self, plain: Operations, names: Collection[str]) -> None:
        self.name = f"{plain.name}, naively {', '.join(names)}"
        for name in OPERATIONS:
            setattr(self, name, NAIVE[name] if name in names else getattr(plain, name))


def mixed(names: Collection[str]) -> Operations:
    return cast(Operations, cast(Any, Mixed(PlainOperations(), names)))
