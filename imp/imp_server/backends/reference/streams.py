"""Several streams of a position (Architecture.streams): [streams, n, width], n a multiple of 16."""

from __future__ import annotations

from collections.abc import Callable

import torch

from imp_server.backends.reference.parts import Tensors
from imp_server.backends.reference.tiles import linear

_SMALLEST = 1e-5
"""Of a mean square that is divided by."""


Norm = Callable[[torch.Tensor, Tensors, str], torch.Tensor]


def spread(x: torch.Tensor, t: Tensors) -> torch.Tensor:
    """x [n, width] is the first; the others are made of it, and are as large."""
    return torch.stack([x, *(_as_large_as(x, linear(x, matrix)) for matrix in t["stream_projection"])])


def merged(streams: torch.Tensor, t: Tensors) -> torch.Tensor:
    """[n, width]: the mean of all, made as large as the first."""
    total = streams[0]
    for stream, matrix in zip(streams[1:], t["stream_merge"], strict=True):
        total = total + _as_large_as(streams[0], linear(stream, matrix))
    return total / len(streams)


def predicted(streams: torch.Tensor, t: Tensors, norm: Norm) -> torch.Tensor:
    """As the layer of these tensors expects them."""
    n = len(streams)
    shares = linear(_counts(streams[0], t, norm), t["stream_predict"]).view(-1, n, n)
    return torch.stack([_weighted(streams, shares[:, s]) + streams[s] for s in range(n)])


def corrected(
    streams: torch.Tensor,
    x: torch.Tensor,
    t: Tensors,
    norm: Norm,
) -> torch.Tensor:
    """`streams` as they were predicted, by what the layer made of the first: x [n, width]."""
    weights = linear(_counts(x, t, norm), t["stream_correct"]) + 1.0
    return torch.stack([(x - streams[0]) * weights[:, s, None] + own for s, own in enumerate(streams)])


def _counts(x: torch.Tensor, t: Tensors, norm: Norm) -> torch.Tensor:
    """How much each stream counts: [n, streams]."""
    return torch.tanh(linear(norm(x, t, "stream_router_norm") / x.shape[-1], t["stream_router"]))


def _weighted(streams: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    total = streams[0] * shares[:, 0, None]
    for index in range(1, len(streams)):
        total = total + streams[index] * shares[:, index, None]
    return total


def _as_large_as(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    target = x.square().mean(dim=-1, keepdim=True).sqrt()
    return y * target / y.square().mean(dim=-1, keepdim=True).clamp_min(_SMALLEST).sqrt()
