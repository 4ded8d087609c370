"""A plentiful language without a few texts: what uniqueness and `not: {enum}` ask of strings, without any product."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.explored import refined
from imp_server.grammar.machines.literals import Literals
from imp_server.grammar.machines.machine import DEAD, Machine
from imp_server.grammar.machines.plain_length import PlainLength

N_BYTES = 300
"""Memory of a state."""


class Unlike:
    """The texts of `inner`, which is every text or every text of a length, without `texts`.

    A state is (state of `inner`, state in the trie of `texts` or DEAD). Wherever one more code point may follow there
    are more words than `texts` can take away, so only a full text can be dead.
    """

    def __init__(self, inner: Machine, texts: Collection[bytes]) -> None:
        self._inner = inner
        self._trie = Literals(texts)
        self.classes = refined([inner.classes, self._trie.classes])
        self._numbers: dict[tuple[int, int], int] = {}
        self._states: list[tuple[int, int]] = []
        self.start = DEAD if inner.start == DEAD else self._intern(inner.start, self._trie.start)

    def _intern(self, inner: int, trie: int) -> int:
        if inner == DEAD or (self._is_full(inner) and trie != DEAD and self._trie.accepts(trie)):
            return DEAD
        number = self._numbers.get((inner, trie))
        if number is None:
            charge(N_BYTES, 1)
            number = self._numbers[(inner, trie)] = len(self._states)
            self._states.append((inner, trie))
        return number

    def _is_full(self, inner: int) -> bool:
        return isinstance(self._inner, PlainLength) and self._inner.room(inner) == 0 and self._inner.accepts(inner)

    def step(self, state: int, byte: int) -> int:
        inner, trie = self._states[state]
        return self._intern(self._inner.step(inner, byte), DEAD if trie == DEAD else self._trie.step(trie, byte))

    def accepts(self, state: int) -> bool:
        inner, trie = self._states[state]
        return self._inner.accepts(inner) and (trie == DEAD or not self._trie.accepts(trie))

    def live(self, state: int) -> bool:
        return state != DEAD

    def universal(self, state: int) -> bool:
        inner, trie = self._states[state]
        known = getattr(self._inner, "universal", None)
        return trie == DEAD and known is not None and bool(known(inner))

    def room(self, state: int) -> int:
        inner, trie = self._states[state]
        room = self._inner.room(inner)
        return room if trie == DEAD or not isinstance(self._inner, PlainLength) or room > 1 << 20 else max(0, room - 1)

    def shortest(self, state: int) -> bytes | None:
        if state == DEAD:
            return None
        first = self._inner.shortest(self._states[state][0]) or b""
        behind = self._behind(state, first)
        for size in range(4) if behind != DEAD else ():
            for letters in product(b"abcdefgh", repeat=size):
                here = self._behind(behind, bytes(letters))
                if here != DEAD and self.accepts(here):
                    return first + bytes(letters)
        return self._other(state, first)

    def _other(self, state: int, first: bytes) -> bytes | None:
        """A text of the exact length that `inner` still wants, where appending doesn't help."""
        for size in range(1, min(4, len(first)) + 1):
            for letters in product(b"bcdefgh", repeat=size):
                text = bytes(letters) + first[size:]
                here = self._behind(state, text)
                if here != DEAD and self.accepts(here):
                    return text
        return None

    def _behind(self, state: int, text: bytes) -> int:
        """The state behind a text, or DEAD."""
        spend(1 + len(text) // 2)
        for byte in text:
            state = self.step(state, byte)
            if state == DEAD:
                break
        return state
