"""Norms, activations, rotation, and what becomes of queries, keys and values behind their projections."""

from __future__ import annotations

import torch
from torch.nn import functional

from imp_server.backends.cuda.operations import LayerKv, NormForm, QkvForm, QueryTemperature, Rotation, Rows
from imp_server.backends.cuda.plain.cache import places_of, positions_of, write
from imp_server.models.feed_forwards import Activation

Tensor = torch.Tensor


def normed(x: Tensor, norm: NormForm) -> Tensor:
    """Over the last dimension."""
    if norm.centred:
        x = x - x.mean(dim=-1, keepdim=True)
    x = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + norm.eps)
    if norm.weight is not None:
        x = x * norm.weight
    return x if norm.bias is None else x + norm.bias


def activated(act: Activation, x: Tensor) -> Tensor:
    if act == "silu":
        return functional.silu(x)
    if act == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    if act == "gelu":
        return functional.gelu(x)
    if act == "relu2":
        return functional.relu(x).square()
    raise ValueError(f"{act} has no form without a gate")


def gated(act: Activation, gate: Tensor, up: Tensor) -> Tensor:
    if act == "swiglu_clamped":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1.0)
    return activated(act, gate) * up


def rotated(x: Tensor, rotation: Rotation, positions: Tensor) -> Tensor:
    """x [T, heads, size] at int64 `positions` [T]."""
    dims = rotation.dims
    row = rotation.table[positions.clamp(max=len(rotation.table) - 1)][:, None]
    cos, sin = row[..., : dims // 2], row[..., dims // 2 :]
    turning, rest = x[..., :dims], x[..., dims:]
    if rotation.interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    else:
        a, b = turning[..., : dims // 2], turning[..., dims // 2 :]
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return torch.cat([turned, rest], dim=-1)


def tempered(q: Tensor, temperature: QueryTemperature | None, positions: Tensor) -> Tensor:
    """q [T, heads, size]."""
    if temperature is None:
        return q
    steps = torch.div(positions + temperature.offset, temperature.step, rounding_mode="floor").double()
    return q * (1 + temperature.share * torch.log1p(steps)).float()[:, None, None]


def place_qkv(qkv: Tensor, form: QkvForm, rows: Rows, kv: LayerKv | None) -> tuple[Tensor, Tensor | None]:
    """The queries [T, n_heads, head_size] and their gates; keys and values go to their blocks."""
    positions = positions_of(rows)
    q, gate = qkv[:, : form.q_width], None
    if form.gated:
        q, gate = q.reshape(len(q), form.n_heads, 2, form.head_size).unbind(2)
    q = q.reshape(len(q), form.n_heads, form.head_size)
    q = tempered(_placed(q, form.q_norm, form, positions), form.temperature, positions)
    if kv is not None:
        k_width = form.n_kv_heads * form.head_size
        k = qkv[:, form.q_width : form.q_width + k_width]
        v = k if form.keys_are_values else qkv[:, form.q_width + k_width :]
        k = k.reshape(len(k), form.n_kv_heads, form.head_size)
        v = v.reshape(len(v), form.n_kv_heads, form.value_size)
        if form.v_norm is not None:
            v = normed(v, form.v_norm)
        blocks, places = places_of(rows, kv)
        write(kv, 0, blocks, places, _placed(k, form.k_norm, form, positions))
        write(kv, 1, blocks, places, v)
    return q, gate


def _placed(x: Tensor, norm: NormForm | None, form: QkvForm, positions: Tensor) -> Tensor:
    if norm is not None and form.order == "whole":
        x = normed(x.flatten(1), norm).view(x.shape)
    if norm is not None and form.order == "norm_first":
        x = normed(x, norm)
    if form.rotation is not None:
        x = rotated(x, form.rotation, positions)
    return normed(x, norm) if norm is not None and form.order == "rope_first" else x
