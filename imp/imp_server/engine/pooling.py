"""Embeddings that every position of an input has a part in: its hidden states come chunk by chunk."""

from __future__ import annotations

from typing import Literal

import numpy as np

from imp_server.backends.base import Float32s
from imp_server.core import GenerateRequest
from imp_server.models.architecture import Architecture


class Pooler:
    """Owner of what the positions of one row have given so far.

    Sums are made position by position, so they are the same bits however the input is cut into chunks.
    """

    def __init__(self, kind: Literal["mean", "none"], width: int) -> None:
        self.kind = kind
        self._n = 0
        self._total = np.zeros(width, dtype=np.float64)

    def take(self, start: int, hidden: Float32s) -> tuple[bytes, ...]:
        """`hidden` [positions, width] of a chunk from position `start` on. Of kind none the vectors that are new, as
        float32 bytes: a row that was preempted runs its chunks again."""
        fresh = hidden[max(0, self._n - start) :]
        self._n += len(fresh)
        if self.kind == "none":
            return tuple(np.ascontiguousarray(vector, dtype="<f4").tobytes() for vector in fresh)
        for vector in fresh:
            self._total += vector
        return ()

    def end(self) -> tuple[bytes, ...]:
        """What is still to be sent once all positions were taken."""
        if self.kind == "none":
            return ()
        return ((self._total / self._n).astype("<f4").tobytes(),)


def pooler_of(request: GenerateRequest, architecture: Architecture) -> Pooler | None:
    """None: the backend's own pooled vector is the embedding, of a decoder its last position's hidden state."""
    if request.task != "embed" or architecture.is_encoder:
        return None
    kind = request.pooling
    if kind == "auto":
        kind = "mean" if architecture.pooling == "mean" else "last"
    return None if kind == "last" else Pooler(kind, architecture.width)
