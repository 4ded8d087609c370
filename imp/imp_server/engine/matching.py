"""Grammars of one vocabulary for the step loop, built on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imp_server.core import GrammarPlan
from imp_server.engine.constraint import Constraint
from imp_server.vocab.table import Vocabulary

if TYPE_CHECKING:
    from imp_server.grammar.engine import GrammarSpace


class Grammars:
    """Owner of the automaton that all grammars of an engine share. Built at the first grammar, on the mask thread."""

    def __init__(
        self, vocabulary: Vocabulary, *, max_whitespace: int = 48, memo_mib: int = 512, max_states: int = 200_000
    ) -> None:
        """`max_whitespace`: most blanks in a row outside strings. `memo_mib`: MiB of token masks kept.

        `max_states`: automaton states kept.
        """
        self._vocabulary = vocabulary
        self._max_whitespace = max_whitespace
        self._memo_mib = memo_mib
        self._max_states = max_states
        self._space: GrammarSpace | None = None

    def abandon(self) -> None:
        """A thread is stuck in it: the next grammar begins on a new one."""
        self._space = None

    def __call__(self, plan: GrammarPlan) -> Constraint:
        """Raises GrammarRefused."""
        if self._space is None:
            from imp_server.grammar.engine import GrammarSpace

            n_bytes = self._memo_mib << 20
            self._space = GrammarSpace(
                self._vocabulary, n_blanks=self._max_whitespace, mask_bytes=n_bytes, max_states=self._max_states
            )
        from imp_server.grammar.places import Places

        return Places(self._space.matcher(plan))
