"""Freezes the heap for the collector of garbage: what grammars keep lives as long as their space; nobody need walk it.

A full collection stops every thread: behind some thousand states of a grammar for hundreds of milliseconds.
"""

from __future__ import annotations

import gc

from imp_server.core.turns import n_kept

EVERY = 2000
"""Things kept by this thread between two looks."""


class HeapFreezer:
    """Owner of when all that lives is frozen (gc.freeze). Called by the mask thread between its turns.

    Cycles that become garbage behind that stay: grammars that are given up are taken apart instead (giving_up.py).
    """

    def __init__(self) -> None:
        self._at = 0

    def __call__(self) -> None:
        if n_kept() - self._at < EVERY:
            return
        self._at = n_kept()
        # the first time old garbage is looked for, too
        gc.collect(1 if gc.get_freeze_count() else 2)
        gc.freeze()
