"""Each kernel in torch, in float64, from what the kernel itself starts from (quantised inputs, the cache's own form).

Every twin gives its numbers and how far a float32 kernel may be from them: roundings counted, times the size of what
is rounded. twin.py is the other twin of the same kernels: numpy, the kernels' own order of operations, equal bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from imp_server.backends.cpu.twin import TwinMatrix

EPS = 2.0**-24
"""Half a unit in the last place of float32, relative."""
EXP_ERROR = 2e-7
"""Relative error of simd.h `exponential`."""

_TINY = 1e-37
"""Above the subnormal numbers."""


class Twin(NamedTuple):
    value: torch.Tensor
    bound: torch.Tensor


def activations(x: torch.Tensor, n_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as int8 by half blocks: whole numbers [rows, blocks, 2, 16] and scales [rows, blocks, 2]; float32 inside."""
    padded = torch.zeros(len(x), n_blocks * 32)
    padded[:, : x.shape[1]] = x
    halves = padded.reshape(len(x), n_blocks, 2, 16)
    amax = halves.abs().amax(3)
    alive = amax >= 1e-30
    inverse = torch.where(alive, 127.0 / amax, torch.zeros(()))
    q = (halves * inverse[..., None]).round()
    return q.double(), torch.where(alive, amax / 127.0, torch.zeros(())).double()


def product(matrix: TwinMatrix, x: torch.Tensor) -> Twin:
    """[rows, n_in] -> [rows, n_out]."""
    if matrix.floats is not None:
        weights, rows = torch.from_numpy(matrix.floats).double(), x.double()
        return Twin(rows @ weights.T, (matrix.n_in + 1) * EPS * (rows.abs() @ weights.abs().T))
    q, d = activations(x, matrix.n_blocks)
    rows = (q * d[..., None]).reshape(len(x), -1)
    groups = (matrix.n_out, matrix.n_blocks, matrix.groups, 32 // matrix.groups)
    values = torch.from_numpy(matrix.values).double().reshape(groups)
    scaled = torch.from_numpy(matrix.scale).double()[..., None] * values
    minimum = torch.zeros(()) if matrix.minimum is None else torch.from_numpy(matrix.minimum).double()[..., None]
    weights = (scaled + minimum).reshape(matrix.n_out, -1)
    sizes = (scaled.abs() + minimum.abs()).reshape(matrix.n_out, -1)
    return Twin(rows @ weights.T, (4 * matrix.n_blocks + 8) * EPS * (rows.abs() @ sizes.T))


def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, *, centred: bool) -> Twin:
    wide, weight = x.double(), weight.double()
    n = x.shape[-1]
    if centred:
        shift = torch.zeros_like(weight) if bias is None else bias.double()
        value = torch.nn.functional.layer_norm(wide, (n,), weight, shift, eps)
        spread = (wide.var(-1, keepdim=True, unbiased=False) + eps).rsqrt()
    else:
        value = torch.nn.functional.rms_norm(wide, (n,), weight, eps)
        shift = torch.zeros_like(weight)
        spread = ((wide**2).mean(-1, keepdim=True) + eps).rsqrt()
    size = wide.abs().amax(-1, keepdim=True) * spread * weight.abs() + shift.abs()
    return Twin(value, (n / 8 + 32) * EPS * size)


def rotated(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, *, interleaved: bool) -> Twin:
    """heads [n, size]; cosine, sine [n, dims / 2], as the kernel has them."""
    half = cosine.shape[1]
    value, bound = heads.double().clone(), torch.zeros(heads.shape, dtype=torch.float64)
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    )
    pairs = torch.complex(heads[:, first].double(), heads[:, second].double())
    turned = pairs * torch.complex(cosine.double(), sine.double())
    value[:, first], value[:, second] = turned.real, turned.imag
    bound[:, first] = bound[:, second] = 3 * EPS * pairs.abs() * (cosine.double() ** 2 + sine.double() ** 2).sqrt()
    return Twin(value, bound)


def activated(kind: str, gate: torch.Tensor) -> Twin:
    """Beyond e^88 the kernel's exponential stands still: silu of less is the gate over 1.6e38."""
    wide = gate.double()
    if kind == "silu":
        value = torch.nn.functional.silu(wide)
        return Twin(value, 4 * EXP_ERROR * value.abs() + 7e-39 * wide.abs() + _TINY)
    if kind == "relu2":
        value = wide.relu() ** 2
        return Twin(value, EPS * value + _TINY)
    value = torch.nn.functional.gelu(wide, approximate="tanh" if kind == "gelu_tanh" else "none")
    # Left of 0 it is the difference of numbers near 1.
    return Twin(value, 8 * EXP_ERROR * wide.abs() + _TINY)


def kept(kv_dtype: str, x: torch.Tensor) -> torch.Tensor:
    """Keys or values [n, size] as the cache keeps them."""
    if kv_dtype == "bf16":
        return x.bfloat16().double()
    amax = x.abs().amax(-1, keepdim=True)
    alive = amax >= 1e-30
    q = (x * torch.where(alive, 127.0 / amax, torch.zeros(()))).round()
    return q.double() * torch.where(alive, amax / 127.0, torch.zeros(())).double()


class Rule(NamedTuple):
    scale: float
    softcap: float
    window: int


def attention(
    rule: Rule,
    kv_dtype: str,
    q: torch.Tensor,
    positions: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sinks: torch.Tensor | None,
) -> Twin:
    """q [n, size] at positions [n], one KV head's keys and values [n_positions, size] -> [n, size]."""
    q, k, v = q.double(), kept(kv_dtype, keys), kept(kv_dtype, values)
    scale = float(torch.tensor(rule.scale))
    scores = q @ k.T * scale
    # How far a score may be off; a weight is then off by as much of itself.
    score_error = (q.shape[1] + 4) * EPS * (q.abs() @ k.abs().T) * abs(scale)
    if rule.softcap:
        scores = rule.softcap * (scores / rule.softcap).tanh()
        score_error = score_error + 8 * EXP_ERROR * rule.softcap
    at = torch.arange(len(k))
    seen = at[None] <= positions[:, None]
    if rule.window:
        seen &= at[None] > positions[:, None] - rule.window
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None]], 1)
        v = torch.cat([v, torch.zeros(1, v.shape[1], dtype=torch.float64)])
    weights = scores.softmax(1)
    off = 2 * score_error.masked_fill(~seen, 0).amax(1) + 8 * EXP_ERROR + (len(k) / 8 + 96) * EPS
    return Twin(weights @ v, off[:, None].expm1() * (weights @ v.abs()) + _TINY)


def drawable(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Log probabilities in float64, -inf where a truncation took the id away."""
    scaled = logits.double() / temperature
    order = torch.argsort(scaled, descending=True, stable=True)
    if top_k:
        scaled[order[top_k:]] = -torch.inf
    if top_p < 1:
        before = scaled.softmax(0)[order].cumsum(0) - scaled.softmax(0)[order]
        scaled[order[before >= top_p]] = -torch.inf
    if min_p > 0:
        p = scaled.softmax(0)
        scaled[p < min_p * p.max()] = -torch.inf
    return scaled.log_softmax(0)
