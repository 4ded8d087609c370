"""Several streams of a position (Architecture.streams) as operations: [streams, T, width]."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from imp_server.backends.cuda.operations import NormForm, Operations, PackedMatrix
from imp_server.backends.cuda.packing import rows_of
from imp_server.backends.cuda.weights import DeviceWeights
from imp_server.backends.cuda.workspace import Workspace

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Streams:
    """How they begin and end: a matrix for each but the first."""

    projection: tuple[PackedMatrix, ...]
    merging: tuple[PackedMatrix, ...]

    @classmethod
    def lowered(cls, weights: DeviceWeights) -> Streams:
        width = weights.architecture.width

        def parts(name: str) -> tuple[PackedMatrix, ...]:
            matrix = weights.matrix(name)
            return tuple(rows_of(matrix, first, first + width) for first in range(0, matrix.n_out, width))

        return cls(parts("stream_projection"), parts("stream_merge"))

    def spread(self, first: Tensor, out: Tensor, ops: Operations) -> None:
        """The others are made of the first, and are as large."""
        out[0].copy_(first)
        for matrix, other in zip(self.projection, out[1:], strict=True):
            ops.project(first, matrix, None, other)
            ops.match_size(other, first)

    def merge(self, streams: Tensor, out: Tensor, part: Tensor, ops: Operations) -> None:
        """The mean of all, made as large as the first. `part` [T, width]: scratch."""
        out.copy_(streams[0])
        for matrix, other in zip(self.merging, streams[1:], strict=True):
            ops.project(other, matrix, None, part)
            ops.match_size(part, streams[0])
            ops.add(out, part, 1.0)
        ops.scale(out, 1.0 / len(streams))


@dataclass(frozen=True, slots=True)
class StreamsOfLayer:
    norm: NormForm
    router: PackedMatrix
    prediction: PackedMatrix
    correction: PackedMatrix
    scale: Tensor
    """float32 [width]: of the first stream, for what ids say."""

    @classmethod
    def lowered(cls, weights: DeviceWeights, prefix: str) -> StreamsOfLayer:
        return cls(
            norm=weights.norm(f"{prefix}stream_router_norm"),
            router=weights.matrix(f"{prefix}stream_router"),
            prediction=weights.matrix(f"{prefix}stream_predict"),
            correction=weights.matrix(f"{prefix}stream_correct"),
            scale=weights.required(f"{prefix}stream_scale"),
        )

    def predict(self, streams: Tensor, out: Tensor, work: Workspace, ops: Operations) -> None:
        """As the layer expects them."""
        shares = work.take("stream_shares", streams.shape[1], len(streams) ** 2)
        ops.project(self._counts(streams[0], work, ops), self.prediction, None, shares)
        ops.predict(streams, shares, out)

    def correct(self, streams: Tensor, made: Tensor, work: Workspace, ops: Operations) -> None:
        """`streams` as they were predicted, by what the layer made of the first."""
        weights = work.take("stream_weights", streams.shape[1], len(streams))
        ops.project(self._counts(made, work, ops), self.correction, None, weights)
        ops.correct(streams, made, weights)

    def _counts(self, x: Tensor, work: Workspace, ops: Operations) -> Tensor:
        """How much each stream counts: [T, streams]."""
        normed = work.take("second", *x.shape)
        ops.norm(x, self.norm, normed)
        ops.scale(normed, 1.0 / x.shape[-1])
        counts = work.take("stream_counts", len(x), self.router.n_out)
        ops.project(normed, self.router, None, counts)
        ops.tanh(counts)
        return counts
