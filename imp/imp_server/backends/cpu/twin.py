"""The arithmetic of the native forward in numpy: slow, obvious, and equal to it bit by bit.

Every rule here is stated beside its kernel, too (kernels/cpu/engine: activations.h, tiles.h, attention.h,
layer_math.h, simd.h). `fused` emulates a fused multiply-add through float64: the product of two float32 is exact
there, and a sum rounded twice differs from one rounded once about once in 2^29 operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from imp_server.backends.cpu.block_types import take_apart
from imp_server.backends.cpu.layouts import BLOCK, FLOAT_LAYOUTS, LAYOUTS
from imp_server.backends.cpu.packing import packed_shape, quantise, widened
from imp_server.models.source import RawTensor

Floats = npt.NDArray[np.float32]
F = np.float32
TILE, SPAN = 64, 512
NOTHING = F(-np.inf)


class Arithmetic:
    """Scalar rules of one build: `has_fma` False is the portable build, where fused is two roundings."""

    def __init__(self, has_fma: bool = True) -> None:
        self.has_fma = has_fma

    def fused(self, a: Floats, b: Floats | np.float32, c: Floats | np.float32) -> Floats:
        if not self.has_fma:
            return np.asarray(a * b + c, dtype=F)
        return np.asarray(a.astype(np.float64) * b + c, dtype=F)

    def exponential(self, x: Floats) -> Floats:
        """simd.h `exponential`."""
        magic = F(12582912.0)
        clamped = np.minimum(np.maximum(x, F(-88.0)), F(88.0)).astype(F)
        n = self.fused(clamped, F(1.44269504088896341), magic) - magic
        r = self.fused(-n, F(0.693359375), clamped)
        r = self.fused(-n, F(-2.12194440e-4), r)
        p = np.full_like(r, F(1.9875691500e-4))
        for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = self.fused(p, r, F(c))
        p = self.fused(p, r * r, r) + F(1.0)
        return np.where(x < F(-87.0), F(0.0), np.ldexp(p, n.astype(np.int32))).astype(F)

    def tanh(self, x: Floats) -> Floats:
        e = self.exponential(np.abs(x) * F(-2.0))
        t = (F(1) - e) / (F(1) + e)
        return np.where(x < 0, -t, t).astype(F)

    def activate(self, kind: str, gate: Floats) -> Floats:
        if kind == "silu":
            return np.asarray(gate / (F(1) + self.exponential(-gate)), dtype=F)
        if kind == "gelu_tanh":
            inner = gate * F(0.7978845608028654) * self.fused(gate * F(0.044715), gate, F(1))
            return gate * F(0.5) * (F(1) + self.tanh(inner))
        if kind == "relu2":
            return np.asarray(np.maximum(gate, 0) ** 2, dtype=F)
        erf = np.vectorize(math.erf)(gate.astype(np.float64) * 0.70710678118654752).astype(F)
        return np.asarray(F(0.5) * gate * (F(1) + erf), dtype=F)

    def gated(self, kind: str, gate: Floats, up: Floats) -> Floats:
        if kind != "swiglu_clamped":
            return np.asarray(self.activate(kind, gate) * up, dtype=F)
        gate, up = np.minimum(gate, F(7)), np.clip(up, F(-7), F(7))
        opened = gate / (F(1) + self.exponential(gate * F(-1.702)))
        return np.asarray(opened * (up + F(1)), dtype=F)

    def norm(self, x: Floats, weight: Floats | None, bias: Floats | None, eps: float, *, centred: bool) -> Floats:
        """Of the last axis; layer_math.cpp `normalise`."""
        if weight is None:
            return x
        y = x - (self.sum(x) / F(x.shape[-1]))[..., None] if centred else x
        scale = F(1) / np.sqrt(self.sum(y, squared=True) / F(x.shape[-1]) + F(eps))
        out: Floats = y * scale[..., None] * weight
        return out if bias is None else np.asarray(out + bias, dtype=F)

    def sum(self, x: Floats, *, squared: bool = False) -> Floats:
        """Of the last axis; layer_math.cpp `sum_of`."""
        whole = x.shape[-1] // 16 * 16
        lanes = np.zeros((*x.shape[:-1], 16), dtype=F)
        for i in range(0, whole, 16):
            part = x[..., i : i + 16]
            lanes = self.fused(part, part, lanes) if squared else lanes + part
        total = sum_lanes(lanes)
        for i in range(whole, x.shape[-1]):
            total = self.fused(x[..., i], x[..., i], total) if squared else total + x[..., i]
        return total


def sum_lanes(lanes: Floats) -> Floats:
    """16 lanes folded in halves: simd.h `sum_lanes`."""
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return lanes[..., 0]


@dataclass(slots=True)
class Activations:
    """By half block: `q` [rows, blocks, 2, 16] whole numbers, `d` [rows, blocks, 2]."""

    q: Floats
    d: Floats


def quantise_rows(x: Floats) -> Activations:
    """Per row and half block of 16; activations.h."""
    n_blocks = -(-x.shape[1] // BLOCK)
    blocks = np.zeros((len(x), n_blocks * BLOCK), dtype=F)
    blocks[:, : x.shape[1]] = x
    halves = blocks.reshape(len(x), n_blocks, 2, BLOCK // 2)
    amax = np.abs(halves).max(axis=3)
    alive = amax >= F(1e-30)
    inverse = np.divide(F(127), amax, out=np.zeros_like(amax), where=alive)
    return Activations(np.rint(halves * inverse[..., None]), np.where(alive, amax / F(127), F(0)).astype(F))


class TwinMatrix:
    """One tensor of a model file as values, scales and minima."""

    def __init__(self, raw: RawTensor, quantize: str = "none") -> None:
        shape = packed_shape(raw.type.name, raw.shape, quantize)
        self.n_out, self.n_in, self.n_blocks = shape.n_out, shape.n_in, shape.n_blocks
        self.floats: Floats | None = None
        rows = raw.data.reshape(shape.n_out, -1)
        if raw.type.name in FLOAT_LAYOUTS:
            bits = np.ascontiguousarray(rows).view("<f4" if raw.type.name == "F32" else "<u2")
            if shape.type in FLOAT_LAYOUTS:
                self.floats = widened(raw.type.name, bits)
                return
            parts = quantise(shape.type, widened(raw.type.name, bits))
        else:
            parts = take_apart(raw.type.name, rows.reshape(shape.n_out, -1, raw.type.block_bytes))
        layout = LAYOUTS[shape.type]
        if layout.table:
            signed = np.array(layout.table, dtype=np.int8)[parts.payload]
        else:
            signed = (parts.payload.astype(np.int16) - layout.zero).astype(np.int8)
        self.groups = layout.n_groups
        self.values = signed.reshape(shape.n_out, shape.n_blocks, 2, BLOCK // 2)
        self.minimum: Floats | None = None
        if layout.two_level:
            assert parts.sub_scale is not None
            wide = np.repeat(_half(parts.scale), 8, axis=1)[:, : shape.n_blocks, None]
            self.scale = wide * parts.sub_scale.astype(F)
            if parts.minimum is not None and parts.sub_minimum is not None:
                wide = np.repeat(_half(parts.minimum), 8, axis=1)[:, : shape.n_blocks, None]
                self.minimum = -(wide * parts.sub_minimum.astype(F))
        else:
            decode = _power if layout.scales == "e8m0" else _half
            self.scale = decode(parts.scale)[:, :, None]
            self.minimum = None if parts.minimum is None else _half(parts.minimum)[:, :, None]

    def dequantised(self, rows: npt.NDArray[np.integer]) -> Floats:
        if self.floats is not None:
            return np.asarray(self.floats[rows])
        values = self.values[rows].astype(F).reshape(len(rows), self.n_blocks, self.groups, -1)
        out: Floats = self.scale[rows][..., None] * values
        if self.minimum is not None:
            out = out + self.minimum[rows][..., None]
        return np.asarray(out.reshape(len(rows), -1)[:, : self.n_in])

    def multiply(self, x: Floats, rules: Arithmetic) -> Floats:
        """[rows, n_in] -> [rows, n_out]; tiles.h."""
        acc = np.zeros((len(x), self.n_out), dtype=F)
        if self.floats is not None:
            for k in range(self.n_in):
                acc = rules.fused(self.floats[None, :, k], x[:, k, None], acc)
            return acc
        a = quantise_rows(x)
        sums = a.q.sum(axis=3)
        for block in range(self.n_blocks):
            # Whole numbers below 2^24: exact in float32 in any order.
            dots = [a.q[:, block, h] @ self.values[:, block, h].astype(F).T for h in (0, 1)]
            d, d_sum = a.d[:, block, :, None], (a.d * sums)[:, block, :, None]
            if self.groups == 2:
                for h in (0, 1):
                    acc = rules.fused(self.scale[None, :, block, h], dots[h] * d[:, h], acc)
                    if self.minimum is not None:
                        acc = rules.fused(self.minimum[None, :, block, h], d_sum[:, h], acc)
                continue
            acc = rules.fused(self.scale[None, :, block, 0], rules.fused(dots[1], d[:, 1], dots[0] * d[:, 0]), acc)
            if self.minimum is not None:
                both = rules.fused(d[:, 1], sums[:, block, 1, None], d_sum[:, 0])
                acc = rules.fused(self.minimum[None, :, block, 0], both, acc)
        return acc


def _half(bits: npt.NDArray[Any]) -> Floats:
    return np.asarray(np.ascontiguousarray(bits).view(np.float16), dtype=F)


def _power(exponents: npt.NDArray[Any]) -> Floats:
    """2^(e - 128)."""
    return np.ldexp(F(1), exponents.astype(np.int32) - 128).astype(F)


def round_bf16(x: Floats) -> Floats:
    """To the nearest bf16, ties to even."""
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.asarray((rounded & np.uint32(0xFFFF0000)).view(F))


def cached(kv_dtype: str, x: Floats) -> tuple[Floats, Floats]:
    """What the cache keeps of keys or values [.., head_size]: stored values and their scale [..] (bf16: 1)."""
    if kv_dtype == "bf16":
        return round_bf16(np.ascontiguousarray(x)), np.ones(x.shape[:-1], dtype=F)
    amax = np.abs(x).max(axis=-1)
    alive = amax >= F(1e-30)
    inverse = np.divide(F(127), amax, out=np.zeros_like(amax), where=alive)
    return np.rint(x * inverse[..., None]), np.where(alive, amax / F(127), F(0)).astype(F)
