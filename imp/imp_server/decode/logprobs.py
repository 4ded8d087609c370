"""Logprobs: natural log-softmax after bias, penalties and mask, before temperature and truncation.

Where a request asks for it, those with which its tokens were drawn instead: after temperature and truncation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.core import SamplingParams
from imp_server.decode.sampling import best_ids, candidates

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


def drawn_logprobs(
    logits: NDArray[np.float32], token_id: int, k: int, params: SamplingParams, choice: int, position: int, mu: float
) -> PositionLogprobs:
    """Of what `sample` drew `token_id` from, with the same arguments. Fewer than k if fewer could be drawn."""
    if params.temperature <= 0.0:
        return PositionLogprobs(0.0, 1, np.array([token_id] if k > 0 else [], dtype=np.int64), np.zeros(min(k, 1)))
    ids, scaled = candidates(logits, params, choice, position, mu)
    shifted = scaled - scaled[0]
    logs = shifted - np.log(np.exp(shifted).sum())
    at = int(np.flatnonzero(ids == token_id)[0])
    n_shown = min(k, int(np.count_nonzero(np.exp(logs) > 0.0)))  # the unlikeliest may be none at all in a float64
    return PositionLogprobs(float(logs[at]), at + 1, ids[:n_shown], logs[:n_shown])
