"""The sampling law; every backend's sampler is compared with this one.

logits -> bias -> penalties -> grammar mask (decode/processors.py, float32) -> temperature (dynamic: by the entropy of
what is allowed) -> top-n-sigma -> top-k -> top-p -> min-p -> typical -> XTC; mirostat replaces the truncations.
Survivors are ordered by (logit descending, id ascending); token = argmax(log p + Gumbel), the first of them on ties.
Temperature 0 = argmax, lowest id on ties.
After the processors everything is float64. Each truncation keeps at least one token and sees probabilities
renormalised over the survivors of the one before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.core import SamplingParams
from imp_server.decode.philox import GUMBEL_MAX, gumbel, uniform

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

_FIRST_LOOK = 256
_COLDEST = 0.01
"""Lower bound of a dynamic temperature."""
XTC_ID = 0xFFFFFFFF
"""The counter of the draw that decides on XTC, where those of tokens have their ids."""


class SampledId(NamedTuple):
    """`id` -1: no token was allowed. `mu`: mirostat's running value after this token."""

    id: int
    mu: float


def sample(logits: Float32s, params: SamplingParams, choice: int, position: int, mu: float) -> SampledId:
    """One token from processed logits [vocab]. Raises FloatingPointError if they aren't numbers."""
    best = int(np.argmax(logits))
    if np.isnan(logits[best]):
        raise FloatingPointError("the model's logits aren't numbers (NaN)")
    if logits[best] == -np.inf:
        return SampledId(-1, mu)
    if params.temperature <= 0.0:
        return SampledId(best, mu)
    ids, scaled = candidates(logits, params, choice, position, mu)
    index = _gumbel_argmax(ids, scaled, params.seed, choice, position)
    if params.mirostat:
        surprise = -float(np.log2(softmax(scaled)[index]))
        mu -= params.mirostat_eta * (surprise - params.mirostat_tau)
    return SampledId(int(ids[index]), mu)


def candidates(
    logits: Float32s, params: SamplingParams, choice: int, position: int, mu: float
) -> tuple[Int64s, Float64s]:
    """What is drawn from at this position, by the softmax of the second: `survivors` less what XTC takes away here.

    Temperature is above 0.
    """
    ids, scaled = survivors(logits, params, mu)
    if params.xtc_probability > 0.0 and not params.mirostat:
        n_cut = _n_top_choices(scaled, params, choice, position)
        ids, scaled = ids[n_cut:], scaled[n_cut:]
    return ids, scaled


def survivors(logits: Float32s, params: SamplingParams, mu: float) -> tuple[Int64s, Float64s]:
    """Ids that may be drawn and their logits over temperature, ordered by (logit descending, id ascending).

    All truncations but XTC, which is an event of the position.
    """
    k = 0 if params.mirostat else params.top_k
    ids = best_ids(logits, k if k > 0 else len(logits))
    scaled = logits[ids].astype(np.float64) / _temperature(logits, params)
    n_finite = int(np.count_nonzero(scaled > -np.inf))
    ids, scaled = ids[:n_finite], scaled[:n_finite]
    if params.mirostat:
        n_kept = _zipf_cut(scaled, mu, len(logits)) if params.mirostat == 1 else _surprise_cut(scaled, mu)
        return ids[:n_kept], scaled[:n_kept]
    if params.top_n_sigma > 0.0:
        n_kept = max(1, int(np.count_nonzero(logits[ids] >= _sigma_floor(logits, params.top_n_sigma))))
        ids, scaled = ids[:n_kept], scaled[:n_kept]
    if params.top_p < 1.0:
        n_kept = _n_until(softmax(scaled), params.top_p)
        ids, scaled = ids[:n_kept], scaled[:n_kept]
    if params.min_p > 0.0:
        n_kept = max(1, int(np.count_nonzero(np.exp(scaled - scaled[0]) >= params.min_p)))
        ids, scaled = ids[:n_kept], scaled[:n_kept]
    if params.typical_p < 1.0:
        kept = _typical(scaled, params.typical_p)
        ids, scaled = ids[kept], scaled[kept]
    return ids, scaled


def _surprise_cut(scaled: Float64s, mu: float) -> int:
    """Mirostat 2: how many of the best surprise by at most `mu` bits; at least 1."""
    return max(1, int(np.count_nonzero(_surprise(softmax(scaled)) / np.log(2.0) <= mu)))


_ZIPF_LOOK = 100
"""Of the best tokens, by which mirostat 1 estimates how steeply probabilities fall."""


