"""DRY ("don't repeat yourself"): a penalty on tokens that would extend a repetition of the row's own tail.

The tail begins behind the last breaker, whichever tokens wrote that: what stands before it is no part of a repetition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from imp_server.core import SamplingParams

_MAX_EXPONENT = 64
"""Longer repetitions weigh no more: the penalty is beyond any logit by then."""


def dry_penalties(
    history: NDArray[np.int32], params: SamplingParams, token_bytes: Sequence[bytes] = ()
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and what to subtract from their logits: multiplier * base^(length - allowed).

    `length` is that of the longest earlier copy of the history's tail that the id followed; shorter than
    `dry_allowed_length` costs nothing. `token_bytes[id]`: what each id writes; none: nothing breaks a repetition.
    """
    window = history[-params.dry_penalty_last_n :] if params.dry_penalty_last_n > 0 else history
    longest: dict[int, int] = dict.fromkeys(window[1:].tolist(), 0) if params.dry_allowed_length == 0 else {}
    if len(window) > 1:
        ends = np.flatnonzero(window[:-1] == window[-1])
        length, most = 1, params.dry_allowed_length + _MAX_EXPONENT
        breakers = [b.encode() for b in params.dry_sequence_breakers] if token_bytes else []
        while len(ends) and length <= most and not _breaks(history, length, breakers, token_bytes):
            if length >= params.dry_allowed_length:
                longest.update(dict.fromkeys(window[ends + 1].tolist(), length))
            ends = ends[ends >= length]
            ends = ends[window[ends - length] == window[-1 - length]]
            length += 1
    ids = np.fromiter(longest, dtype=np.int32, count=len(longest))
    lengths = np.fromiter(longest.values(), dtype=np.float64, count=len(longest))
    penalty = params.dry_multiplier * params.dry_base ** (lengths - params.dry_allowed_length)
    return ids, penalty.astype(np.float32)


def _breaks(history: NDArray[np.int32], length: int, breakers: Sequence[bytes], token_bytes: Sequence[bytes]) -> bool:
    """Whether a breaker ends in the token `length` from the end, wherever it began."""
    at = len(history) - length
    own, before = token_bytes[history[at]] if breakers else b"", b""
    n_before = max(map(len, breakers), default=1) - 1
    while len(before) < n_before and at > 0:
        at -= 1
        before = token_bytes[history[at]] + before
    text = before + own
    return any(text.find(b, max(0, len(before) - len(b) + 1)) >= 0 for b in breakers)
