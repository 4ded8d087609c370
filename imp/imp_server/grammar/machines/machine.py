"""What every byte automaton of this package offers, and nothing else.

A machine reads the raw UTF-8 bytes of a *decoded* text (a JSON string's value, a number's digits, a whole
completion). States are small interned ints that stay valid for the machine's life; machines are
deterministic and grow lazily. Every machine rejects bytes that aren't UTF-8 (surrogates included).
"""

from __future__ import annotations

from threading import RLock
from typing import Protocol

DEAD = -1
"""The state from which nothing is accepted; it is never entered."""

UNBOUNDED = 1 << 30
"""Answer of `room` where any amount of text may follow."""

GROWING = RLock()
"""Held while a machine gets a new state: machines are shared by all grammars of a process, whatever their threads."""


class Machine(Protocol):
    """Deterministic automaton over bytes, with lazily interned states."""

    start: int
    """DEAD if the language is empty as far as the machine knows without searching."""
    classes: bytes
    """256 entries: bytes of equal class lead to equal states from every state."""

    def step(self, state: int, byte: int) -> int:
        """The state after `byte`, or DEAD. Never DEAD only because it is unknown: exactness is the contract."""
        ...

    def accepts(self, state: int) -> bool: ...

    def live(self, state: int) -> bool:
        """Whether some continuation is accepted. Bounded search; raises GrammarRefused above the budget."""
        ...

    def shortest(self, state: int) -> bytes | None:
        """A shortest accepted continuation; None if there is none. Same bound as `live`."""
        ...

    def room(self, state: int) -> int:
        """Code points of arbitrary text that may follow here without ever becoming dead (not: be accepted).

        A lower bound: 0 is always right. UNBOUNDED for e.g. `.*` or a length with no maximum. What follows
        up to `room` must also stay live. States with equal acceptance and a room beyond every token share masks.
        """
        ...
