"""A finite set of numbers as a machine over plain decimals: every spelling of each, and nothing is built."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal

from imp_server.grammar.machines.literals import Literals
from imp_server.grammar.machines.machine import DEAD, GROWING
from imp_server.grammar.machines.numbers import CLASSES
from imp_server.grammar.values.json_values import number_of

POINT, ZERO = b".", b"0"


class ListedNumbers:
    """A state is (state in the trie of shortest spellings or DEAD, index of the number that was read with some zeros).

    Spellings stand in the trie with their point (`12.`, `12.5`), so that a number and its fractions share a way.
    """

    def __init__(self, values: Collection[Decimal], *, point: bool = True) -> None:
        """`point`: a whole number may be written with a fraction, too."""
        self.values = sorted(values)
        spelled = {f"{number_of(value):f}": at for at, value in enumerate(self.values)}
        spelled |= {"-0": spelled["0"]} if "0" in spelled else {}
        self._point = point
        at = {(t if "." in t or not point else t + ".").encode(): index for t, index in spelled.items()}
        self._trie = Literals([*at])
        self._index = [at[text] for text in self._trie.texts]
        """Of the number, by text of the trie."""
        self.classes = CLASSES
        self._numbers: dict[tuple[int, int], int] = {}
        self._states: list[tuple[int, int]] = []
        self.start = self._intern(self._trie.start, -1)

    def _intern(self, trie: int, padded: int) -> int:
        if trie == DEAD and padded < 0:
            return DEAD
        number = self._numbers.setdefault((trie, padded), len(self._states))
        if number == len(self._states):
            self._states.append((trie, padded))
        return number

    def step(self, state: int, byte: int) -> int:
        trie, padded = self._states[state]
        if byte != ZERO[0]:
            padded = -1
        elif padded < 0 and self._point and trie != DEAD and self._trie.accepts(trie):
            padded = self._index[self._trie.index(trie)]
        with GROWING:
            return self._intern(DEAD if trie == DEAD else self._trie.step(trie, byte), padded)

    def accepts(self, state: int) -> bool:
        return self.index(state) >= 0

    def index(self, state: int) -> int:
        """Index in `values` of the number that ends here, or -1."""
        trie, padded = self._states[state]
        if padded >= 0 or trie == DEAD:
            return padded
        at = self._trie.index(trie)
        if at < 0:
            pointed = self._trie.step(trie, POINT[0]) if self._point else DEAD
            at = -1 if pointed == DEAD else self._trie.index(pointed)
        elif self._point and self._trie.texts[at].endswith(POINT):
            return -1
        return -1 if at < 0 else self._index[at]

    def live(self, state: int) -> bool:
        return state != DEAD

    def shortest(self, state: int) -> bytes | None:
        if state == DEAD:
            return None
        if self.accepts(state):
            return b""
        rest = self._trie.shortest(self._states[state][0]) or b""
        return (rest.removesuffix(POINT) if len(rest) > 1 else rest) or ZERO

    def room(self, state: int) -> int:
        return 0
