"""DRY ("don't repeat yourself"): a penalty on tokens that would extend a repetition of the row's own tail."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imp_server.core import SamplingParams

_MAX_EXPONENT = 64
"""Longer repetitions weigh no more: the penalty is beyond any logit by then."""


def dry_penalties(history: NDArray[np.int32], params: SamplingParams) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and what to subtract from their logits: multiplier * base^(length - allowed).

    `length` is that of the longest earlier copy of the history's tail that the id followed; shorter than
    `dry_allowed_length` costs nothing.
    """
    window = history[-params.dry_penalty_last_n :] if params.dry_penalty_last_n > 0 else history
    longest: dict[int, int] = {}
    if len(window) > 1:
        ends = np.flatnonzero(window[:-1] == window[-1])
        length = 1
        while len(ends):
            if length >= params.dry_allowed_length:
                longest.update(dict.fromkeys(window[ends + 1].tolist(), length))
            if length >= params.dry_allowed_length + _MAX_EXPONENT:
                break
            ends = ends[ends >= length]
            ends = ends[window[ends - length] == window[-1 - length]]
            length += 1
    ids = np.fromiter(longest, dtype=np.int32, count=len(longest))
    lengths = np.fromiter(longest.values(), dtype=np.float64, count=len(longest))
    penalty = params.dry_multiplier * params.dry_base ** (lengths - params.dry_allowed_length)
    return ids, penalty.astype(np.float32)
