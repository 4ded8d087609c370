"""Projections, norms and activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from imp_server.backends.reference.tiles import linear
from imp_server.models.architecture import NormKind
from imp_server.models.feed_forwards import Activation

Tensors = dict[str, torch.Tensor]


class Added(NamedTuple):
    """scale * b (a x) for the rows of x where `rows` [n] is true."""

    rows: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    scale: float


class LayerTensors(Tensors):
    """A layer's tensors, and what the rows of the step under way add to their products: Forward says so before it."""

    added: Mapping[str, Sequence[Added]] = {}


def project(x: torch.Tensor, t: LayerTensors, name: str) -> torch.Tensor:
    """x [n, in] (n a multiple of 16) times a matrix of the layer, with its bias and what adapters add."""
    out = linear(x, t[name], t.get(f"{name}.bias"))
    for added in t.added.get(name, ()):
        more = linear(linear(x, added.a), added.b) * added.scale
        out = torch.where(added.rows[:, None], out + more, out)
    return out


def norm(x: torch.Tensor, kind: NormKind, eps: float, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Over the last dimension."""
    if kind.endswith("plus_one"):
        weight = weight + 1.0
    if kind.startswith("layer"):
        centred = x - x.mean(dim=-1, keepdim=True)
        scaled = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps) * weight
        return scaled if bias is None else scaled + bias
    scaled = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return scaled * weight


def gated(activation: Activation, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    if activation == "swiglu_clamped":
        # gpt-oss: both halves clamped at 7, sigmoid steepness 1.702, up shifted by one
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1.0)
    return activated(activation, gate) * up


def activated(activation: Activation, x: torch.Tensor) -> torch.Tensor:
    if activation == "silu":
        return functional.silu(x)
    if activation == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    if activation == "gelu":
        return functional.gelu(x)
    if activation == "relu2":
        return functional.relu(x).square()
    raise ValueError(activation)
