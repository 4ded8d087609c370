"""Random arguments of operations: those of the proofs, and what was never written."""

from __future__ import annotations

import torch
from imp_server.backends.cuda.proof.made_up import cache, matrix, normal, rows, seeded

__all__ = ["cache", "matrix", "normal", "nothing", "rows", "seeded"]


def nothing(*shape: int) -> torch.Tensor:
    """An output that was never written."""
    return torch.full(shape, float("nan"))
