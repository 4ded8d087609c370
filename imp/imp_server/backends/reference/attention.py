"""Attention of one row: query tiles of 16 positions against key tiles of 64, partials merged in tile order.

Both kinds of tiles are aligned to position 0, so what a position computes is the same whether it comes alone,
in a chunk, or in a batch. A key tile in which a query sees nothing changes nothing: it adds zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from imp_server.backends.reference.tiles import TILE_ROWS
from imp_server.models.mixers import Attention

KEY_TILE = 64
_LOWEST = -1e30


@dataclass(frozen=True, slots=True)
class KeysAndValues:
    """K [n, kv_heads, head_size] and V [n, kv_heads, value_size] of positions [first, first + n); first % 64 == 0."""

    k: torch.Tensor
    v: torch.Tensor
    first: int


def attend(
    q: torch.Tensor, start: int, keys: KeysAndValues, mixer: Attention, sinks: torch.Tensor | None
) -> torch.Tensor:
    """q [n, heads, head_size] at positions [start, start + n) -> [n, heads, value_size].

    `keys` end with the last position that the row has.
    """
    n, n_heads, _ = q.shape
    n_kv, group = mixer.n_kv_heads, mixer.n_heads // mixer.n_kv_heads
    first_query = start // TILE_ROWS * TILE_ROWS
    n_tiles = -(-(start + n - first_query) // TILE_ROWS)
    queries = q.new_zeros((n_tiles * TILE_ROWS, n_heads, q.shape[-1]))
    queries[start - first_query : start - first_query + n] = q
    # [tiles * kv heads, group * 16, head_size]
    tiles = queries.view(n_tiles, TILE_ROWS, n_kv, group, -1).permute(0, 2, 3, 1, 4)
    tiles = tiles.reshape(n_tiles * n_kv, group * TILE_ROWS, -1)
    state = _Partial(n_tiles, mixer, sinks)
    positions = torch.arange(first_query, first_query + n_tiles * TILE_ROWS).view(n_tiles, 1, 1, TILE_ROWS, 1)
    n_keys = keys.first + len(keys.k)
    for at in range(keys.first, n_keys, KEY_TILE):
        k, v = _tile(keys.k, at - keys.first), _tile(keys.v, at - keys.first)
        key_positions = torch.arange(at, at + KEY_TILE)
        seen = _visible(positions, key_positions, n_keys, mixer)
        state.add(tiles, k, v, seen)
    out = state.result().view(n_tiles, n_kv, group, TILE_ROWS, -1).permute(0, 3, 1, 2, 4)
    flat = out.reshape(n_tiles * TILE_ROWS, n_heads, -1)
    return flat[start - first_query : start - first_query + n]


def _tile(x: torch.Tensor, at: int) -> torch.Tensor:
    """64 positions from `at`, zeros beyond the end, as [kv_heads, 64, size]."""
    piece = x[at : at + KEY_TILE]
    if len(piece) < KEY_TILE:
        piece = torch.cat([piece, piece.new_zeros((KEY_TILE - len(piece), *piece.shape[1:]))])
    return piece.transpose(0, 1)


def _visible(queries: torch.Tensor, keys: torch.Tensor, n_keys: int, mixer: Attention) -> torch.Tensor:
    """[tiles, 1, 1, 16, 64]: the keys that a query sees."""
    seen = keys < n_keys
    if mixer.causal:
        seen = seen & (keys <= queries)
        if mixer.window:
            seen = seen & (keys > queries - mixer.window)
        if mixer.chunk:
            seen = seen & (keys >= queries // mixer.chunk * mixer.chunk)
    elif mixer.window:
        # A two-sided window: half of it to each side.
        seen = seen & ((keys - queries).abs() <= mixer.window // 2)
    return seen.expand(len(queries), 1, 1, TILE_ROWS, KEY_TILE)


class _Partial:
    """Running maximum, sum and weighted values of the softmax for all query tiles of one row."""

    def __init__(self, n_tiles: int, mixer: Attention, sinks: torch.Tensor | None) -> None:
        group = mixer.n_heads // mixer.n_kv_heads
        self._mixer = mixer
        self._n_tiles = n_tiles
        self._shape = (n_tiles * mixer.n_kv_heads, group * TILE_ROWS)
        self._scale = mixer.scale or mixer.head_size**-0.5
        self._values = torch.zeros((*self._shape, mixer.value_size))
        if sinks is None:
            self._peak = torch.full((*self._shape, 1), _LOWEST)
            self._sum = torch.zeros((*self._shape, 1))
        else:
            per_head = sinks.view(1, mixer.n_kv_heads, group, 1).expand(n_tiles, -1, -1, TILE_ROWS)
            self._peak = per_head.reshape(*self._shape, 1).clone()
            self._sum = torch.ones((*self._shape, 1))

    def add(self, queries: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> None:
        scores = torch.bmm(queries, self._per_tile(k).transpose(1, 2)) * self._scale
        cap = self._mixer.softcap
        if cap:
            scores = cap * torch.tanh(scores / cap)
        n_kv = self._mixer.n_kv_heads
        split = scores.view(self._n_tiles, n_kv, -1, TILE_ROWS, KEY_TILE)
        scores = split.masked_fill(~seen, float("-inf")).view(*self._shape, KEY_TILE)
        peak = torch.maximum(self._peak, scores.amax(dim=-1, keepdim=True))
        weights = torch.exp(scores - peak)
        shrink = torch.exp(self._peak - peak)
        self._sum = self._sum * shrink + weights.sum(dim=-1, keepdim=True)
        self._values = self._values * shrink + torch.bmm(weights, self._per_tile(v))
        self._peak = peak

    def result(self) -> torch.Tensor:
        return self._values / self._sum.clamp_min(1e-30)

    def _per_tile(self, x: torch.Tensor) -> torch.Tensor:
        """[kv_heads, 64, size], repeated for every query tile."""
        return x.unsqueeze(0).expand(self._n_tiles, *x.shape).reshape(-1, *x.shape[1:])
