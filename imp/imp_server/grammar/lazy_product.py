"""Combinations of machines, explored only where somebody goes (product.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imp_server.core import GrammarRefused
from imp_server.grammar.combine import anything, exactly_one, intersect, universal
from imp_server.grammar.machine import DEAD, UNBOUNDED, Machine
from imp_server.grammar.product import Product, States, one_by_one

SEARCH = 4000
"""States looked at for one proof."""


class _Lazy:
    """What combinations have in common. Each makes its `_product`, and says where any text is fine (`universal`)."""

    _product: Product

    def _begin(self) -> None:
        """Raises GrammarRefused if no word is found although there may be one."""
        self.classes = self._product.classes
        self.start = self._product.start()
        if self.start == DEAD and self._product.is_unsure:
            raise GrammarRefused(f"no text that satisfies all rules was found in {SEARCH} steps; simplify them")

    def universal(self, state: int) -> bool:
        raise NotImplementedError

    def step(self, state: int, byte: int) -> int:
        return self._product.step(state, byte)

    def accepts(self, state: int) -> bool:
        return self._product.is_end(state)

    def live(self, state: int) -> bool:
        return state != DEAD

    def room(self, state: int) -> int:
        return UNBOUNDED if self.universal(state) else 0

    def shortest(self, state: int) -> bytes | None:
        """The word of the proof: short, not always the shortest."""
        return None if state == DEAD else self._product.word(state)


class LazyProduct(_Lazy):
    """What all of `wanted` accept and none of `without`."""

    def __init__(self, wanted: Sequence[Machine], without: Sequence[Machine]) -> None:
        """Raises GrammarRefused if no word is found although there may be one."""
        self._wanted, self._without = wanted, without
        self._n_wanted = len(wanted)
        self._product = Product([*wanted, *without], self._is_lost, self._is_end, SEARCH, self._guesses)
        self._begin()

    def _is_lost(self, states: States) -> bool:
        without = zip(self._without, states[self._n_wanted :])
        return DEAD in states[: self._n_wanted] or any(s != DEAD and universal(m, s) for m, s in without)

    def _is_end(self, states: States) -> bool:
        found = self._product.accepting(states)
        return all(found[: self._n_wanted]) and not any(found[self._n_wanted :])

    def _guesses(self, states: States) -> Iterator[bytes]:
        """One part's shortest word may suit all, or the words of all parts one behind the other."""
        for machine, state in zip(self._wanted, states):
            yield machine.shortest(state) or b""
        yield one_by_one(self._wanted, states)

    def universal(self, state: int) -> bool:
        states = self._product.states(state)
        wanted = zip(self._wanted, states)
        return all(universal(m, s) for m, s in wanted) and all(s == DEAD for s in states[self._n_wanted :])


class LazyOne(_Lazy):
    """What exactly one of the machines accepts."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        """Raises GrammarRefused if no word is found although there may be one."""
        self._parts = machines
        self._product = Product(machines, self._is_lost, self._is_end, SEARCH, self._guesses)
        self._begin()

    def _is_lost(self, states: States) -> bool:
        return all(s == DEAD for s in states)

    def _is_end(self, states: States) -> bool:
        return sum(self._product.accepting(states)) == 1

    def _guesses(self, states: States) -> Iterator[bytes]:
        return (m.shortest(s) or b"" for m, s in zip(self._parts, states) if s != DEAD)

    def universal(self, state: int) -> bool:
        alive = [(m, s) for m, s in zip(self._parts, self._product.states(state)) if s != DEAD]
        return len(alive) == 1 and universal(*alive[0])


def either_product(wanted: Sequence[Machine], without: Sequence[Machine]) -> Machine:
    """The whole product where it is small, else a lazy one. Raises GrammarRefused as the lazy one does."""
    try:
        return intersect(wanted, without)
    except GrammarRefused:
        return LazyProduct(wanted or [anything()], without)


def either_one(machines: Sequence[Machine]) -> Machine:
    """The same for what exactly one accepts."""
    try:
        return exactly_one(machines)
    except GrammarRefused:
        return LazyOne([m for m in machines if m.start != DEAD])
