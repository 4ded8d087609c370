"""An intersection of machines, explored only where somebody goes (product.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imp_server.core import GrammarRefused
from imp_server.grammar.combine import anything, intersect, universal
from imp_server.grammar.machine import DEAD, UNBOUNDED, Machine
from imp_server.grammar.product import Product, States

SEARCH = 4000
"""States looked at for one proof."""


class LazyProduct:
    """What all of `wanted` accept and none of `without`."""

    def __init__(self, wanted: Sequence[Machine], without: Sequence[Machine]) -> None:
        """Raises GrammarRefused if no word is found although there may be one."""
        self._wanted, self._without = wanted, without
        self._n_wanted = len(wanted)
        self._product = Product([*wanted, *without], self._is_lost, self._is_end, SEARCH, self._shortest_of_parts)
        self.classes = self._product.classes
        self.start = self._product.start()
        if self.start == DEAD and self._product.is_unsure:
            raise GrammarRefused(f"no text that satisfies all rules was found in {SEARCH} steps; simplify them")

    def _is_lost(self, states: States) -> bool:
        without = zip(self._without, states[self._n_wanted :])
        return DEAD in states[: self._n_wanted] or any(s != DEAD and universal(m, s) for m, s in without)

    def _is_end(self, states: States) -> bool:
        found = self._product.accepting(states)
        return all(found[: self._n_wanted]) and not any(found[self._n_wanted :])

    def _shortest_of_parts(self, states: States) -> Iterator[bytes]:
        """One part's shortest word may suit all, or the words of all parts one behind the other."""
        for machine, state in zip(self._wanted, states):
            yield machine.shortest(state) or b""
        yield self._one_by_one(list(states[: self._n_wanted]))

    def _one_by_one(self, states: list[int]) -> bytes:
        """A word that pleases one part after the other: it does where a part stays pleased, as by a text found."""
        word = b""
        for _ in self._wanted:
            unmet = (i for i, (m, s) in enumerate(zip(self._wanted, states)) if not m.accepts(s))
            more = None if (at := next(unmet, -1)) < 0 else self._wanted[at].shortest(states[at])
            for byte in more or b"":
                states = [m.step(s, byte) for m, s in zip(self._wanted, states)]
                if DEAD in states:
                    return word
            word += more or b""
        return word

    def step(self, state: int, byte: int) -> int:
        return self._product.step(state, byte)

    def accepts(self, state: int) -> bool:
        return self._product.is_end(state)

    def live(self, state: int) -> bool:
        return state != DEAD

    def universal(self, state: int) -> bool:
        states = self._product.states(state)
        wanted = zip(self._wanted, states)
        return all(universal(m, s) for m, s in wanted) and all(s == DEAD for s in states[self._n_wanted :])

    def room(self, state: int) -> int:
        return UNBOUNDED if self.universal(state) else 0

    def shortest(self, state: int) -> bytes | None:
        """The word of the proof: short, not always the shortest."""
        return None if state == DEAD else self._product.word(state)


def either_product(wanted: Sequence[Machine], without: Sequence[Machine]) -> Machine:
    """The whole product where it is small, else a lazy one. Raises GrammarRefused as the lazy one does."""
    try:
        return intersect(wanted, without)
    except GrammarRefused:
        return LazyProduct(wanted or [anything()], without)
