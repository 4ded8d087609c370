"""Logprobs: natural log-softmax after bias, penalties and mask, before temperature and truncation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.decode.sampling import best_ids

MASKED = -9999.0
"""What a forbidden token shows."""


class PositionLogprobs(NamedTuple):
    """Logprob and rank (1 = most likely) of one token; ids and logprobs of the k best, best first."""

    token: float
    rank: int
    top_ids: NDArray[np.int64]
    top: NDArray[np.float64]


def position_logprobs(logits: NDArray[np.float32], token_id: int, k: int) -> PositionLogprobs:
    """Of processed logits [vocab]. Sums in float64."""
    wide = logits.astype(np.float64)
    peak = wide.max()
    log_sum = peak + np.log(np.exp(wide - peak).sum())
    chosen = logits[token_id]
    rank = 1 + int(np.count_nonzero(logits > chosen)) + int(np.count_nonzero(logits[:token_id] == chosen))
    top_ids = best_ids(logits, min(k, len(logits))) if k > 0 else np.empty(0, dtype=np.int64)
    top = np.maximum(wide[top_ids] - log_sum, MASKED)
    return PositionLogprobs(max(float(wide[token_id] - log_sum), MASKED), rank, top_ids, top)
