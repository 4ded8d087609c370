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

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._space: GrammarSpace | None = None

    def __call__(self, plan: GrammarPlan) -> Constraint:
        """Raises GrammarRefused."""
        if self._space is None:
            from imp_server.grammar.engine import GrammarSpace

            self._space = GrammarSpace(self._vocabulary)
        from imp_server.grammar.places import Places

        return Places(self._space.matcher(plan))
