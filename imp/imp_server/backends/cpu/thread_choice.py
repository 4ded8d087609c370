"""How many threads a step gets: measured, not guessed, and measured again while it runs.

A small step gains little from more threads and loses much when another process holds a core, so each width of step
keeps the recent time per token of every thread count, uses the best, and now and then tries a neighbour of it.
Tokens deep in a context cost more than those at its start, so only steps of like depth are compared: else a shallow
step on one thread beats a deep one on two. The choice never changes results.
"""

from __future__ import annotations

_WEIGHT = 0.3
"""Of the newest time in an average."""
_WEIGHT_OF_FASTER = 0.7
"""The same where the newest is below the average: disturbances, cold memory among them, only ever add time."""
_TRY_EVERY = 48
"""Steps of one width between two trials of another count: a bad trial costs a few percent at most."""
_CLEARLY = 0.97
"""Another count must take less than this share of the best one's time to replace it."""


_SHALLOW = 512
"""Positions up to which all depths are alike; beyond, classes by powers of two."""
_DEEPEST = 6

_Class = tuple[int, int]
"""Width and depth."""


class ThreadChoice:
    """Owner of the cost table: (width and depth of the step, threads) -> seconds per token."""

    def __init__(self, most: int) -> None:
        self.counts = tuple(sorted({1 << i for i in range(most.bit_length()) if 1 << i < most} | {most}))
        self._seconds: dict[_Class, dict[int, float]] = {}
        self._best: dict[_Class, int] = {}
        self._since_trial: dict[_Class, int] = {}
        self._widths: set[int] = set()
        """That have run once: the first step of a width meets cold memory, so it says nothing."""

    def threads_for(self, n_tokens: int, depth: int = 0) -> int:
        """`depth`: how many positions a token of the step sees, on average."""
        kind = _class(n_tokens, depth)
        known = self._measured_like(kind)
        if known is None:
            return self.counts[-1]
        unknown = [n for n in self.counts if n not in self._seconds[known]]
        if unknown:
            return unknown[-1]
        best = self._best[known]
        if len(self.counts) == 1:
            return best
        self._since_trial[kind] = self._since_trial.get(kind, 0) + 1
        if self._since_trial[kind] % _TRY_EVERY:
            return best
        return self._neighbour(best, self._since_trial[kind] // _TRY_EVERY)

    def observe(self, n_tokens: int, n_threads: int, seconds: float, depth: int = 0) -> None:
        kind = _class(n_tokens, depth)
        if kind[0] not in self._widths:
            self._widths.add(kind[0])
            return
        per_token = seconds / n_tokens
        known = self._seconds.get(kind)
        if known is None:
            known = self._seconds[kind] = self._scaled_to(kind, n_threads, per_token)
        before = known.get(n_threads, per_token)
        known[n_threads] = before + (_WEIGHT if per_token > before else _WEIGHT_OF_FASTER) * (per_token - before)
        best = self._best.setdefault(kind, n_threads)
        if len(self.counts) == 1:
            return
        fastest = min(known, key=lambda n: known[n])
        if fastest != best and known[fastest] < _CLEARLY * known[best]:
            self._best[kind] = fastest

    def _measured_like(self, kind: _Class) -> _Class | None:
        """The class itself, or the one of the same width whose depth is nearest."""
        width, depth = kind
        return min((k for k in self._seconds if k[0] == width), key=lambda k: abs(k[1] - depth), default=None)

    def _scaled_to(self, kind: _Class, n_threads: int, per_token: float) -> dict[int, float]:
        """A new class begins with what is known of its neighbour, in proportion, and needs no look at every count."""
        like = self._measured_like(kind)
        if like is None or n_threads not in self._seconds[like] or len(self._seconds[like]) < len(self.counts):
            return {}
        factor = per_token / self._seconds[like][n_threads]
        self._best[kind] = self._best[like]
        return {n: factor * seconds for n, seconds in self._seconds[like].items()}

    def table(self) -> dict[str, dict[str, float]]:
        """Milliseconds per token by widest step of the class and by threads, for the log and the bench.

        Of the shallowest depth that ran.
        """
        shallowest: dict[int, _Class] = {}
        for kind in sorted(self._seconds):
            shallowest.setdefault(kind[0], kind)
        return {
            str((1 << width) - 1): {str(n): round(1e3 * s, 4) for n, s in sorted(self._seconds[kind].items())}
            for width, kind in shallowest.items()
        }

    def _neighbour(self, best: int, turn: int) -> int:
        at = self.counts.index(best)
        beside = [self.counts[i] for i in (at - 1, at + 1) if 0 <= i < len(self.counts)]
        return beside[turn % len(beside)]


def _class(n_tokens: int, depth: int) -> _Class:
    """By powers of two; beyond 32 tokens all widths are alike."""
    return min(n_tokens.bit_length(), 6), min((depth // _SHALLOW).bit_length(), _DEEPEST)
