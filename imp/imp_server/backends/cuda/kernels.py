"""Operations by the kernels of kernels/cuda, where one fits; the rest is left to the plain layer.

Which kernel an operation takes depends on shapes and formats alone, so it is the same in each step of a bucket.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import torch

from imp_server.backends.cuda.formats import FORMATS
from imp_server.backends.cuda.launching import Argument, KernelSource, Launcher
from imp_server.backends.cuda.operations import (
    AttentionForm,
    LayerKv,
    NormForm,
    Operations,
    PackedMatrix,
    QkvForm,
    Rows,
)
from imp_server.models.feed_forwards import Activation

Tensor = torch.Tensor

KERNELS = (
    *("add_norm", "norm", "project", "gated_project", "qkv_epilogue", "decode_attention"),
    *("experts_gated", "experts_down", "head_logits", "head_argmax"),
)
"""Operations that kernels can stand in for."""

KV_TYPES = {"f32": 0, "bf16": 1, "fp8": 2, "int8": 3}
_FLOATS = {"F16": 1, "BF16": 2, "F32": 3}
_SCALES = {"f16": 0, "e8m0": 1, "two": 2, "row": 3, "e4m3": 4}
_TABLES = {"IQ4_NL": 1, "IQ4_XS": 1, "MXFP4": 2, "NVFP4": 3}
_GEMV_TOKENS = 8
_GEMV_THREADS, _GEMV_WARPS = 128, 4
_MOST_BLOCKS = 2048
"""Of a GEMV: beyond, a block takes several groups of rows."""


def gemv_source(matrix_format: str, mode: int, n_tokens: int, n_rows: int) -> KernelSource:
    """`mode` as kernels/cuda/gemv.cu counts them; tokens at once, and rows of a warp."""
    if matrix_format in _FLOATS:
        packed = {"FLOATS": _FLOATS[matrix_format]}
    else:
        f = FORMATS[matrix_format]
        packed = {"BITS": f.bits, "GROUP": f.group, "MINIMUM": int(f.minimum), "ZERO": f.zero}
        packed |= {"TABLE": _TABLES.get(matrix_format, 0), "SCALES": _SCALES[f.scales], "FLOAT8": int(f.float8)}
    shape = {"TOKENS": n_tokens, "ROWS": n_rows, "MODE": mode}
    return KernelSource("gemv.cu", tuple((packed | shape).items()))


def attention_source(head_size: int, dtype: str, n_queries: int) -> KernelSource:
    """`n_queries`: most that share a key head's loads; fewer where registers are short."""
    per_load = 16 // {"f32": 4, "bf16": 2}.get(dtype, 1)
    lanes = min(32, 1 << (math.ceil(head_size / per_load) - 1).bit_length())
    own = per_load * math.ceil(head_size / (per_load * lanes))
    queries = min(1 << (n_queries - 1).bit_length(), max(1, 32 // own))
    defines = (("HEAD", head_size), ("KV_TYPE", KV_TYPES[dtype]), ("QUERIES", queries))
    return KernelSource("decode_attention.cu", defines)


@dataclass
class Scratch:
    """Owner of what kernels keep between their launches: one buffer for each name and size, made once."""

    device: torch.device
    _buffers: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def take(self, name: str, n_elements: int, dtype: torch.dtype) -> Tensor:
        key = (name, n_elements)
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(n_elements, dtype=dtype, device=self.device)
        return self._buffers[key]

    @property
    def n_bytes(self) -> int:
        return sum(b.nbytes for b in self._buffers.values())


class KernelOperations:
    """`chosen` names the operations that kernels take; `n_processors` of the card: small matrices are cut finer to keep
    all of them busy. `split`: positions of a piece of decode attention, a multiple of 64."""

    def __init__(
        self,
        plain: Operations,
        launcher: Launcher,
        scratch: Scratch,
        chosen: Collection[str] = KERNELS,
        n_processors: int = 132,
        split: int = 128,
    ) -> None:
        unknown = set(chosen) - set(KERNELS)
        if unknown:
            raise ValueError(f"there are no kernels for {', '.join(sorted(unknown))}")
        self.plain = plain
        self.chosen = frozenset(chosen)
        self.name = "kernels"
        self._launcher, self._scratch = launcher, scratch
        self._n_processors, self._split = n_processors, split

    # What has no kernel is the plain layer's, and so is everything that wasn't chosen.
    def __getattr__(self, operation: str) -> Any:
        return getattr(self.plain, operation)

    def add_norm(self, stream: Tensor, delta: Tensor | None, scale: float, norm: NormForm, out: Tensor) -> None:
        if "add_norm" not in self.chosen:
            self.plain.add_norm(stream, delta, scale, norm, out)
            return
        size = stream.shape[-1]
        args = [stream, delta, scale, norm.weight, norm.bias, norm.eps, int(norm.centred), out, size]
        self._launcher.launch(KernelSource("norm.cu"), "add_norm", (len(stream), 1, 1), _row_threads(size), args)

    def norm(self, x: Tensor, norm: NormForm, out: Tensor) -> None:
        if "norm" not in self.chosen or x.dim() != 2:
            self.plain.norm(x, norm, out)
            return
        size, strides = x.shape[-1], (np.int64(x.stride(0)), np.int64(out.stride(0)))
        args: list[Argument] = [x, strides[0], norm.weight, norm.bias, norm.eps, int(norm.centred), out, strides[1]]
        grid = (len(x), 1, 1)
        self._launcher.launch(KernelSource("norm.cu"), "norm_rows", grid, _row_threads(size), [*args, size])

    def project(self, x: Tensor, matrix: PackedMatrix, bias: Tensor | None, out: Tensor) -> None:
        if "project" not in self.chosen or not _fits_gemv(x, matrix):
            self.plain.project(x, matrix, bias, out)
            return
        self._gemv(0, x, (matrix, None), (bias, None), out)

    def gated_project(
        self,
        x: Tensor,
        gate: PackedMatrix,
        up: PackedMatrix,
        biases: tuple[Tensor, Tensor] | None,
        act: Activation,
        out: Tensor,
    ) -> None:
        if "gated_project" not in self.chosen or not _fits_gemv(x, gate) or gate.format != up.format:
            self.plain.gated_project(x, gate, up, biases, act, out)
            return
        self._gemv(1, x, (gate, up), biases or (None, None), out, act=act)

    def head_logits(
        self, hidden: Tensor, head: PackedMatrix, bias: Tensor | None, scale: float, softcap: float, out: Tensor
    ) -> None:
        if "head_logits" not in self.chosen or not _fits_gemv(hidden, head):
            self.plain.head_logits(hidden, head, bias, scale, softcap, out)
            return
        self._gemv(2, hidden, (head, None), (bias, None), out, scale=scale, softcap=softcap)

    def head_argmax(
        self, hidden: Tensor, head: PackedMatrix, bias: Tensor | None, scale: float, softcap: float, out: Tensor
    ) -> None:
        if "head_argmax" not in self.chosen or not _fits_gemv(hidden, head):
            self.plain.head_argmax(hidden, head, bias, scale, softcap, out)
            return
        n = len(hidden)
        keys = self._scratch.take("keys", n, torch.int64)
        source, _ = self._cut(3, head.format, head.n_out, _pow2(n))
        self._launcher.launch(source, "clear_keys", (1, 1, 1), _GEMV_THREADS, [keys, n])
        self._gemv(3, hidden, (head, None), (bias, None), None, scale=scale, softcap=softcap, keys=keys)
        self._launcher.launch(source, "best_ids", (1, 1, 1), _GEMV_THREADS, [keys, n, out])

    def _gemv(
        self,
        mode: int,
        x: Tensor,
        matrices: tuple[PackedMatrix, PackedMatrix | None],
        biases: tuple[Tensor | None, Tensor | None],
        out: Tensor | None,
        act: Activation = "silu",
        scale: float = 1.0,
        softcap: float = 0.0,
        keys: Tensor | None = None,
    ) -> None:
        n, first = len(x), matrices[0]
        source, n_blocks = self._cut(mode, first.format, first.n_out, _pow2(n))
        stride = np.int64(0 if out is None else out.stride(0))
        args = [*_planes(first), *_planes(matrices[1] or first), first.n_out, first.n_in, x, np.int64(x.stride(0)), n]
        args += [*biases, get_args(Activation).index(act), float(scale), float(softcap), out, stride, keys]
        self._launcher.launch(source, "gemv", (n_blocks, 1, 1), _GEMV_THREADS, args)

    def _cut(self, mode: int, matrix_format: str, n_out: int, n_tokens: int) -> tuple[KernelSource, int]:
        """The instantiation for a matrix, and how many blocks it is launched with."""
        gated = mode in (1, 4)
        each = 4
        while each > 1 and n_out < each * _GEMV_WARPS * 2 * self._n_processors and mode != 3:
            each //= 2
        rows = min(2 * each if gated else each, 4, max(2, 16 // n_tokens))
        outputs = _GEMV_WARPS * (rows // 2 if gated else rows)
        return gemv_source(matrix_format, mode, n_tokens, rows), min(_MOST_BLOCKS, -(-n_out // outputs))

    def experts_gated(
        self,
        x: Tensor,
        chosen: Tensor,
        on_input: Tensor | None,
        gate: PackedMatrix,
        up: PackedMatrix,
        biases: tuple[Tensor, Tensor] | None,
        act: Activation,
        out: Tensor,
    ) -> None:
        if "experts_gated" not in self.chosen or not _fits_gemv(x, gate) or gate.format != up.format:
            self.plain.experts_gated(x, chosen, on_input, gate, up, biases, act, out)
            return
        n_out, top_k = out.shape[-1], chosen.shape[1]
        source, n_blocks = self._cut(4, gate.format, n_out, 1)
        args = [*_planes(gate), *_planes(up), n_out, gate.n_in, x, np.int64(x.stride(0)), top_k, chosen, on_input]
        args += [*(biases or (None, None)), get_args(Activation).index(act), out]
        self._launcher.launch(source, "experts_gated", (n_blocks, chosen.numel(), 1), _GEMV_THREADS, args)

    def experts_down(
        self,
        hidden: Tensor,
        chosen: Tensor,
        weights: Tensor | None,
        down: PackedMatrix,
        bias: Tensor | None,
        out: Tensor,
    ) -> None:
        if "experts_down" not in self.chosen or not _fits_gemv(out, down):
            self.plain.experts_down(hidden, chosen, weights, down, bias, out)
            return
        n_out = out.shape[-1]
        source = gemv_source(down.format, 5, 1, 2)
        grid = (-(-n_out // (2 * _GEMV_WARPS)), len(out), 1)
        args = [*_planes(down), n_out, down.n_in, hidden, chosen.shape[1], chosen, weights, bias, out]
        self._launcher.launch(source, "experts_down", grid, _GEMV_THREADS, args)

    def qkv_epilogue(
        self, qkv: Tensor, form: QkvForm, rows: Rows, kv: LayerKv | None, q: Tensor, gate: Tensor | None
    ) -> None:
        norms = (form.q_norm, form.k_norm, form.v_norm)
        is_simple = form.order != "whole" and not any(n and (n.centred or n.bias is not None) for n in norms)
        if "qkv_epilogue" not in self.chosen or not is_simple or form.head_size > 512:
            self.plain.qkv_epilogue(qkv, form, rows, kv, q, gate)
            return
        heat, rotation, starts = form.temperature, form.rotation, rows.starts
        args: list[Argument] = [qkv, np.int64(qkv.stride(0)), form.n_heads, form.n_kv_heads]
        args += [form.head_size, form.value_size, int(form.gated), int(form.keys_are_values)]
        args += [int(form.order == "rope_first"), *_norm(form.q_norm), *_norm(form.k_norm)]
        args += [int(form.k_norm is not None)]
        args += [_norm(form.v_norm)[1], int(form.v_norm is not None), int(form.q_norm is not None)]
        args += [rotation.table, rotation.dims, int(rotation.interleaved)] if rotation else [None, 0, 0]
        args += [float(heat.share), heat.step, heat.offset] if heat else [0.0, 1, 0]
        table = rows.tables[kv.group] if kv else None
        args += [rows.width, starts, rows.counts, table, 0 if table is None else table.shape[1]]
        args += [*_places(kv), q, gate]
        source = KernelSource("qkv.cu", (("KV_TYPE", KV_TYPES[kv.dtype if kv else "f32"]),))
        n_units = form.n_heads + (2 * form.n_kv_heads if kv else 0)
        self._launcher.launch(source, "qkv_epilogue", (-(-n_units // 4), rows.n_tokens, 1), 128, args)

    def decode_attention(
        self, q: Tensor, rows: Rows, kv: LayerKv, form: AttentionForm, gate: Tensor | None, out: Tensor
    ) -> None:
        head_size, part = q.shape[-1], kv.parts[0]
        is_simple = part.size == kv.parts[1].size == head_size == out.shape[-1]
        is_simple &= part.heads == kv.parts[1].heads == form.n_kv_heads and head_size % 16 == 0 and head_size <= 512
        if "decode_attention" not in self.chosen or not is_simple:
            self.plain.decode_attention(q, rows, kv, form, gate, out)
            return
        table = rows.tables[kv.group]
        group = form.n_heads // form.n_kv_heads
        source = attention_source(head_size, kv.dtype, group * rows.width)
        n_queries = dict(source.defines)["QUERIES"]
        n_splits = -(-table.shape[1] * 16 // self._split)
        n_partials = rows.n_tokens * form.n_heads * n_splits
        outs = self._scratch.take("partial outputs", n_partials * head_size, torch.float32)
        tops = self._scratch.take("partial sums", n_partials * 2, torch.float32)
        args: list[Argument] = [q, form.n_heads, form.n_kv_heads, rows.width, rows.starts, rows.counts, table]
        args += [table.shape[1], *_places(kv), float(form.scale), form.window, form.chunk, float(form.softcap)]
        grid = (n_splits, form.n_kv_heads * -(-group * rows.width // n_queries), rows.n_rows)
        self._launcher.launch(source, "decode_attention", grid, 128, [*args, self._split, outs, tops])
        merged: list[Argument] = [outs, tops, n_splits, form.n_heads, rows.width, rows.starts, rows.counts]
        merged += [form.window, form.chunk, self._split, form.sinks, gate, out]
        self._launcher.launch(source, "merge_splits", (form.n_heads, rows.n_tokens, 1), 128, merged)


def _row_threads(size: int) -> int:
    return min(1024, max(32, -(-size // 4 // 32) * 32))


def _pow2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _fits_gemv(x: Tensor, matrix: PackedMatrix) -> bool:
    unit = {"F16": 8, "BF16": 8, "F32": 4}.get(matrix.format, 32)
    return len(x) <= _GEMV_TOKENS and matrix.n_in % unit == 0


def _planes(matrix: PackedMatrix) -> list[Argument]:
    m = matrix
    return [m.codes, m.high, m.scale, m.minimum, m.sub_scale, m.sub_minimum, float(m.whole_scale)]


def _norm(norm: NormForm | None) -> tuple[Tensor | None, float]:
    return (norm.weight, float(norm.eps)) if norm else (None, 0.0)


def _places(kv: LayerKv | None) -> list[Argument]:
    """Of keys and values: pool, bytes of a block, then values, scales and stride of each."""
    if kv is None:
        return [None, *[np.int64(0)] * 7]
    parts = [np.int64(n) for part in kv.parts for n in (part.values, part.scales, part.stride)]
    return [kv.pool, np.int64(kv.block_bytes), *parts]
