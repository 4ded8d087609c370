"""What a step costs, measured: milliseconds by number of tokens, refined with every step."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

_WEIGHT = 0.25
"""Of the newest measurement in its bucket's average."""
_CLIP = 1.5
"""A measurement counts as at most so many times the expected, or so much less: a neighbour's load isn't ours."""
_COMMON = 0.75
"""Of a change seen at one size, the part that is put down to the machine, so that all sizes share it."""
_EXACT = 16
"""Up to here each size of a verification is a class of its own, since rows and their drafts are few; above, an eighth
more tokens make the next one."""


@dataclass(slots=True)
class _Bucket:
    n_tokens: float
    ms: float


class CostTable:
    """Owner of the measurements. Buckets by powers of two; between them the cost is linear.

    Beyond the largest measured size the cost per token is assumed to stay, and no step is planned at more than
    four times that size, so one wrong extrapolation can't hold everybody.
    """

    def __init__(self, first_guess_ms_per_token: float = 2.0) -> None:
        self._guess = first_guess_ms_per_token
        self._buckets: dict[int, _Bucket] = {}
        self._by_size: list[tuple[float, float]] = []
        """Tokens and milliseconds, ascending; empty = to be made anew."""

    def observe(self, n_tokens: int, ms: float) -> None:
        self._by_size = []
        bucket = self._buckets.get(n_tokens.bit_length())
        if bucket is None:
            self._buckets[n_tokens.bit_length()] = _Bucket(float(n_tokens), ms)
            return
        bucket.n_tokens += _WEIGHT * (n_tokens - bucket.n_tokens)
        bucket.ms += _WEIGHT * (ms - bucket.ms)

    @property
    def n_sizes(self) -> int:
        """Sizes, by powers of two, that were measured."""
        return len(self._buckets)

    def estimate_ms(self, n_tokens: int) -> float:
        """Never less for more tokens."""
        points = self._points()
        if not points:
            return self._guess * n_tokens
        (n0, t0), rest = points[0], points[1:]
        if n_tokens <= n0:
            return t0
        for n1, t1 in rest:
            if n_tokens <= n1:
                return t0 + (t1 - t0) * (n_tokens - n0) / (n1 - n0)
            n0, t0 = n1, t1
        return t0 * n_tokens / n0

    def tokens_within(self, budget_ms: float) -> int:
        """The most tokens a step may hold to stay within the budget; at least 1."""
        points = self._points()
        largest = int(4 * points[-1][0]) if points else 64
        low, high = 1, max(1, largest)
        while low < high:
            middle = (low + high + 1) // 2
            if self.estimate_ms(middle) <= budget_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def _points(self) -> list[tuple[float, float]]:
        """(tokens, ms) by size, made monotone."""
        if not self._by_size:
            floor = 0.0
            for _, bucket in sorted(self._buckets.items()):
                floor = max(bucket.ms, floor)
                self._by_size.append((bucket.n_tokens, floor))
        return self._by_size


class VerifyCosts(CostTable):
    """What steps cost in which every position is sampled: one row with a draft, many without.

    Drafts are decided by the proportions of sizes, and only sizes that are chosen get measured. So one slow step must
    not rule a size out for good, and when the whole machine becomes slower or faster, sizes that aren't measured move
    with those that are. Sizes aren't told apart by powers of two: eight rows without drafts and with two would be one.
    """

    def observe(self, n_tokens: int, ms: float) -> None:
        self._by_size = []
        known = [bucket.n_tokens for bucket in self._buckets.values()]
        if not known or not min(known) <= n_tokens <= max(known):
            self._buckets[_size_class(n_tokens)] = _Bucket(float(n_tokens), ms)
            return
        expected = max(self.estimate_ms(n_tokens), 1e-6)
        bucket = self._buckets.setdefault(_size_class(n_tokens), _Bucket(float(n_tokens), expected))
        factor = min(max(ms / expected, 1.0 / _CLIP), _CLIP) ** _WEIGHT
        for each in self._buckets.values():
            each.ms *= factor if each is bucket else factor**_COMMON
        self._by_size = []


def _size_class(n_tokens: int) -> int:
    return n_tokens if n_tokens <= _EXACT else _EXACT + int(log(n_tokens / _EXACT, 1.125))
