"""Matrix products whose rows don't depend on each other's presence.

A BLAS picks its blocking by shape, and with it the order of additions. So every product here has exactly 16
rows: the same shape whatever the batch and the chunking, hence the same bits for the same row.
"""

from __future__ import annotations

import torch

TILE_ROWS = 16


def padded(n_rows: int) -> int:
    """The next multiple of 16; activations always have such a number of rows."""
    return -(-n_rows // TILE_ROWS) * TILE_ROWS


def pad_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` [n, ...] with zero rows up to a multiple of 16."""
    missing = padded(len(x)) - len(x)
    return x if not missing else torch.cat([x, x.new_zeros((missing, *x.shape[1:]))])


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [n, in] (n a multiple of 16) times weight [out, in] transposed, plus bias."""
    out = x.new_empty((len(x), len(weight)))
    for start in range(0, len(x), TILE_ROWS):
        torch.mm(x[start : start + TILE_ROWS], weight.T, out=out[start : start + TILE_ROWS])
    return out if bias is None else out + bias


def by_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [n, heads, in] (n a multiple of 16), each head times its own of weight [heads, out, in] -> [n, heads, out]."""
    out = x.new_empty((*x.shape[:2], weight.shape[1]))
    for start in range(0, len(x), TILE_ROWS):
        tile = torch.bmm(x[start : start + TILE_ROWS].transpose(0, 1), weight.transpose(1, 2))
        out[start : start + TILE_ROWS] = tile.transpose(0, 1)
    return out
