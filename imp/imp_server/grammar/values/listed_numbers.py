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
    """A state is (state in the trie of shortest spellings or DEAD, whether all that was read is one and some zeros).

    Spellings stand in the trie with their point (`12.`, `12.5`), so that a number and its fractions share a way.
    """

    def __init__(self, values: Collection[Decimal], *, point: bool = True) -> None:
        """`point`: a whole number may be written with a fraction, too."""
        texts = [f"{number_of(value):f}" for value in values]
        texts += ["-0"] if 0 in values else []
        self._point = point
        self._trie = Literals([(t if "." in t or not point else t + ".").encode() for t in texts])
        self.classes = CLASSES
        self._numbers: dict[tuple[int, bool], int] = {}
        self._states: list[tuple[int, bool]] = []
        self.start = self._intern(self._trie.start, False)

    def _intern(self, trie: int, padded: bool) -> int:
        if trie == DEAD and not padded:
            return DEAD
        number = self._numbers.setdefault((trie, padded), len(self._states))
        if number == len(self._states):
            self._states.append((trie, padded))
        return number

    def step(self, state: int, byte: int) -> int:
        trie, padded = self._states[state]
        zero = byte == ZERO[0] and (padded or self._is_whole(trie))
        with GROWING:
            return self._intern(DEAD if trie == DEAD else self._trie.step(trie, byte), zero)

    def _is_whole(self, trie: int) -> bool:
        """Whether what was read is one of the spellings, point included."""
        return self._point and trie != DEAD and self._trie.accepts(trie)

    def accepts(self, state: int) -> bool:
        trie, padded = self._states[state]
        if padded or trie == DEAD:
            return padded
        if not self._trie.accepts(trie):
            pointed = self._trie.step(trie, POINT[0])
            return pointed != DEAD and self._trie.accepts(pointed) and self._point
        return not self._point or not self._text(trie).endswith(POINT)

    def _text(self, trie: int) -> bytes:
        return self._trie.texts[self._trie.index(trie)]

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
