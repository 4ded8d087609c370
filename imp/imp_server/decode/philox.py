"""Philox4x32-10 (Salmon et al., SC11), vectorised over counters, and the uniform and Gumbel noise of sampling.

Key: the two halves of the row's 64-bit seed. Counter words: output position (low, high), token id, choice.
So a token's noise depends on (seed, choice, position, id) alone: not on batch mates, truncation or drafts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
GUMBEL_MAX = float(-np.log(-np.log1p(-(2.0**-33))))
"""No draw of `gumbel` exceeds this."""


def philox4x32(key: tuple[int, int], counters: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Ten rounds. `counters` [n, 4] -> [n, 4]."""
    c0, c1, c2, c3 = (counters[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            (p1 >> _HALF) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _HALF) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def uniform(seed: int, choice: int, position: int, ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """One number per token id, in (0, 1): (first output word + 1/2) / 2^32."""
    counters = np.empty((len(ids), 4), dtype=np.uint32)
    counters[:, 0] = position & 0xFFFFFFFF
    counters[:, 1] = position >> 32
    counters[:, 2] = ids
    counters[:, 3] = choice
    words = philox4x32((seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF), counters)[:, 0]
    return (words.astype(np.float64) + 0.5) * 2.0**-32


def gumbel(seed: int, choice: int, position: int, ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """Standard Gumbel noise per token id."""
    return -np.log(-np.log(uniform(seed, choice, position, ids)))
