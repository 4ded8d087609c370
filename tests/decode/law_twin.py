"""The sampling law once more: one token at a time, plain Python floats, no numpy in the decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from imp_server.core import SamplingParams


def philox_word(seed: int, choice: int, position: int, token_id: int) -> int:
    c = [position & 0xFFFFFFFF, position >> 32, token_id, choice]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def noise(seed: int, choice: int, position: int, token_id: int) -> float:
    return -math.log(-math.log((philox_word(seed, choice, position, token_id) + 0.5) / 2**32))


def processed(
    logits: Sequence[float],
    p: SamplingParams,
    history: Sequence[int],
    n_prompt: int,
    allowed: set[int] | None,
    words: Sequence[bytes] = (),
) -> list[float]:
    """`words`: what each id writes."""
    out = [float(x) for x in logits]
    f32 = np.float32
    for i, bias in p.logit_bias:
        out[i] = float(f32(out[i]) + f32(bias))
    for i in p.banned_ids:
        out[i] = -math.inf
    start = max(0, len(history) - p.repeat_last_n) if p.repeat_last_n else 0
    for i in range(len(out)):
        if i in history[start:] and p.repetition_penalty != 1.0:
            r = f32(p.repetition_penalty)
            out[i] = float(f32(out[i]) / r if out[i] > 0 else f32(out[i]) * r)
        count = list(history[max(start, n_prompt) :]).count(i)
        if count:
            out[i] = float(f32(out[i]) - (f32(count) * f32(p.frequency_penalty) + f32(p.presence_penalty)))
    if p.dry_multiplier > 0:
        _dry(out, p, list(history), words)
    if allowed is not None:
        out = [x if i in allowed else -math.inf for i, x in enumerate(out)]
    return out


def _n_behind_breakers(p: SamplingParams, history: list[int], words: Sequence[bytes]) -> int:
    """Tokens that begin where the last breaker of the whole text has ended, or behind that."""
    text = b"".join(words[i] for i in history)
    breakers = [b.encode() for b in p.dry_sequence_breakers]
    last = max((n for n in range(len(text) + 1) if any(text[:n].endswith(b) for b in breakers)), default=0)
    starts = [sum(len(words[i]) for i in history[:n]) for n in range(len(history))]
    return sum(start >= last for start in starts)


def _dry(out: list[float], p: SamplingParams, history: list[int], words: Sequence[bytes]) -> None:
    n_unbroken = _n_behind_breakers(p, history, words) if words else len(history)
    window = history[-p.dry_penalty_last_n :] if p.dry_penalty_last_n else history
    longest: dict[int, int] = {}
    for follower in range(1, len(window)):
        length = 0
        while length < min(follower, n_unbroken) and window[follower - 1 - length] == window[-1 - length]:
            length += 1
        if length >= p.dry_allowed_length:
            token = window[follower]
            longest[token] = max(longest.get(token, 0), length)
    for token, length in longest.items():
        penalty = p.dry_multiplier * p.dry_base ** min(length - p.dry_allowed_length, 64)
        out[token] = float(np.float32(out[token]) - np.float32(penalty))


def temperature_of(logits: Sequence[float], p: SamplingParams) -> float:
    if p.dynatemp_range <= 0:
        return p.temperature
    q = probabilities([(i, x) for i, x in enumerate(logits) if x > -math.inf])
    entropy = -math.fsum(x * math.log(x) for x in q if x > 0)
    share = entropy / math.log(len(q)) if len(q) > 1 else 0.0
    low, high = max(0.0, p.temperature - p.dynatemp_range), p.temperature + p.dynatemp_range
    curved: float = min(max(share, 0.0), 1.0) ** p.dynatemp_exponent
    return max(0.01, low + (high - low) * curved)


def xtc_cut(kept: list[tuple[int, float]], p: SamplingParams) -> list[tuple[int, float]]:
    """What is left where the lot falls on XTC."""
    at_least = [t for t, q in zip(kept, probabilities(kept)) if q >= p.xtc_threshold]
    return kept[len(at_least) - 1 :] if at_least else kept


def outcomes(kept: list[tuple[int, float]], p: SamplingParams) -> list[tuple[float, list[tuple[int, float]]]]:
    """(probability, what may then be drawn)."""
    if p.xtc_probability <= 0 or p.mirostat == 2:
        return [(1.0, kept)]
    return [(p.xtc_probability, xtc_cut(kept, p)), (1 - p.xtc_probability, kept)]


def survivors(logits: Sequence[float], p: SamplingParams, mu: float) -> list[tuple[int, float]]:
    """(id, logit / temperature), best first."""
    temperature = temperature_of(logits, p)
    kept = sorted(((i, x / temperature) for i, x in enumerate(logits) if x > -math.inf), key=lambda t: (-t[1], t[0]))
    # the order is by logit; over a positive temperature it can only merge neighbours
    kept.sort(key=lambda t: (-logits[t[0]], t[0]))
    if p.mirostat == 2:
        return [t for t, q in zip(kept, probabilities(kept)) if surprise(q) / math.log(2) <= mu] or kept[:1]
    if p.top_k > 0:
        kept = kept[: p.top_k]
    if p.top_n_sigma > 0:
        alive = [x for x in logits if x > -math.inf]
        mean = math.fsum(alive) / len(alive)
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in alive) / len(alive))
        kept = [t for t in kept if logits[t[0]] >= max(alive) - p.top_n_sigma * deviation] or kept[:1]
    if p.top_p < 1:
        total = 0.0
        for n, q in enumerate(probabilities(kept)):
            total += q
            if total >= p.top_p:
                kept = kept[: n + 1]
                break
    if p.min_p > 0:
        best = probabilities(kept)[0]
        kept = [t for t, q in zip(kept, probabilities(kept)) if q >= p.min_p * best] or kept[:1]
    if p.typical_p < 1:
        shares = probabilities(kept)
        entropy = -sum(x * math.log(x) for x in shares if x > 0)
        near = sorted(range(len(kept)), key=lambda n: (abs(surprise(shares[n]) - entropy), n))
        total, chosen = 0.0, []
        for n in near:
            chosen.append(n)
            total += shares[n]
            if total >= p.typical_p:
                break
        kept = [kept[n] for n in sorted(chosen)]
    return kept


def surprise(q: float) -> float:
    return -math.log(q) if q > 0 else math.inf


def probabilities(kept: Sequence[tuple[int, float]]) -> list[float]:
    peak = max(x for _, x in kept)
    weights = [math.exp(x - peak) for _, x in kept]
    return [w / math.fsum(weights) for w in weights]


def draw(logits: Sequence[float], p: SamplingParams, choice: int, position: int, mu: float) -> tuple[int, float]:
    if max(logits) == -math.inf:
        return -1, mu
    if p.temperature <= 0:
        return max(range(len(logits)), key=lambda i: (logits[i], -i)), mu
    kept = survivors(logits, p, mu)
    if p.mirostat != 2 and (philox_word(p.seed, choice, position, 2**32 - 1) + 0.5) / 2**32 < p.xtc_probability:
        kept = xtc_cut(kept, p)
    best = max(range(len(kept)), key=lambda n: (kept[n][1] + noise(p.seed, choice, position, kept[n][0]), -n))
    if p.mirostat == 2:
        mu -= p.mirostat_eta * (surprise(probabilities(kept)[best]) / math.log(2) - p.mirostat_tau)
    return kept[best][0], mu
