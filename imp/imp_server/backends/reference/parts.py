"""Norms, activations and feed-forward blocks on rows padded to multiples of 16."""

from __future__ import annotations

import torch
from torch.nn import functional

from imp_server.backends.reference.tiles import linear, pad_rows
from imp_server.models.architecture import Activation, Experts, Layer, NormKind

Tensors = dict[str, torch.Tensor]


def norm(x: torch.Tensor, kind: NormKind, eps: float, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Over the last dimension."""
    if kind == "layer":
        centred = x - x.mean(dim=-1, keepdim=True)
        scaled = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps) * weight
        return scaled if bias is None else scaled + bias
    scaled = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return scaled * (weight + 1.0 if kind == "rms_plus_one" else weight)


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


def feed_forward(x: torch.Tensor, t: Tensors, layer: Layer, activation: Activation) -> torch.Tensor:
    """x [n, width] -> [n, width]; `t` holds the layer's tensors."""
    if layer.experts is not None:
        return _experts(x, t, layer.experts, activation)
    up = linear(x, t["up"], t.get("up.bias"))
    if layer.ffn_gated:
        hidden = gated(activation, linear(x, t["gate"], t.get("gate.bias")), up)
    else:
        hidden = activated(activation, up)
    return linear(hidden, t["down"], t.get("down.bias"))


def _experts(x: torch.Tensor, t: Tensors, experts: Experts, activation: Activation) -> torch.Tensor:
    chosen, weights = _route(linear(x, t["router"], t.get("router.bias")), t, experts)
    outs = x.new_zeros((len(x), experts.top_k, x.shape[-1]))
    for expert in sorted(set(chosen.flatten().tolist())):
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        own = pad_rows(x[rows])
        gate, up = (linear(own, t[f"experts_{n}"][expert], _bias(t, f"experts_{n}", expert)) for n in ("gate", "up"))
        down = linear(gated(activation, gate, up), t["experts_down"][expert], _bias(t, "experts_down", expert))
        outs[rows, places] = down[: len(rows)]
    total = torch.zeros_like(x)
    for place in range(experts.top_k):
        total = total + outs[:, place] * weights[:, place, None]
    if experts.shared_hidden:
        hidden = gated(activation, linear(x, t["shared_gate"]), linear(x, t["shared_up"]))
        shared = linear(hidden, t["shared_down"])
        if experts.shared_gate:
            shared = shared * torch.sigmoid(linear(x, t["shared_router"].view(1, -1)))
        total = total + shared
    return total


def _bias(t: Tensors, name: str, expert: int) -> torch.Tensor | None:
    bias = t.get(f"{name}.bias")
    return None if bias is None else bias[expert]


def _route(logits: torch.Tensor, t: Tensors, experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and weights [n, top_k] of the experts for each row, best first; lowest id on ties."""
    if experts.gating == "softmax_of_top_k":
        best, chosen = _best(logits, experts.top_k)
        return chosen, torch.softmax(best, dim=-1) * experts.scale
    scores = torch.softmax(logits, dim=-1) if experts.gating == "softmax" else torch.sigmoid(logits)
    choice = scores + t["router_bias"] if experts.selection_bias else scores
    if experts.n_groups > 1:
        groups = choice.view(len(choice), experts.n_groups, -1)
        strength = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(dim=-1)
        _, kept = _best(strength, experts.top_groups)
        open_groups = torch.zeros_like(strength, dtype=torch.bool).scatter_(1, kept, True)
        choice = groups.masked_fill(~open_groups[..., None], float("-inf")).flatten(1)
    _, chosen = _best(choice, experts.top_k)
    weights = scores.gather(1, chosen)
    if experts.normalise_top_k:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-20)
    return chosen, weights * experts.scale


def _best(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, ids = x.sort(dim=-1, descending=True, stable=True)
    return values[:, :k], ids[:, :k]
