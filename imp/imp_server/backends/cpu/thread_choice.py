"""How many threads a step gets: measured, not guessed, and measured again while it runs.

A small step gains little from more threads and loses much when another process holds a core, so each width of step
keeps the recent time per token of every thread count, uses the best, and now and then tries a neighbour of it.
The choice never changes results.
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


class ThreadChoice:
    """Owner of the cost table: (width of the step, threads) -> seconds per token."""

    def __init__(self, most: int) -> None:
        self.counts = tuple(sorted({1 << i for i in range(most.bit_length()) if 1 << i < most} | {most}))
        self._seconds: dict[int, dict[int, float]] = {}
        self._best: dict[int, int] = {}
        self._since_trial: dict[int, int] = {}

    def threads_for(self, n_tokens: int) -> int:
        width = _width(n_tokens)
        known = self._seconds.get(width, {})
        unknown = [n for n in self.counts if n not in known]
        if unknown:
            return unknown[-1]
        best = self._best[width]
        if len(self.counts) == 1:
            return best
        self._since_trial[width] = self._since_trial.get(width, 0) + 1
        if self._since_trial[width] % _TRY_EVERY:
            return best
        return self._neighbour(best, self._since_trial[width] // _TRY_EVERY)

    def observe(self, n_tokens: int, n_threads: int, seconds: float) -> None:
        width = _width(n_tokens)
        if width not in self._seconds:
            self._seconds[width] = {}  # the first step of a width meets cold memory: it says nothing
            return
        known = self._seconds[width]
        per_token = seconds / n_tokens
        before = known.get(n_threads, per_token)
        known[n_threads] = before + (_WEIGHT if per_token > before else _WEIGHT_OF_FASTER) * (per_token - before)
        best = self._best.setdefault(width, n_threads)
        if len(self.counts) == 1:
            return
        fastest = min(known, key=lambda n: known[n])
        if fastest != best and known[fastest] < _CLEARLY * known[best]:
            self._best[width] = fastest

    def table(self) -> dict[str, dict[str, float]]:
        """Milliseconds per token by widest step of the class and by threads, for the log and the bench."""
        return {
            str((1 << width) - 1): {str(n): round(1e3 * s, 4) for n, s in sorted(by_count.items())}
            for width, by_count in sorted(self._seconds.items())
        }

    def _neighbour(self, best: int, turn: int) -> int:
        at = self.counts.index(best)
        beside = [self.counts[i] for i in (at - 1, at + 1) if 0 <= i < len(self.counts)]
        return beside[turn % len(beside)]


def _width(n_tokens: int) -> int:
    """Class of a step by powers of two; beyond 32 tokens all steps are alike."""
    return min(n_tokens.bit_length(), 6)
