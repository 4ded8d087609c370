"""How the rows of accepted requests are served, where that is configured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowRules:
    length_steering: bool = True
    """Constrained replies are brought to their end within max_tokens (grammar_row.py)."""
    takes_only: bool = True
    """A token about which a grammar leaves no choice is taken without logits."""
    checkpoint_min_step: int = 8192
    """Tokens between two snapshots of a prompt's state (schedule/snapshots.py)."""
