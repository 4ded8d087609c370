"""Attention over the paged cache: tiles of keys, partials merged as they come."""

from __future__ import annotations

import torch

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.backends.cuda.operations import AttentionForm, LayerKv, Rows
from imp_server.backends.cuda.plain.cache import gather, positions_of

Tensor = torch.Tensor

TILE_COLUMNS = 16
"""Blocks of a tile: 256 keys."""
_LOWEST = -1e30


def attend(q: Tensor, rows: Rows, kv: LayerKv, form: AttentionForm) -> Tensor:
    """q [T, n_heads, size] -> [T, n_heads, value size]."""
    n_rows, width, n_kv = rows.n_rows, rows.width, form.n_kv_heads
    group = form.n_heads // n_kv
    # [R, kv heads, group W, size]
    queries = q.view(n_rows, width, n_kv, group, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)
    positions = positions_of(rows).view(n_rows, width)
    ends = (rows.starts + rows.counts).long()
    state = _PartialSoftmax(queries, rows, form)
    table = rows.tables[kv.group]
    for first in range(0, table.shape[1], TILE_COLUMNS):
        blocks = table[:, first : first + TILE_COLUMNS]
        at = first * BLOCK_TOKENS + torch.arange(blocks.shape[1] * BLOCK_TOKENS, device=q.device)
        is_there = (at < ends[:, None]) & (blocks >= 0).repeat_interleave(
            BLOCK_TOKENS, 1, output_size=blocks.shape[1] * BLOCK_TOKENS
        )
        keys, values = _keys_and_values(kv, blocks, is_there)
        state.add(keys, values, _visible(positions, at, form) & is_there[:, None])
    made = state.result()
    out = made.view(n_rows, n_kv, group, width, made.shape[-1])
    return out.permute(0, 3, 1, 2, 4).reshape(rows.n_tokens, form.n_heads, -1)


def _keys_and_values(kv: LayerKv, blocks: Tensor, is_there: Tensor) -> tuple[Tensor, Tensor]:
    first, second = (
        # What lies behind a row's end is whatever was there before, perhaps no number.
        torch.where(is_there[:, None, :, None], gather(kv, part, blocks), 0.0)
        for part in (0, 1)
    )
    return (torch.cat([first, second], dim=-1), first) if kv.latent else (first, second)


def _visible(queries: Tensor, keys: Tensor, form: AttentionForm) -> Tensor:
    """queries [R, W], keys [n] -> [R, W, n]."""
    at = queries[..., None]
    seen = keys <= at
    if form.window:
        seen = seen & (keys > at - form.window)
    if form.chunk:
        seen = seen & (keys >= at // form.chunk * form.chunk)
    return seen


class _PartialSoftmax:
    """Maximum, sum and weighted values of the softmax so far."""

    def __init__(self, queries: Tensor, rows: Rows, form: AttentionForm) -> None:
        self._queries, self._form = queries, form
        self._split = (form.n_heads // form.n_kv_heads, rows.width)
        shape = (*queries.shape[:3], 1)
        if form.sinks is None:
            self._peak = queries.new_full(shape, _LOWEST)
            self._sum = queries.new_zeros(shape)
        else:
            per_head = form.sinks.view(1, form.n_kv_heads, -1, 1).expand(len(queries), -1, -1, rows.width)
            self._peak = per_head.reshape(shape)
            self._sum = queries.new_ones(shape)
        self._values: Tensor | None = None

    def add(self, keys: Tensor, values: Tensor, seen: Tensor) -> None:
        """keys, values [R, kv heads, n, size]; seen [R, W, n]."""
        scores = torch.matmul(self._queries, keys.transpose(-1, -2)) * self._form.scale
        if self._form.softcap:
            scores = self._form.softcap * torch.tanh(scores / self._form.softcap)
        hidden = ~seen[:, None, None]
        split = scores.view(*scores.shape[:2], *self._split, scores.shape[-1])
        scores = split.masked_fill(hidden, float("-inf")).flatten(2, 3)
        peak = torch.maximum(self._peak, scores.amax(dim=-1, keepdim=True))
        weights, shrink = torch.exp(scores - peak), torch.exp(self._peak - peak)
        self._sum = self._sum * shrink + weights.sum(dim=-1, keepdim=True)
        added = torch.matmul(weights, values)
        self._values = added if self._values is None else self._values * shrink + added
        self._peak = peak

    def result(self) -> Tensor:
        assert self._values is not None
        return self._values / self._sum.clamp_min(1e-30)
