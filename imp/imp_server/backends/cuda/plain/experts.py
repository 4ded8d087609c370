"""Routing and mixtures of experts, in shapes that don't depend on who is chosen."""

from __future__ import annotations

import torch

from imp_server.backends.cuda.operations import PackedMatrix, RouterForm
from imp_server.backends.cuda.packing import rows_of
from imp_server.backends.cuda.plain.layers import gated
from imp_server.backends.cuda.plain.weights import dequantised, gathered
from imp_server.models.feed_forwards import Activation

Tensor = torch.Tensor

FEW = 64
"""Pairs of token and expert up to which each gets the weights of its own; above, every expert runs on every token."""


def routed(logits: Tensor, form: RouterForm) -> tuple[Tensor, Tensor]:
    """int64 ids and weights [T, top_k]."""
    chosen, weights = _sparse_mixer(logits, form) if form.gating == "sparse_mixer" else _gated(logits, form)
    return chosen, weights if form.expert_scale is None else weights * form.expert_scale[chosen]


def _gated(logits: Tensor, form: RouterForm) -> tuple[Tensor, Tensor]:
    scores = torch.softmax(logits, dim=-1) if form.gating == "softmax" else torch.sigmoid(logits)
    if form.selection_bias is not None or form.n_groups > 1:
        choice = scores if form.selection_bias is None else scores + form.selection_bias
    else:
        choice = logits  # scores go with it, but two of them may round to one
    if form.n_groups > 1:
        choice = _of_open_groups(choice, form)
    _, chosen = _best(choice, form.top_k)
    weights = scores.gather(1, chosen)
    if form.normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-20)
    return chosen, weights * form.scale


def _of_open_groups(choice: Tensor, form: RouterForm) -> Tensor:
    groups = choice.view(len(choice), form.n_groups, -1)
    n_counting = 1 if form.group_strength == "best" else min(2, groups.shape[-1])
    strength = groups.topk(n_counting, dim=-1).values.sum(dim=-1)
    _, kept = _best(strength, form.top_groups)
    is_open = torch.zeros_like(strength, dtype=torch.bool).scatter_(1, kept, True)
    return groups.masked_fill(~is_open[..., None], float("-inf")).flatten(1)


def _sparse_mixer(logits: Tensor, form: RouterForm) -> tuple[Tensor, Tensor]:
    left, ids, weights = logits, [], []
    for _ in range(form.top_k):
        largest, best = _best(left, 1)
        is_far = (largest - logits) / torch.maximum(logits.abs(), largest) > 2 * form.jitter
        ids.append(best)
        weights.append(torch.softmax(left.masked_fill(is_far, float("-inf")), dim=-1).gather(1, best))
        left = left.scatter(1, best, float("-inf"))
    return torch.cat(ids, 1), torch.cat(weights, 1) * form.scale


def _best(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, ids = x.sort(dim=-1, descending=True, stable=True)
    return values[:, :k], ids[:, :k]


def by_expert(x: Tensor, chosen: Tensor, matrix: PackedMatrix, count: int, bias: Tensor | None) -> Tensor:
    """x [T, k, n_in] -> [T, k, n_out of one expert], each by the rows of its expert."""
    n_tokens, k, _ = x.shape
    per_expert = matrix.n_out // count
    flat = chosen.long().flatten()
    if n_tokens * k <= FEW:
        out = torch.stack(
            [
                torch.mv(dequantised(gathered(matrix, flat[i : i + 1], count)), x.view(n_tokens * k, -1)[i])
                for i in range(n_tokens * k)
            ]
        )
    else:
        out = x.new_zeros((n_tokens * k, per_expert))
        rows = x.reshape(n_tokens * k, -1)
        for expert in range(count):
            values = dequantised(rows_of(matrix, expert * per_expert, (expert + 1) * per_expert))
            out = torch.where((flat == expert)[:, None], torch.matmul(rows, values.T), out)
    if bias is not None:
        out = out + bias[flat]
    return out.view(n_tokens, k, per_expert)


def experts_gated(
    x: Tensor,
    chosen: Tensor,
    on_input: Tensor | None,
    matrices: tuple[PackedMatrix, PackedMatrix],
    biases: tuple[Tensor, Tensor] | None,
    act: Activation,
    count: int,
) -> Tensor:
    """[T, k, hidden]."""
    each = x[:, None].expand(-1, chosen.shape[1], -1)
    each = each * on_input[..., None] if on_input is not None else each.contiguous()
    gate, up = (
        by_expert(each, chosen, matrix, count, None if biases is None else biases[i])
        for i, matrix in enumerate(matrices)
    )
    return gated(act, gate, up)


def summed(outs: Tensor, weights: Tensor | None) -> Tensor:
    """[T, k, width] -> [T, width], in the order of the places."""
    total = torch.zeros_like(outs[:, 0])
    for place in range(outs.shape[1]):
        own = outs[:, place]
        total = total + (own if weights is None else own * weights[:, place, None])
    return total
