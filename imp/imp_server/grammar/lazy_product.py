"""An intersection that is explored only where somebody goes: each state is entered with a proof that it can end.

The proof is a word, found by following one part's own shortest way and, failing that, breadth first.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from imp_server.core import GrammarRefused
from imp_server.grammar.combine import universal
from imp_server.grammar.explored import refined, representatives
from imp_server.grammar.machine import DEAD, UNBOUNDED, Machine

SEARCH = 4000
"""States looked at for one proof."""

States = tuple[int, ...]
END = (-1, DEAD)


class LazyProduct:
    """What all of `wanted` accept and none of `without`."""

    def __init__(self, wanted: Sequence[Machine], without: Sequence[Machine]) -> None:
        """Raises GrammarRefused if no word is found although there may be one."""
        self._parts = [*wanted, *without]
        self._n_wanted = len(wanted)
        self.classes = refined([m.classes for m in self._parts])
        self._samples = representatives(self.classes)
        self._numbers: dict[States, int] = {}
        self._states: list[States] = []
        self._rows: list[dict[int, int]] = []
        self._next: dict[int, tuple[int, int] | None] = {}
        self._unsure = False
        first = self._intern(tuple(m.start for m in self._parts))
        self.start = first if first != DEAD and self._alive(first) else DEAD
        if self.start == DEAD and self._unsure:
            raise GrammarRefused(f"no text that satisfies all rules was found in {SEARCH} steps; simplify them")

    def _intern(self, states: States) -> int:
        if DEAD in states[: self._n_wanted]:
            return DEAD
        without = zip(self._parts[self._n_wanted :], states[self._n_wanted :])
        if any(s != DEAD and universal(m, s) for m, s in without):
            return DEAD
        number = self._numbers.setdefault(states, len(self._states))
        if number == len(self._states):
            self._states.append(states)
            self._rows.append({})
        return number

    def _raw(self, state: int, byte: int) -> int:
        row, kind = self._rows[state], self.classes[byte]
        target = row.get(kind)
        if target is None:
            states = zip(self._parts, self._states[state])
            target = row[kind] = self._intern(tuple(m.step(s, byte) if s != DEAD else DEAD for m, s in states))
        return target

    def step(self, state: int, byte: int) -> int:
        target = self._raw(state, byte)
        return target if target != DEAD and self._alive(target) else DEAD

    def accepts(self, state: int) -> bool:
        found = [s != DEAD and m.accepts(s) for m, s in zip(self._parts, self._states[state])]
        return all(found[: self._n_wanted]) and not any(found[self._n_wanted :])

    def live(self, state: int) -> bool:
        return state != DEAD

    def universal(self, state: int) -> bool:
        states = self._states[state]
        wanted = zip(self._parts[: self._n_wanted], states)
        return all(universal(m, s) for m, s in wanted) and all(s == DEAD for s in states[self._n_wanted :])

    def room(self, state: int) -> int:
        return UNBOUNDED if self.universal(state) else 0

    def shortest(self, state: int) -> bytes | None:
        """The word of the proof: short, not always the shortest."""
        if state == DEAD:
            return None
        out = bytearray()
        while not self.accepts(state):
            way = self._next[state] if self._alive(state) else None
            if way is None:
                return None
            out.append(way[0])
            state = way[1]
        return bytes(out)

    # --- proofs -----------------------------------------------------------------------------

    def _alive(self, state: int) -> bool:
        if state in self._next:
            return self._next[state] is not None
        if self.accepts(state):
            self._next[state] = END
            return True
        return self._followed(state) or self._searched(state)

    def _followed(self, start: int) -> bool:
        """Whether one part's shortest word suits all."""
        for machine, state in zip(self._parts[: self._n_wanted], self._states[start]):
            path, here = [(start, -1)], start
            for byte in machine.shortest(state) or b"":
                here = self._raw(here, byte)
                if here == DEAD:
                    break
                path.append((here, byte))
            if here != DEAD and self.accepts(here):
                self._next.setdefault(here, END)
                for (before, _), (after, byte) in itertools.pairwise(path):
                    self._next[before] = self._next.get(before) or (byte, after)
                return True
        return False

    def _searched(self, start: int) -> bool:
        came: dict[int, tuple[int, int]] = {}
        queue, reached = deque([start]), {start}
        while queue:
            here = queue.popleft()
            if self._next.get(here) is not None or self.accepts(here):
                self._next.setdefault(here, END)
                while here != start:
                    before, byte = came[here]
                    self._next[before] = (byte, here)
                    here = before
                return True
            if len(reached) > SEARCH:
                self._unsure = True
                self._next[start] = None
                return False
            for byte in self._samples:
                target = self._raw(here, byte)
                if target != DEAD and target not in reached and self._next.get(target, END) is not None:
                    reached.add(target)
                    came[target] = (here, byte)
                    queue.append(target)
        self._next.update(dict.fromkeys(reached))
        return False
