"""Machines run in parallel, explored only where somebody goes: each state is entered with a proof that it can end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from imp_server.core.turns import GaveUp, charge, spend
from imp_server.grammar.machines.explored import refined, representatives
from imp_server.grammar.machines.machine import DEAD, Machine

States = tuple[int, ...]
Way = tuple[int, int]
"""A byte, and the state behind it."""
END: Way = (-1, DEAD)
N_BYTES, N_BYTES_PART = 800, 8
"""Memory of a joint state, its row included, and of each of its parts."""
SEARCH = 20_000
"""States looked at for one proof."""
GUESSED = 256
"""States at which a search tries the guesses, too: behind another beginning one may suit."""


class Product:
    """Owner of the joint states of some machines, numbered as they are met, and of the known ways to an end."""

    def __init__(
        self,
        parts: Sequence[Machine],
        is_lost: Callable[[States], bool],
        is_end: Callable[[States], bool],
        guesses: Callable[[States], Iterable[bytes]] = lambda _: (),
        place: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`is_lost`: nothing is accepted behind these states. `guesses`: words that may lead to an end, tried first.

        `place`: JSON pointer of what is read, if it is known. Steps and proofs raise GaveUp beyond SEARCH states.
        """
        self.parts = parts
        self.classes = refined([m.classes for m in parts])
        self._samples = representatives(self.classes)
        self._is_lost, self._is_end, self._guesses, self._place = is_lost, is_end, guesses, place
        self._numbers: dict[States, int] = {}
        self._states: list[States] = []
        self._rows: list[dict[int, int]] = []
        self._ways: dict[int, Way | None] = {}
        self._ends: dict[int, bool] = {}

    def start(self) -> int:
        """The joint state of all starts, or DEAD where no end can be proved behind it."""
        first = self.number(tuple(m.start for m in self.parts))
        return first if first != DEAD and self.can_end(first) else DEAD

    def number(self, states: States) -> int:
        """The joint state, or DEAD."""
        if self._is_lost(states):
            return DEAD
        number = self._numbers.get(states)
        if number is None:
            charge(N_BYTES + N_BYTES_PART * len(states), 2 + len(states) // 4)
            number = self._numbers[states] = len(self._states)
            self._states.append(states)
            self._rows.append({})
        return number

    def states(self, state: int) -> States:
        """One per part; a part may be DEAD."""
        return self._states[state]

    def accepting(self, states: States) -> list[bool]:
        """Per part: whether it accepts there."""
        return accepting(self.parts, states)

    def step(self, state: int, byte: int) -> int:
        """The joint state after `byte`, or DEAD where no end can be proved behind it."""
        target = self.raw_step(state, byte)
        return target if target != DEAD and self.can_end(target) else DEAD

    def raw_step(self, state: int, byte: int) -> int:
        """As `step`, without the proof."""
        row, kind = self._rows[state], self.classes[byte]
        target = row.get(kind)
        if target is None:
            spend(1 + len(self.parts) // 4)
            states = zip(self.parts, self._states[state])
            target = row[kind] = self.number(tuple(m.step(s, byte) if s != DEAD else DEAD for m, s in states))
        return target

    # --- proofs -----------------------------------------------------------------------------

    def is_end(self, state: int) -> bool:
        found = self._ends.get(state)
        if found is None:
            spend(1 + len(self.parts) // 4)
            found = self._ends[state] = self._is_end(self._states[state])
        return found

    def can_end(self, state: int) -> bool:
        """Whether there is a way to an end; it is remembered. Raises GaveUp."""
        if state in self._ways:
            return self._ways[state] is not None
        if self.is_end(state):
            self._ways[state] = END
            return True
        return self._guessed(state) or self._searched(state)

    def _guessed(self, state: int) -> bool:
        return any(self.led(state, word) for word in self._guesses(self._states[state]))

    def word(self, state: int) -> bytes | None:
        """The bytes of the proof: short, not always the shortest."""
        out = bytearray()
        while not self.is_end(state):
            spend()
            way = self._ways.get(state) if self.can_end(state) else None
            if way is None:
                return None
            out.append(way[0])
            state = way[1]
        return bytes(out)

    def led(self, start: int, word: bytes) -> bool:
        """Whether `word` leads to an end; if so, it is remembered as the proof of all states on its way."""
        path, here = [], start
        spend(1 + len(word) // 2)
        for byte in word:
            target = self.raw_step(here, byte)
            if target == DEAD:
                return False
            path.append((here, (byte, target)))
            here = target
        if not self.is_end(here):
            return False
        self._ways.setdefault(here, END)
        for state, way in path:
            self._ways[state] = self._ways.get(state) or way
        return True

    def _searched(self, start: int) -> bool:
        came: dict[int, Way] = {}
        queue, reached = deque([start]), {start}
        n_guessed = 0
        while queue:
            here = queue.popleft()
            spend(1 + len(self._samples) // 4)
            if 0 < n_guessed < GUESSED:
                self._guessed(here)
            n_guessed += 1
            if self._ways.get(here) is not None or self.is_end(here):
                self._ways.setdefault(here, END)
                while here != start:
                    before, byte = came[here]
                    self._ways[before] = (byte, here)
                    here = before
                return True
            if len(reached) > SEARCH:
                raise GaveUp(self._place())
            for byte in self._samples:
                target = self.raw_step(here, byte)
                if target != DEAD and target not in reached and self._ways.get(target, END) is not None:
                    reached.add(target)
                    came[target] = (here, byte)
                    queue.append(target)
        self._ways.update(dict.fromkeys(reached))
        return False


def accepting(parts: Sequence[Machine], states: States) -> list[bool]:
    """Per part: whether it accepts there."""
    return [s != DEAD and m.accepts(s) for m, s in zip(parts, states)]


def one_by_one(machines: Sequence[Machine], states: Iterable[int]) -> bytes:
    """A word that pleases one machine after the other: all, where each stays pleased, as by a text found."""
    word, here = b"", [s for _, s in zip(machines, states)]
    for _ in machines:
        unmet = next((i for i, (m, s) in enumerate(zip(machines, here)) if not m.accepts(s)), -1)
        more = machines[unmet].shortest(here[unmet]) if unmet >= 0 else b""
        spend(1 + len(machines) * (1 + len(more or b"") // 4))
        for byte in more or b"":
            here = [m.step(s, byte) for m, s in zip(machines, here)]
            if DEAD in here:
                return word
        word += more or b""
    return word
