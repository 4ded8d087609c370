"""Operations by the kernels of kernels/cuda, where one fits; the rest is left to the plain layer.

Which kernel an operation takes depends on shapes and formats alone, so it is the same in each step of a bucket.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
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
    RouterForm,
    Rows,
    SampleInputs,
    SampleOutputs,
    SlotState,
)
from imp_server.models.feed_forwards import Activation

Tensor = torch.Tensor

KERNELS = (
    *("add_norm", "norm", "project", "gated_project", "qkv_epilogue", "decode_attention"),
    *("experts_gated", "experts_down", "head_logits", "head_argmax"),
    *("embed", "add", "activate", "route", "copy_blocks", "take_best", "sample"),
    "prefill_attention",
)
"""Operations that kernels can stand in for."""

KV_TYPES = {"f32": 0, "bf16": 1, "fp8": 2, "int8": 3, "int4": 4, "nvfp4": 5}
FOUR_BITS = ("int4", "nvfp4")
_FLOATS = {"F16": 1, "BF16": 2, "F32": 3}
_SCALES = {"f16": 0, "e8m0": 1, "two": 2, "row": 3, "e4m3": 4}
_TABLES = {"IQ4_NL": 1, "IQ4_XS": 1, "MXFP4": 2, "NVFP4": 3}
_GEMV_TOKENS, _GEMM_TOKENS = 8, 64
_GEMV_THREADS, _GEMV_WARPS = 128, 4
_PAIRS = 64
"""Of an id and a query head, that a block of prefill attention takes."""
_MOST_PIECES = 256
"""Of the vocabulary, in sampling."""
_MOST_BLOCKS = 2048
"""Of a GEMV: beyond, a block takes several groups of rows."""


class ProductMode(IntEnum):
    """What follows the products of a matrix: MODE of kernels/cuda/gemv.cu; gemm.cu has the first three."""

    bias = 0
    gate = 1
    head = 2
    best = 3
    expert_gate = 4
    expert_sum = 5


def format_defines(matrix_format: str) -> dict[str, int]:
    """The macros of kernels/cuda/weights.h."""
    if matrix_format in _FLOATS:
        return {"FLOATS": _FLOATS[matrix_format]}
    f = FORMATS[matrix_format]
    packed = {"BITS": f.bits, "GROUP": f.group, "MINIMUM": int(f.minimum), "ZERO": f.zero}
    return packed | {"TABLE": _TABLES.get(matrix_format, 0), "SCALES": _SCALES[f.scales], "FLOAT8": int(f.float8)}


def gemv_source(matrix_format: str, product: ProductMode, n_tokens: int, n_rows: int) -> KernelSource:
    """`n_tokens` at once, `n_rows` of a warp."""
    shape = {"TOKENS": n_tokens, "ROWS": n_rows, "MODE": int(product)}
    return KernelSource("gemv.cu", tuple((format_defines(matrix_format) | shape).items()))


def gemm_source(matrix_format: str, product: ProductMode, n_tokens: int) -> KernelSource:
    """For 9 to 64 tokens; a block takes 8 COLUMNS of them, fewer where two matrices take the registers."""
    columns = min(4 if product == ProductMode.gate else 8, _pow2(-(-n_tokens // 8)))
    shape = {"COLUMNS": columns, "MODE": int(product)}
    return KernelSource("gemm.cu", tuple((format_defines(matrix_format) | shape).items()))


def attention_rules(softcap: bool = False, limited: bool = False) -> dict[str, int]:
    """`limited`: by a window or chunks."""
    return {"SOFTCAP": int(softcap), "LIMITED": int(limited)}


def prefill_source(head_size: int, dtype: str, softcap: bool = False, limited: bool = False) -> KernelSource:
    defines = {"HEAD": head_size, "KV_TYPE": KV_TYPES[dtype]} | attention_rules(softcap, limited)
    return KernelSource("prefill_attention.cu", tuple(defines.items()))


def attention_source(
    head_size: int, dtype: str, n_queries: int, softcap: bool = False, limited: bool = False
) -> KernelSource:
    """`n_queries`: most that share a key head's loads; fewer where registers are short."""
    per_load = 128 // {"f32": 32, "bf16": 16, "int4": 4, "nvfp4": 4}.get(dtype, 8)
    lanes = min(32, 1 << (math.ceil(head_size / per_load) - 1).bit_length())
    own = per_load * math.ceil(head_size / (per_load * lanes))
    queries = min(1 << (n_queries - 1).bit_length(), max(1, 32 // own))
    defines = {"HEAD": head_size, "KV_TYPE": KV_TYPES[dtype], "QUERIES": queries} | attention_rules(softcap, limited)
    return KernelSource("decode_attention.cu", tuple(defines.items()))


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
    all of them busy. `split`: positions of a piece of decode attention, a multiple of 64. `rounds`: tensor cores may be
    used, which round activations to bfloat16."""

    def __init__(
        self,
        plain: Operations,
        launcher: Launcher,
        scratch: Scratch,
        chosen: Collection[str] = KERNELS,
        n_processors: int = 132,
        split: int = 128,
        rounds: bool = True,
    ) -> None:
        unknown = set(chosen) - set(KERNELS)
        if unknown:
            raise ValueError(f"there are no kernels for {', '.join(sorted(unknown))}")
        self.plain = plain
        self.chosen = frozenset(chosen)
        self.name = "kernels"
        self._launcher, self._scratch = launcher, scratch
        self._n_processors, self._split, self._rounds = n_processors, split, rounds
        self._operation = ""
        self._used: set[str] = set()

    def take_used(self) -> frozenset[str]:
        """Operations that kernels were launched for since this was asked last."""
        used, self._used = frozenset(self._used), set()
        return used

    def _takes(self, operation: str) -> bool:
        self._operation = operation
        return operation in self.chosen

    def _launch(
        self, source: KernelSource, entry: str, grid: tuple[int, int, int], n_threads: int, args: Sequence[Argument]
    ) -> None:
        self._used.add(self._operation)
        self._launcher.launch(source, entry, grid, n_threads, args)

    def embed(self, ids: Tensor, rows: Rows, slots: SlotState, table: PackedMatrix, scale: float, out: Tensor) -> None:
        if not self._takes("embed") or table.n_in % _unit(table):
            self.plain.embed(ids, rows, slots, table, scale, out)
            return
        source = KernelSource("embed.cu", tuple(format_defines(table.format).items()))
        args = [ids, rows.slots, slots.last, rows.width, *_planes(table), table.n_in, float(scale), out]
        self._launch(source, "embed", (len(ids), 1, 1), 128, args)

    # What has no kernel is the plain layer's, and so is everything that wasn't chosen.
    def __getattr__(self, operation: str) -> Any:
        return getattr(self.plain, operation)

    def add_norm(self, stream: Tensor, delta: Tensor | None, scale: float, norm: NormForm, out: Tensor) -> None:
        if not self._takes("add_norm"):
            self.plain.add_norm(stream, delta, scale, norm, out)
            return
        size = stream.shape[-1]
        args = [stream, delta, scale, norm.weight, norm.bias, norm.eps, int(norm.centred), out, size]
        self._launch(KernelSource("norm.cu"), "add_norm", (len(stream), 1, 1), _row_threads(size), args)

    def norm(self, x: Tensor, norm: NormForm, out: Tensor) -> None:
        if not self._takes("norm") or x.dim() != 2:
            self.plain.norm(x, norm, out)
            return
        size, strides = x.shape[-1], (np.int64(x.stride(0)), np.int64(out.stride(0)))
        args: list[Argument] = [x, strides[0], norm.weight, norm.bias, norm.eps, int(norm.centred), out, strides[1]]
        grid = (len(x), 1, 1)
        self._launch(KernelSource("norm.cu"), "norm_rows", grid, _row_threads(size), [*args, size])

    def add(self, stream: Tensor, delta: Tensor, scale: float, opened: Tensor | None = None) -> None:
        if not self._takes("add"):
            self.plain.add(stream, delta, scale, opened)
            return
        args: list[Argument] = [stream, _stride(stream), delta, _stride(delta), float(scale), opened, _stride(opened)]
        self._by_element("add_rows", stream, args)

    def activate(self, x: Tensor, act: Activation, times: Tensor | None, out: Tensor) -> None:
        if not self._takes("activate") or x.dim() != 2:
            self.plain.activate(x, act, times, out)
            return
        kind = get_args(Activation).index(act)
        args: list[Argument] = [x, _stride(x), times, _stride(times), kind, out, _stride(out)]
        self._by_element("activate", x, args)

    def _by_element(self, entry: str, x: Tensor, args: list[Argument]) -> None:
        n = x.shape[-1]
        self._launch(KernelSource("elementwise.cu"), entry, (-(-n // 256), len(x), 1), 256, [*args, n])

    def project(self, x: Tensor, matrix: PackedMatrix, bias: Tensor | None, out: Tensor) -> None:
        if not self._takes("project") or not self._fits(x, matrix):
            self.plain.project(x, matrix, bias, out)
            return
        self._multiply(ProductMode.bias, x, (matrix, None), (bias, None), out)

    def gated_project(
        self,
        x: Tensor,
        gate: PackedMatrix,
        up: PackedMatrix,
        biases: tuple[Tensor, Tensor] | None,
        act: Activation,
        out: Tensor,
    ) -> None:
        if not self._takes("gated_project") or not self._fits(x, gate) or gate.format != up.format:
            self.plain.gated_project(x, gate, up, biases, act, out)
            return
        self._multiply(ProductMode.gate, x, (gate, up), biases or (None, None), out, act=act)

    def head_logits(
        self, hidden: Tensor, head: PackedMatrix, bias: Tensor | None, scale: float, softcap: float, out: Tensor
    ) -> None:
        if not self._takes("head_logits") or not self._fits(hidden, head):
            self.plain.head_logits(hidden, head, bias, scale, softcap, out)
            return
        self._multiply(ProductMode.head, hidden, (head, None), (bias, None), out, scale=scale, softcap=softcap)

    def head_argmax(
        self, hidden: Tensor, head: PackedMatrix, bias: Tensor | None, scale: float, softcap: float, out: Tensor
    ) -> None:
        if not self._takes("head_argmax") or not _fits_gemv(hidden, head):
            self.plain.head_argmax(hidden, head, bias, scale, softcap, out)
            return
        n = len(hidden)
        keys = self._scratch.take("keys", n, torch.int64)
        source, _ = self._cut(ProductMode.best, head.format, head.n_out, _pow2(n))
        self._launch(source, "clear_keys", (1, 1, 1), _GEMV_THREADS, [keys, n])
        self._multiply(
            ProductMode.best, hidden, (head, None), (bias, None), None, scale=scale, softcap=softcap, keys=keys
        )
        self._launch(source, "best_ids", (1, 1, 1), _GEMV_THREADS, [keys, n, out])

    def _fits(self, x: Tensor, matrix: PackedMatrix) -> bool:
        """A product that has a kernel: of few rows, or of some whose matrix tensor cores can take."""
        has_gemm = self._rounds and matrix.format not in ("F16", "F32") and matrix.n_in % 32 == 0
        return _fits_gemv(x, matrix) or (_GEMV_TOKENS < len(x) <= _GEMM_TOKENS and has_gemm)

    def _multiply(
        self,
        product: ProductMode,
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
        stride = np.int64(0 if out is None else out.stride(0))
        args = [*_planes(first), *_planes(matrices[1] or first), first.n_out, first.n_in, x, _stride(x), n]
        args += [*biases, get_args(Activation).index(act), float(scale), float(softcap), out, stride]
        if n > _GEMV_TOKENS:
            source = gemm_source(first.format, product, n)
            groups = -(-n // (8 * dict(source.defines)["COLUMNS"]))
            self._launch(source, "gemm", (-(-first.n_out // 64), groups, 1), _GEMV_THREADS, args)
            return
        source, n_blocks = self._cut(product, first.format, first.n_out, _pow2(n))
        self._launch(source, "gemv", (n_blocks, 1, 1), _GEMV_THREADS, [*args, keys])

    def _cut(self, product: ProductMode, matrix_format: str, n_out: int, n_tokens: int) -> tuple[KernelSource, int]:
        """The instantiation for a matrix, and how many blocks it is launched with."""
        gated = product in (ProductMode.gate, ProductMode.expert_gate)
        each = 4
        while each > 1 and n_out < each * _GEMV_WARPS * 2 * self._n_processors and product != ProductMode.best:
            each //= 2
        rows = min(2 * each if gated else each, 4, max(2, 16 // n_tokens))
        outputs = _GEMV_WARPS * (rows // 2 if gated else rows)
        return gemv_source(matrix_format, product, n_tokens, rows), min(_MOST_BLOCKS, -(-n_out // outputs))

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
        if not self._takes("experts_gated") or not _fits_gemv(x, gate) or gate.format != up.format:
            self.plain.experts_gated(x, chosen, on_input, gate, up, biases, act, out)
            return
        n_out, top_k = out.shape[-1], chosen.shape[1]
        source, n_blocks = self._cut(ProductMode.expert_gate, gate.format, n_out, 1)
        args = [*_planes(gate), *_planes(up), n_out, gate.n_in, x, np.int64(x.stride(0)), top_k, chosen, on_input]
        args += [*(biases or (None, None)), get_args(Activation).index(act), out]
        self._launch(source, "experts_gated", (n_blocks, chosen.numel(), 1), _GEMV_THREADS, args)

    def experts_down(
        self,
        hidden: Tensor,
        chosen: Tensor,
        weights: Tensor | None,
        down: PackedMatrix,
        bias: Tensor | None,
        out: Tensor,
    ) -> None:
        if not self._takes("experts_down") or not _fits_gemv(out, down):
            self.plain.experts_down(hidden, chosen, weights, down, bias, out)
            return
        n_out = out.shape[-1]
        source = gemv_source(down.format, ProductMode.expert_sum, 1, 2)
        grid = (-(-n_out // (2 * _GEMV_WARPS)), len(out), 1)
        args = [*_planes(down), n_out, down.n_in, hidden, chosen.shape[1], chosen, weights, bias, out]
        self._launch(source, "experts_down", grid, _GEMV_THREADS, args)

    def route(self, logits: Tensor, form: RouterForm, chosen: Tensor, weights: Tensor) -> None:
        has_groups = form.n_groups > 1
        if not self._takes("route") or form.gating == "sparse_mixer" or form.count > 512 or form.n_groups > 64:
            self.plain.route(logits, form, chosen, weights)
            return
        args: list[Argument] = [logits, form.count, form.top_k, int(form.gating == "sigmoid"), int(form.normalise)]
        args += [float(form.scale), form.selection_bias, form.expert_scale, form.n_groups if has_groups else 1]
        args += [form.top_groups, int(form.group_strength == "best_two"), chosen, weights]
        self._launch(KernelSource("route.cu"), "route", (len(logits), 1, 1), 32, args)

    def copy_blocks(self, pool: Tensor, pairs: Tensor) -> None:
        n, block_bytes = len(pairs), pool.shape[1]
        if not self._takes("copy_blocks") or block_bytes % 16 or not n:
            self.plain.copy_blocks(pool, pairs)
            return
        between = self._scratch.take("copied blocks", n * block_bytes, torch.uint8)
        grid, source = (-(-block_bytes // (16 * 256)), n, 1), KernelSource("copy.cu")
        sizes: list[Argument] = [np.int64(2), np.int64(block_bytes)]
        sources, targets = pairs[:, 0], pairs[:, 1]
        self._launch(source, "copy_blocks", grid, 256, [pool, sources, between, None, *sizes])
        self._launch(source, "copy_blocks", grid, 256, [between, None, pool, targets, *sizes])

    def take_best(self, best: Tensor, inputs: SampleInputs, slots: SlotState, out: SampleOutputs) -> None:
        if not self._takes("take_best"):
            self.plain.take_best(best, inputs, slots, out)
            return
        self._walk(best, -1, inputs, slots, None, out)

    def sample(self, logits: Tensor, inputs: SampleInputs, slots: SlotState, out: SampleOutputs) -> None:
        if not self._takes("sample") or inputs.n_logprobs >= 0:
            self.plain.sample(logits, inputs, slots, out)
            return
        source, (n_rows, width), vocab = KernelSource("sample.cu"), out.tokens.shape, logits.shape[-1]
        n, launch = n_rows * width, self._launch
        counts = self._counted(inputs, slots, n, width, vocab) if inputs.uses_history else None
        if n_biases := inputs.bias_ids.shape[1]:
            biases: list[Argument] = [logits, vocab, width, inputs.bias_ids, inputs.biases, n_biases]
            launch(source, "add_biases", (n, 1, 1), 64, biases)
        tops = self._scratch.take("best keys", n, torch.int64)
        launch(source, "clear", (1, 1, 1), 256, [tops, np.int64(2 * n)])
        pieces = min(_MOST_PIECES, -(-vocab // 1024))
        rows: list[Argument] = [logits, vocab, width, inputs.ints, inputs.floats]
        launch(source, "process", (pieces, n, 1), 256, [*rows, counts, inputs.masks, inputs.masks.shape[1], tops])
        scores = keys = None
        if inputs.draws:
            least = self._scratch.take("least keys", n, torch.int64)
            scores = self._scratch.take("scores", n * pieces, torch.float64)
            keys = self._scratch.take("drawn keys", n * pieces, torch.int64)
            launch(source, "truncate", (n, 1, 1), 512, [*rows, tops, least])
            launch(source, "draw", (pieces, n, 1), 256, [*rows, tops, least, scores, keys])
        sampled = self._scratch.take("sampled", n, torch.int32)
        picked: list[Argument] = [inputs.ints, inputs.floats, width, n, tops, scores, keys, pieces, sampled]
        launch(source, "pick", (-(-n // 128), 1, 1), 128, picked)
        self._walk(sampled, -2, inputs, slots, slots.histories if inputs.uses_history else None, out)

    def _counted(self, inputs: SampleInputs, slots: SlotState, n: int, width: int, vocab: int) -> Tensor:
        counts = self._scratch.take("counts", n * vocab, torch.int32)
        source, n_read = KernelSource("sample.cu"), inputs.n_history_read
        self._launch(source, "clear", (min(_MOST_BLOCKS, n), 1, 1), 256, [counts, np.int64(n * vocab)])
        args: list[Argument] = [inputs.ints, inputs.slots, slots.histories, slots.histories.shape[1], n_read]
        grid = (-(-(n_read + width) // 256), n, 1)
        self._launch(source, "count_ids", grid, 256, [*args, inputs.drafts, width, vocab, counts])
        return counts

    def _walk(
        self,
        sampled: Tensor,
        broken: int,
        inputs: SampleInputs,
        slots: SlotState,
        histories: Tensor | None,
        out: SampleOutputs,
    ) -> None:
        n_rows, width = out.tokens.shape
        args: list[Argument] = [inputs.ints, inputs.slots, inputs.drafts, n_rows, width, sampled, broken, slots.last]
        args += [histories, slots.histories.shape[1], out.tokens, out.n_tokens, out.n_accepted, out.flags]
        self._launch(KernelSource("sample.cu"), "walk", (-(-n_rows // 128), 1, 1), 128, args)

    def qkv_epilogue(
        self, qkv: Tensor, form: QkvForm, rows: Rows, kv: LayerKv | None, q: Tensor, gate: Tensor | None
    ) -> None:
        norms = (form.q_norm, form.k_norm, form.v_norm)
        is_simple = form.order != "whole" and not any(n and (n.centred or n.bias is not None) for n in norms)
        is_whole = kv is None or kv.dtype not in FOUR_BITS or not any(part.size % 32 for part in kv.parts)
        if not self._takes("qkv_epilogue") or not is_simple or not is_whole or form.head_size > 512:
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
        self._launch(source, "qkv_epilogue", (-(-n_units // 4), rows.n_tokens, 1), 128, args)

    def prefill_attention(
        self, q: Tensor, rows: Rows, kv: LayerKv, form: AttentionForm, gate: Tensor | None, out: Tensor
    ) -> None:
        is_narrow = q.shape[-1] <= 256 and kv.dtype != "f32" and self._rounds
        if not self._takes("prefill_attention") or not is_narrow or not _is_plain(q, kv, form, out):
            self.plain.prefill_attention(q, rows, kv, form, gate, out)
            return
        source = prefill_source(q.shape[-1], kv.dtype, form.softcap != 0, bool(form.window or form.chunk))
        pairs = form.n_heads // form.n_kv_heads * rows.width
        args = [*_attended(q, rows, kv, form), form.sinks, gate, out]
        grid = (-(-pairs // _PAIRS), form.n_kv_heads, rows.n_rows)
        self._launch(source, "prefill_attention", grid, 128, args)

    def decode_attention(
        self, q: Tensor, rows: Rows, kv: LayerKv, form: AttentionForm, gate: Tensor | None, out: Tensor
    ) -> None:
        head_size = q.shape[-1]
        if not self._takes("decode_attention") or head_size > 512 or not _is_plain(q, kv, form, out):
            self.plain.decode_attention(q, rows, kv, form, gate, out)
            return
        table = rows.tables[kv.group]
        group = form.n_heads // form.n_kv_heads
        limited = bool(form.window or form.chunk)
        source = attention_source(head_size, kv.dtype, group * rows.width, form.softcap != 0, limited)
        n_queries = dict(source.defines)["QUERIES"]
        n_splits = -(-table.shape[1] * 16 // self._split)
        n_partials = rows.n_tokens * form.n_heads * n_splits
        outs = self._scratch.take("partial outputs", n_partials * head_size, torch.float32)
        tops = self._scratch.take("partial sums", n_partials * 2, torch.float32)
        args = _attended(q, rows, kv, form)
        grid = (n_splits, form.n_kv_heads * -(-group * rows.width // n_queries), rows.n_rows)
        self._launch(source, "decode_attention", grid, 128, [*args, self._split, outs, tops])
        merged: list[Argument] = [outs, tops, n_splits, form.n_heads, rows.width, rows.starts, rows.counts]
        merged += [form.window, form.chunk, self._split, form.sinks, gate, out]
        self._launch(source, "merge_splits", (form.n_heads, rows.n_tokens, 1), 128, merged)


def _is_plain(q: Tensor, kv: LayerKv, form: AttentionForm, out: Tensor) -> bool:
    """Keys and values are vectors of one size, by heads."""
    keys, values = kv.parts
    sizes, heads = {keys.size, values.size, q.shape[-1], out.shape[-1]}, {keys.heads, values.heads, form.n_kv_heads}
    return len(sizes) == len(heads) == 1 and keys.size % (32 if kv.dtype in FOUR_BITS else 16) == 0


def _attended(q: Tensor, rows: Rows, kv: LayerKv, form: AttentionForm) -> list[Argument]:
    """What both kinds of attention begin with."""
    table = rows.tables[kv.group]
    args: list[Argument] = [q, form.n_heads, form.n_kv_heads, rows.width, rows.starts, rows.counts, table]
    return [*args, table.shape[1], *_places(kv), float(form.scale), form.window, form.chunk, float(form.softcap)]


def _row_threads(size: int) -> int:
    return min(1024, max(32, -(-size // 4 // 32) * 32))


def _pow2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _unit(matrix: PackedMatrix) -> int:
    """Inputs that a lane takes at once."""
    return {"F16": 8, "BF16": 8, "F32": 4}.get(matrix.format, 32)


def _fits_gemv(x: Tensor, matrix: PackedMatrix) -> bool:
    return len(x) <= _GEMV_TOKENS and matrix.n_in % _unit(matrix) == 0


def _stride(x: Tensor | None) -> np.int64:
    """From one row to the next."""
    return np.int64(0 if x is None else x.stride(0))


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
