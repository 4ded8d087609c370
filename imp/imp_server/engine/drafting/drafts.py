"""One row's drafters and how their drafts have fared."""

from __future__ import annotations

from dataclasses import dataclass

from imp_server.decode.drafter import RowDrafter

_PRIOR = 1.0
"""Tokens that the drafter's own confidence counts for."""
_MEMORY = 0.9
"""What a verification weighs after the next one."""
_PROBE_TOKENS = 3
"""Longest draft of a drafter whose guesses haven't been tried yet: text is mostly either copied or not at all."""
_SURE = 0.9
"""Confidence from which nothing needs to be tried."""
_FRUITFUL_TOKENS = 8
"""Tokens behind an accepted draft within which there mostly is another."""
_RETRY_TOKENS = 128
"""Tokens after which a row whose drafts didn't pay is looked at afresh."""


class Acceptance:
    """Owner of one row's experience with one drafter."""

    def __init__(self, confidence: float) -> None:
        self._confidence = confidence
        self._accepted = self._tried = 0.0
        self._declined_at: int | None = None

    @property
    def rate(self) -> float:
        """Of drafted tokens whose predecessors were accepted, the share that was, too."""
        return (self._accepted + _PRIOR * self._confidence) / (self._tried + _PRIOR)

    @property
    def limit(self) -> int | None:
        """Longest draft to try; None = any."""
        return None if self._tried or self._confidence >= _SURE else _PROBE_TOKENS

    def note(self, n_drafted: int, n_accepted: int) -> None:
        self._declined_at = None
        self._accepted = _MEMORY * self._accepted + n_accepted
        self._tried = _MEMORY * self._tried + min(n_drafted, n_accepted + 1)

    def decline(self, position: int) -> None:
        """The draft wasn't worth it; after a while the row may have come to other text, so the past is forgotten."""
        if self._declined_at is None:
            self._declined_at = position
        elif position - self._declined_at >= _RETRY_TOKENS:
            self._accepted = self._tried = 0.0
            self._declined_at = None


@dataclass(slots=True, eq=False)
class RowDrafting:
    """One row's drafters by name with their acceptance, and whose proposal is being tried."""

    drafters: dict[str, tuple[RowDrafter, Acceptance]]
    wants_hidden: bool = False
    current: str = ""
    is_prediction: bool = False
    silent_until: int = 0
    """Output position before which none of them needs to be asked."""
    fruitful_until: int = 0
    """Output position before which a draft is likely, since one was accepted."""

    def note_success(self, position: int) -> None:
        """A draft was accepted."""
        self.fruitful_until = position + _FRUITFUL_TOKENS

    def note_silence(self) -> None:
        """Nobody had an idea that pays."""
        self.silent_until = min((drafter.silent_until for drafter, _ in self.drafters.values()), default=1 << 62)

    def close(self) -> None:
        """The row is over: what its drafters hold for it is free."""
        for drafter, _ in self.drafters.values():
            drafter.close()
