"""Grammars of one vocabulary for the step loop: the adapter between grammar.engine and engine.constraint."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from imp_server.core import GrammarPlan
from imp_server.engine.constraint import Constraint, Mask, State
from imp_server.vocab.table import Vocabulary

if TYPE_CHECKING:
    from imp_server.grammar.engine import GrammarSpace, Matcher
    from imp_server.grammar.engine import State as GrammarState


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
        return MatcherConstraint(self._space.matcher(plan))


class MatcherConstraint:
    """One grammar; immutable."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def start(self) -> State:
        return self._matcher.start

    def advance(self, state: State, token_id: int) -> State | None:
        return self._matcher.advance(cast("GrammarState", state), token_id)

    def fill_mask(self, state: State, out: Mask) -> None:
        self._matcher.fill_mask(cast("GrammarState", state), out)

    def is_done(self, state: State) -> bool:
        return self._matcher.is_done(cast("GrammarState", state))

    def forced(self, state: State) -> bytes:
        return self._matcher.forced(cast("GrammarState", state))
