"""Machines whose states were all visited: combinations that aren't monotone need it to know their dead ends.

A product of automata may run into states from which nothing is accepted although every part still hopes. Such
states are found once, by walking the whole product under a budget, and are never entered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import TypeVar

from imp_server.core import GrammarRefused
from imp_server.core.turns import charge
from imp_server.grammar.machines.machine import DEAD, UNBOUNDED
from imp_server.grammar.machines.nodes import INFINITE, Spread

BUDGET = 20_000
"""Transitions that may be looked at while one combination is explored."""

N_BYTES, N_BYTES_CLASS = 900, 24
"""Memory of a state, and of each entry of its row, what is worked out about it included."""

_PREFERRED = bytes([*b"abcdefghijklmnopqrstuvwxyz0123456789", *range(256)])

S = TypeVar("S", bound=Hashable)


class Explored:
    """A complete table; every state is live."""

    def __init__(
        self, classes: bytes, rows: list[list[int]], accepting: list[bool], universal: set[int], start: int
    ) -> None:
        """`rows[state][class]`; states that can't reach an accepting one are taken out."""
        self.classes = classes
        self._representatives = representatives(classes)
        self._rows, self._accepting, self._universal = rows, accepting, universal
        self._best = self._distances()
        for row in rows:
            row[:] = [t if t != DEAD and self._best[t] is not None else DEAD for t in row]
        self.start = start if start != DEAD and self._best[start] is not None else DEAD
        self._spreads: list[Spread] = []

    def step(self, state: int, byte: int) -> int:
        return self._rows[state][self.classes[byte]]

    def accepts(self, state: int) -> bool:
        return self._accepting[state]

    def live(self, state: int) -> bool:
        return state != DEAD

    def room(self, state: int) -> int:
        return UNBOUNDED if state in self._universal else 0

    def universal(self, state: int) -> bool:
        return state in self._universal

    def shortest(self, state: int) -> bytes | None:
        if state == DEAD:
            return None
        out = bytearray()
        while not self._accepting[state]:
            best = self._best[state]
            assert best is not None
            out.append(self._representatives[best[1]])
            state = self._rows[state][best[1]]
        return bytes(out)

    @property
    def n_states(self) -> int:
        return len(self._rows)

    @property
    def reach(self) -> int:
        """Bound on the fewest code points still missing in any state."""
        return max((self.spread(s).low for s in range(len(self._rows)) if self._best[s] is not None), default=0)

    def spread(self, state: int) -> Spread:
        """Lengths of what may still come, in code points."""
        if not self._spreads:
            least, most = self._lengths()
            # A word longer than the number of states has a loop in it; cutting it out skips at most that many.
            self._spreads = [Spread(a, b, max(1, len(self._rows))) for a, b in zip(least, most, strict=True)]
        return self._spreads[state]

    def _edges_back(self) -> list[list[tuple[int, int]]]:
        back: list[list[tuple[int, int]]] = [[] for _ in self._rows]
        for source, row in enumerate(self._rows):
            for kind, target in enumerate(row):
                if target != DEAD:
                    back[target].append((source, kind))
        return back

    def _distances(self) -> list[tuple[int, int] | None]:
        """Per state (bytes to the nearest accepting state, class of the first one)."""
        back = self._edges_back()
        best: list[tuple[int, int] | None] = [(0, 0) if a else None for a in self._accepting]
        queue = deque(s for s, a in enumerate(self._accepting) if a)
        while queue:
            target = queue.popleft()
            known = best[target]
            assert known is not None
            for source, kind in back[target]:
                if best[source] is None:
                    best[source] = (known[0] + 1, kind)
                    queue.append(source)
        return best

    def _lengths(self) -> tuple[list[int], list[int]]:
        """Fewest and most code points to an accepting state. Continuation bytes are free."""
        back = self._edges_back()
        cost = [0 if 0x80 <= byte < 0xC0 else 1 for byte in self._representatives]
        least = [0 if a else INFINITE for a in self._accepting]
        queue = deque(s for s, a in enumerate(self._accepting) if a)
        while queue:
            target = queue.popleft()
            for source, kind in back[target]:
                found = least[target] + cost[kind]
                if found < least[source]:
                    least[source] = found
                    queue.append(source) if cost[kind] else queue.appendleft(source)
        return least, self._longest()

    def _longest(self) -> list[int]:
        """By topological order; whatever reaches a cycle is unbounded (all states here can end)."""
        n_out = [sum(t != DEAD for t in row) for row in self._rows]
        back = self._edges_back()
        cost = [0 if 0x80 <= byte < 0xC0 else 1 for byte in self._representatives]
        most = [0 if a else -INFINITE for a in self._accepting]
        queue = deque(s for s, n in enumerate(n_out) if n == 0)
        settled = set()
        while queue:
            target = queue.popleft()
            settled.add(target)
            for source, kind in back[target]:
                most[source] = max(most[source], most[target] + cost[kind])
                n_out[source] -= 1
                if n_out[source] == 0:
                    queue.append(source)
        return [m if s in settled else INFINITE for s, m in enumerate(most)]


def explore(
    start: S,
    classes: bytes,
    step: Callable[[S, int], S | None],
    accepts: Callable[[S], bool],
    universal: Callable[[S], bool],
    what: str,
    n_parts: int = 1,
) -> Explored:
    """Visit every state from `start`. Raises GrammarRefused over the budget; `what` names the combination.

    `n_parts`: machines that a step moves.
    """
    bytes_of = representatives(classes)
    numbers: dict[S, int] = {start: 0}
    order = [start]
    rows: list[list[int]] = []
    for state in order:
        if len(rows) * len(bytes_of) > BUDGET:
            raise GrammarRefused(f"{what} needs more than {BUDGET} steps to combine; simplify it")
        charge(N_BYTES + N_BYTES_CLASS * len(bytes_of), 2 + len(bytes_of) * (10 + n_parts) // 20)
        row: list[int] = []
        for byte in bytes_of:
            target = step(state, byte)
            if target is None:
                row.append(DEAD)
                continue
            number = numbers.get(target)
            if number is None:
                number = numbers[target] = len(order)
                order.append(target)
            row.append(number)
        rows.append(row)
    free = {number for number, state in enumerate(order) if universal(state)}
    return Explored(classes, rows, [accepts(s) for s in order], free, 0)


def representatives(classes: bytes) -> list[int]:
    """One byte per class, in the order of the classes: a character that JSON writes as it is, if there is one."""
    kinds = _PREFERRED.translate(classes)
    return [_PREFERRED[kinds.index(kind)] for kind in range(max(kinds) + 1)]


def refined(maps: list[bytes]) -> bytes:
    """The coarsest classes that are at least as fine as each of the maps."""
    found: dict[tuple[int, ...], int] = {}
    return bytes(found.setdefault(key, len(found)) for key in zip(*maps, strict=True))
