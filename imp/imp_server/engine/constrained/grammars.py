"""Grammars of one vocabulary for the step loop, built on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imp_server.core import GrammarPlan
from imp_server.engine.constrained.constraint import Constraint
from imp_server.vocab.table import Vocabulary

if TYPE_CHECKING:
    from imp_server.grammar.engine import GrammarSpace


class Grammars:
    """Owner of the automaton that all grammars of an engine share. Built at the first grammar, on the mask thread."""

    def __init__(self, vocabulary: Vocabulary, *, max_whitespace: int = 48, memory_mib: int = 256) -> None:
        """`max_whitespace`: most blanks in a row outside strings. `memory_mib`: of all grammars, masks included."""
        self._vocabulary = vocabulary
        self._max_whitespace = max_whitespace
        self._memory_mib = memory_mib
        self._space: GrammarSpace | None = None

    def abandon(self) -> None:
        """A thread is stuck in it: the next grammar begins on a new one."""
        self._space = None

    @property
    def n_bytes(self) -> int:
        """Memory of all grammars."""
        return 0 if self._space is None else self._space.n_bytes

    def __call__(self, plan: GrammarPlan) -> Constraint:
        """Raises GrammarRefused, GrammarMemoryFull."""
        if self._space is None:
            from imp_server.grammar.engine import GrammarSpace

            n_bytes = self._memory_mib << 20
            self._space = GrammarSpace(self._vocabulary, n_blanks=self._max_whitespace, n_bytes=n_bytes)
        from imp_server.grammar.places import Places

        return Places(self._space.matcher(plan))
