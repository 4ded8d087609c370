"""Whether a draft model pays, by what it has really cost and saved: text that it reads in vain is never drafted for.

Each single draft is weighed by the cost table (speculation.py). What that can't see is the way there: reading a long
prompt for a short reply, trying rows that accept nothing. So accounts are kept, and a drafter that is behind waits.
"""

from __future__ import annotations

_SHARE = 0.02
"""Of the time of steps, what drafting may lose."""
_OPENING_MS = 1000.0
"""What it may lose before it has shown anything, once per start."""
_MOST_MS = 10_000.0
"""Savings that count: a change of what is asked must show."""


class DraftAccount:
    """Owner of the balance, in milliseconds."""

    def __init__(self, opening_ms: float = _OPENING_MS) -> None:
        self._balance_ms = opening_ms

    @property
    def may_spend(self) -> bool:
        return self._balance_ms > 0.0

    def note_step(self, elapsed_ms: float) -> None:
        """A step took so long: its share is there to be lost."""
        self._add(_SHARE * elapsed_ms)

    def spend(self, ms: float) -> None:
        """Reading, drafting, or what a step takes longer with drafts."""
        self._add(-ms)

    def save(self, ms: float) -> None:
        """Accepted tokens would have taken so long."""
        self._add(ms)

    def _add(self, ms: float) -> None:
        self._balance_ms = min(_MOST_MS, self._balance_ms + ms)