def _zipf_cut(scaled: Float64s, mu: float, n_vocab: int) -> int:
    """Mirostat 1: how many of the best to keep so that the surprise is about `mu` bits, if probabilities fall by Zipf's
    law; at least 1."""
    looked = scaled[:_ZIPF_LOOK]
    n = len(looked)
    if n < 2:
        return 1
    ranks = np.arange(1, n)
    steps = np.log((ranks + 1) / ranks)
    exponent = float(np.sum(steps * (looked[:-1] - looked[1:])) / np.sum(steps * steps))
    excess = exponent - 1.0
    with np.errstate(all="ignore"):
        share = np.float64(excess) / (1.0 - np.float64(n_vocab) ** -excess)  # both near 0: it is 1 / log n_vocab
        k = (share * np.exp2(mu)) ** (1.0 / np.float64(exponent))
    if not np.isfinite(k):
        return len(scaled)
    return int(min(len(scaled), max(1.0, float(k))))


def _temperature(logits: Float32s, params: SamplingParams) -> float:
    """Dynamic: between temperature - range and temperature + range by (entropy / its maximum) ** exponent."""
    if params.dynatemp_range <= 0.0:
        return params.temperature
    allowed = logits[logits > -np.inf].astype(np.float64)
    p = softmax(allowed)
    p = p[p > 0]
    share = float(-np.sum(p * np.log(p))) / float(np.log(len(allowed))) if len(allowed) > 1 else 0.0
    low = max(0.0, params.temperature - params.dynatemp_range)
    high = params.temperature + params.dynatemp_range
    return max(_COLDEST, low + (high - low) * float(min(1.0, max(0.0, share)) ** params.dynatemp_exponent))


def _sigma_floor(logits: Float32s, n_sigma: float) -> float:
    """The best logit less `n_sigma` standard deviations of the allowed ones. Temperature cancels out."""
    allowed = logits[logits > -np.inf].astype(np.float64)
    return float(allowed.max() - n_sigma * allowed.std())


def _n_top_choices(scaled: Float64s, params: SamplingParams, choice: int, position: int) -> int:
    """How many of the best XTC takes away here: all at or above the threshold but the least of them."""
    lot = uniform(params.seed, choice, position, np.array([XTC_ID]))[0]
    if lot >= params.xtc_probability:
        return 0
    return max(0, int(np.count_nonzero(softmax(scaled) >= params.xtc_threshold)) - 1)


def softmax(x: Float64s) -> Float64s:
    weights = np.exp(x - x.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def best_ids(logits: Float32s, k: int) -> Int64s:
    """The k best ids by (logit descending, id ascending)."""
    keys = _order_keys(logits)
    if k < len(keys):
        keys = np.partition(keys, k - 1)[:k]
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _order_keys(logits: Float32s) -> NDArray[np.uint64]:
    """Integers that sort as (logit descending, id ascending): the float's bits made monotone, then the id.

    Sorting integers is several times faster than a stable argsort of floats.
    """
    bits = (logits + np.float32(0.0)).view(np.uint32)  # + 0 makes -0.0 equal to 0.0
    descending = np.where(bits >> 31, bits, ~(bits | np.uint32(0x80000000)))
    return (descending.astype(np.uint64) << np.uint64(32)) | np.arange(len(logits), dtype=np.uint64)


def _n_until(p: Float64s, mass: float) -> int:
    """Length of the shortest prefix whose sum reaches `mass`; at least 1."""
    return min(len(p), int(np.searchsorted(np.cumsum(p), mass, side="left")) + 1)


def _surprise(p: Float64s) -> Float64s:
    """In nats; what is too unlikely for a float64 surprises without bound."""
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(p), dtype=np.float64)


def _typical(scaled: Float64s, mass: float) -> Int64s:
    """Indices, ascending, of the tokens whose surprise is nearest the entropy and which together hold `mass`."""
    p = softmax(scaled)
    surprise = _surprise(p)
    entropy = float(np.sum(p * surprise, where=p > 0))
    nearest = np.argsort(np.abs(surprise - entropy), kind="stable")
    return np.asarray(np.sort(nearest[: _n_until(p[nearest], mass)]), dtype=np.int64)


def _gumbel_argmax(ids: Int64s, scaled: Float64s, seed: int, choice: int, position: int) -> int:
    """Index of the drawn token.

    Noise is bounded, so with many survivors a first look at the best ones tells how far down a winner can lie.
    """
    n = min(_FIRST_LOOK, len(ids))
    scores = scaled[:n] + gumbel(seed, choice, position, ids[:n])
    best = int(np.argmax(scores))
    if n == len(ids):
        return best
    n_more = int(np.count_nonzero(scaled[n:] > scores[best] - GUMBEL_MAX))
    more = scaled[n : n + n_more] + gumbel(seed, choice, position, ids[n : n + n_more])
    if n_more and more.max() > scores[best]:
        return n + int(np.argmax(more))
    return best
