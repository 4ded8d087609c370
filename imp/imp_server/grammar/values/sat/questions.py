"""Questions about formulas, each answered once: what is known, what is open, and what was given up.

Least fixpoint: a formula that is being asked about counts as unsatisfiable inside its own question, so a
recursive schema is satisfiable only through a finite value. Every search is bounded in work units; an answer None that
isn't proved within them leaves `gave_up` set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from imp_server.core.turns import GaveUp, OverBudget, charge, kept
from imp_server.grammar.machines.giving_up import dropped, part
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.formula import Formula
from imp_server.grammar.values.sat.drawn import Drawn
from imp_server.grammar.values.sat.found import Found, TooLong

N_BYTES = 400
"""Memory of an answer that is kept."""


class Doubt:
    """Whether anything was given up within a `with`."""

    was_raised = False
    where: str | None = None


class Questions(ABC):
    """Owner of the memo of witnesses of one space."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.gave_up = False
        """Whether an answer None since it was last cleared isn't a proof."""
        self.where: str | None = None
        """JSON pointer of what was last given up, if it is known."""
        self.names: dict[Hashable, Drawn] = {}
        """Memo of sat/objects.py."""
        self.members_made: dict[tuple[str, Formula], Found] = {}
        """Another one: shortest members by name and what is asked of the value."""
        self._memo: dict[Hashable, Found | None] = {}
        self._doubtful: dict[Hashable, str | None] = {}
        """Questions whose answer None isn't a proof, and where they were given up."""
        self._open: dict[Hashable, int] = {}
        self._lowest = 1 << 30

    def given_up(self) -> Iterator[None]:
        yield from dropped(self.names, self.members_made, self._memo)
        part(self)

    @abstractmethod
    def value(self, f: Formula) -> Found | None:
        """A shortest value that satisfies `f`."""

    def ask(self, key: Hashable, answer: Callable[[], Found | None]) -> Found | None:
        if key in self._memo:
            if key in self._doubtful:
                self.doubt(self._doubtful[key])
            return self._memo[key]
        if key in self._open:
            self._lowest = min(self._lowest, self._open[key])
            return None
        charge(N_BYTES, 4)
        level = self._open[key] = len(self._open)
        outer, self._lowest = self._lowest, 1 << 30
        try:
            with self.doubting() as doubt:
                try:
                    result = answer()
                except TooLong:
                    # a value would have to be spelled that is longer than any that is served
                    self.give_up()
                    result = None
        except OverBudget as over:
            over.stands(self.place(key))
            raise
        finally:
            del self._open[key]
            depends, self._lowest = self._lowest, min(outer, self._lowest if self._lowest < level else 1 << 30)
        is_doubtful = doubt.was_raised and result is None
        if is_doubtful:
            self.doubt(doubt.where if doubt.where is not None else self.place(key))
        # "no" is final unless it rests on a question that is still open further out
        if result is not None or depends >= level:
            self._memo[key] = result
            if is_doubtful:
                self._doubtful[key] = self.where
            kept()
        return result

    def place(self, key: Hashable) -> str | None:
        """Where what is asked about stands in its document, if it stands there by itself."""
        asked = key[0] if isinstance(key, tuple) else key
        return self.algebra.place_of(asked) if isinstance(asked, Formula) else None

    def give_up(self) -> None:
        """What is being asked isn't proved: an answer None isn't one."""
        self.doubt(next((place for key in reversed(self._open) if (place := self.place(key)) is not None), None))

    def doubt(self, where: str | None) -> None:
        self.gave_up, self.where = True, where

    @contextmanager
    def doubting(self) -> Iterator[Doubt]:
        """Tell apart what is given up inside from what was before."""
        before, self.gave_up, self.where = (self.gave_up, self.where), False, None
        doubt = Doubt()
        try:
            yield doubt
        finally:
            doubt.was_raised, doubt.where = self.gave_up, self.where
            self.gave_up, self.where = before

    def proved(self, ask: Callable[[], Found | None], f: Formula) -> Found | None:
        """The answer of `ask`, whose None is a proof. Raises GaveUp, naming where, or where `f` stands."""
        with self.doubting() as doubt:
            answer = ask()
        if answer is None and doubt.was_raised:
            raise GaveUp(doubt.where if doubt.where is not None else self.algebra.place_of(f))
        return answer
