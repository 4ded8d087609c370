"""How each kind of feed-forward runs; `FEED_FORWARDS` is the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from imp_server.backends.reference.parts import LayerTensors, Tensors, activated, gated, project
from imp_server.backends.reference.tiles import linear, pad_rows
from imp_server.models.feed_forwards import Dense, DenseAndExperts, Experts, FeedForward


@dataclass(frozen=True, slots=True)
class Entering:
    """What comes to a layer's second half: [n, width], n a multiple of 16. `norm`: by the name of its weight."""

    normed: torch.Tensor
    raw: torch.Tensor
    norm: Callable[[torch.Tensor, Tensors, str], torch.Tensor]


def dense(entering: Entering, t: LayerTensors, kind: Dense) -> torch.Tensor:
    x = entering.normed
    up = project(x, t, "up")
    if kind.gated:
        gate = project(x, t, "gate")
        if kind.cutoff is not None:
            mean, deviation = gate.mean(dim=-1, keepdim=True), gate.std(dim=-1, keepdim=True, unbiased=False)
            gate = torch.relu(gate - (mean + deviation * kind.cutoff))
        hidden = gated(kind.activation, gate, up)
    else:
        hidden = activated(kind.activation, up)
    return project(hidden, t, "down")


def mixture(entering: Entering, t: LayerTensors, experts: Experts) -> torch.Tensor:
    x = entering.normed
    return _mixed(x, _route(linear(x, t["router"], t.get("router.bias")), t, experts), t, experts)


def dense_and_mixture(entering: Entering, t: LayerTensors, kind: DenseAndExperts) -> torch.Tensor:
    raw, norm = entering.raw, entering.norm
    beside = norm(dense(entering, t, kind.dense), t, "post_dense_norm")
    bare = norm(raw, {"ones": torch.ones(raw.shape[-1])}, "ones")
    chosen, weights = _route(linear(bare * (t["router_scale"] * raw.shape[-1] ** -0.5), t["router"]), t, kind.experts)
    weights = weights * t["expert_scale"][chosen]
    out = _mixed(norm(raw, t, "experts_norm"), (chosen, weights), t, kind.experts)
    return beside + norm(out, t, "post_experts_norm")


def _mixed(
    x: torch.Tensor, routed: tuple[torch.Tensor, torch.Tensor], t: LayerTensors, experts: Experts
) -> torch.Tensor:
    activation, (chosen, weights) = experts.activation, routed
    outs = x.new_zeros((len(x), experts.top_k, x.shape[-1]))
    for expert in sorted(set(chosen.flatten().tolist())):
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        own = pad_rows(x[rows] * weights[rows, places, None] if experts.weights_on_input else x[rows])
        gate, up = (linear(own, t[f"experts_{n}"][expert], _bias(t, f"experts_{n}", expert)) for n in ("gate", "up"))
        down = linear(gated(activation, gate, up), t["experts_down"][expert], _bias(t, "experts_down", expert))
        outs[rows, places] = down[: len(rows)]
    total = torch.zeros_like(x)
    for place in range(experts.top_k):
        own = outs[:, place]
        total = total + (own if experts.weights_on_input else own * weights[:, place, None])
    if experts.shared_hidden:
        hidden = gated(activation, project(x, t, "shared_gate"), project(x, t, "shared_up"))
        shared = project(hidden, t, "shared_down")
        if experts.shared_gate:
            # Not as a product with a matrix of one row: that adds in an order that depends on a row's place.
            opened = (x * t["shared_router"].reshape(-1)).sum(dim=-1, keepdim=True)
            # As wide as the rest: of a few numbers the library does the last ones another way.
            shared = shared * torch.sigmoid(opened.expand_as(shared).contiguous())
        total = total + shared * experts.shared_scale
    return total


def _bias(t: Tensors, name: str, expert: int) -> torch.Tensor | None:
    bias = t.get(f"{name}.bias")
    return None if bias is None else bias[expert]


def _route(logits: torch.Tensor, t: Tensors, experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and weights [n, top_k] of the experts for each row, best first; lowest id on ties."""
    if experts.gating == "sparse_mixer":
        return _sparse_mixer(logits, experts)
    scores = torch.softmax(logits, dim=-1) if experts.gating == "softmax" else torch.sigmoid(logits)
    if experts.selection_bias or experts.n_groups > 1:
        choice = scores + t["selection_bias"] if experts.selection_bias else scores
    else:
        choice = logits  # scores go with it, but two of them may round to one
    if experts.n_groups > 1:
        groups = choice.view(len(choice), experts.n_groups, -1)
        n_counting = 1 if experts.group_strength == "best" else min(2, groups.shape[-1])
        strength = groups.topk(n_counting, dim=-1).values.sum(dim=-1)
        _, kept = _best(strength, experts.top_groups)
        open_groups = torch.zeros_like(strength, dtype=torch.bool).scatter_(1, kept, True)
        choice = groups.masked_fill(~open_groups[..., None], float("-inf")).flatten(1)
    _, chosen = _best(choice, experts.top_k)
    weights = scores.gather(1, chosen)
    if experts.normalise_top_k:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-20)
    return chosen, weights * experts.scale


def _sparse_mixer(logits: torch.Tensor, experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    left, ids, weights = logits, [], []
    for _ in range(experts.top_k):
        largest, best = _best(left, 1)
        is_far = (largest - logits) / torch.maximum(logits.abs(), largest) > 2 * experts.jitter
        near = left.masked_fill(is_far, float("-inf"))
        ids.append(best)
        weights.append(torch.softmax(near, dim=-1).gather(1, best))
        left = left.scatter(1, best, float("-inf"))
    return torch.cat(ids, 1), torch.cat(weights, 1) * experts.scale


def _best(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, ids = x.sort(dim=-1, descending=True, stable=True)
    return values[:, :k], ids[:, :k]


FEED_FORWARDS: dict[type[FeedForward], Callable[[Entering, LayerTensors, Any], torch.Tensor]] = {
    Dense: dense,
    Experts: mixture,
    DenseAndExperts: dense_and_mixture,
}
"""Kind -> what enters, the layer's tensors, its description -> [n, width]."""
