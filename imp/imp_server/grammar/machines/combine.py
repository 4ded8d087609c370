"""Boolean combinations of machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.explored import Explored, explore, refined
from imp_server.grammar.machines.machine import DEAD, GROWING, Machine
from imp_server.grammar.machines.memo import remembered
from imp_server.grammar.machines.nodes import INFINITE, Nodes, Spread
from imp_server.grammar.machines.position_machine import PositionMachine, position_machine
from imp_server.grammar.machines.terms import TermMachine

States = tuple[int, ...]

N_BYTES, N_BYTES_PART = 800, 8
"""Memory of a state of a union, and of each of its parts."""
ANY_LENGTH = Spread(0, INFINITE, INFINITE)
"""The spread of a machine that can't tell."""


@remembered(maxsize=1)
def anything() -> TermMachine:
    """Every text."""
    nodes = Nodes()
    return TermMachine(nodes, nodes.anything)


@remembered(maxsize=1)
def nothing() -> TermMachine:
    """No text at all, not even the empty one."""
    nodes = Nodes()
    return TermMachine(nodes, nodes.never)


def universal(machine: Machine, state: int) -> bool:
    """Whether every text is known to be accepted from here."""
    known = getattr(machine, "universal", None)
    return state != DEAD and known is not None and bool(known(state))


def intersect(machines: Sequence[Machine], without: Sequence[Machine] = (), what: str = "the intersection") -> Machine:
    """What all of `machines` accept and none of `without`. Raises GrammarRefused if the product is too large."""
    if any(m.start == DEAD for m in machines):
        return nothing()
    wanted = [m for m in machines if not universal(m, m.start)]
    without = [m for m in without if m.start != DEAD]
    if not without and len(wanted) < 2:
        return wanted[0] if wanted else anything()
    parts = [*(wanted or [anything()]), *without]
    n_wanted = len(parts) - len(without)

    def is_lost(states: States) -> bool:
        return DEAD in states[:n_wanted] or any(map(universal, parts[n_wanted:], states[n_wanted:]))

    def is_accepting(found: Sequence[bool]) -> bool:
        return all(found[:n_wanted]) and not any(found[n_wanted:])

    def is_universal(states: States) -> bool:
        return all(map(universal, parts[:n_wanted], states[:n_wanted])) and all(s == DEAD for s in states[n_wanted:])

    return _product(parts, is_lost, is_accepting, is_universal, what)


def complement(machine: Machine, what: str = "the negation") -> Machine:
    """Every text that `machine` rejects."""
    return intersect([], [machine], what)


def exactly_one(machines: Sequence[Machine], what: str = "oneOf") -> Machine:
    """What exactly one of the machines accepts."""
    parts = [m for m in machines if m.start != DEAD]
    if len(parts) < 2:
        return parts[0] if parts else nothing()

    def is_lost(states: States) -> bool:
        return all(s == DEAD for s in states)

    def is_universal(states: States) -> bool:
        alive = [(m, s) for m, s in zip(parts, states, strict=True) if s != DEAD]
        return len(alive) == 1 and universal(*alive[0])

    return _product(parts, is_lost, lambda found: sum(found) == 1, is_universal, what)


def _product(
    parts: Sequence[Machine],
    is_lost: Callable[[States], bool],
    is_accepting: Callable[[Sequence[bool]], bool],
    is_universal: Callable[[States], bool],
    what: str,
) -> Explored:
    def step(states: States, byte: int) -> States | None:
        target = tuple(m.step(s, byte) if s != DEAD else DEAD for m, s in zip(parts, states, strict=True))
        return None if is_lost(target) else target

    def accepts(states: States) -> bool:
        return is_accepting([s != DEAD and m.accepts(s) for m, s in zip(parts, states, strict=True)])

    classes = refined([m.classes for m in parts])
    return explore(tuple(m.start for m in parts), classes, step, accepts, is_universal, what, len(parts))


class Union:
    """What any of the machines accepts. Lazy: a state is live as long as one part is.

    Parts may be combinations themselves, shared again and again, so what is known of a state is kept.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._parts = [m for m in machines if m.start != DEAD]
        self.classes = refined([m.classes for m in self._parts]) if self._parts else bytes(256)
        self._numbers: dict[States, int] = {}
        self._states: list[States] = []
        self._rows: list[dict[int, int]] = []
        self._accepting: dict[int, bool] = {}
        self._universal: dict[int, bool] = {}
        self._rooms: dict[int, int] = {}
        self._spreads: dict[int, Spread] = {}
        self._words: dict[int, bytes | None] = {}
        self.start = self._intern(tuple(m.start for m in self._parts))

    def _intern(self, states: States) -> int:
        if all(s == DEAD for s in states):
            return DEAD
        for i, (part, state) in enumerate(zip(self._parts, states, strict=True)):
            if universal(part, state):
                states = tuple(state if j == i else DEAD for j in range(len(states)))
                break
        number = self._numbers.get(states)
        if number is None:
            charge(N_BYTES + N_BYTES_PART * len(states), 2 + len(states) // 4)
            number = self._numbers[states] = len(self._states)
            self._states.append(states)
            self._rows.append({})
        return number

    def _alive(self, state: int) -> list[tuple[Machine, int]]:
        spend(1 + len(self._parts) // 8)
        return [(m, s) for m, s in zip(self._parts, self._states[state], strict=True) if s != DEAD]

    def step(self, state: int, byte: int) -> int:
        row, kind = self._rows[state], self.classes[byte]
        target = row.get(kind)
        if target is None:
            spend(2 + len(self._parts) // 2)
            pairs = zip(self._parts, self._states[state], strict=True)
            after = tuple(m.step(s, byte) if s != DEAD else DEAD for m, s in pairs)
            with GROWING:
                target = row[kind] = self._intern(after)
        return target

    def accepts(self, state: int) -> bool:
        found = self._accepting.get(state)
        if found is None:
            found = self._accepting[state] = any(m.accepts(s) for m, s in self._alive(state))
        return found

    def live(self, state: int) -> bool:
        return state != DEAD

    def shortest(self, state: int) -> bytes | None:
        if state == DEAD:
            return None
        if state not in self._words:
            found = [m.shortest(s) for m, s in self._alive(state)]
            word = min((f for f in found if f is not None), key=len, default=None)
            charge(len(word or b""), 0)
            self._words[state] = word
        return self._words[state]

    def room(self, state: int) -> int:
        found = self._rooms.get(state)
        if found is None:
            found = self._rooms[state] = max(m.room(s) for m, s in self._alive(state))
        return found

    def universal(self, state: int) -> bool:
        found = self._universal.get(state)
        if found is None:
            found = self._universal[state] = any(universal(m, s) for m, s in self._alive(state))
        return found

    def alias(self, state: int, n: int) -> tuple[Machine, int]:
        """As TermMachine.alias."""
        alive = self._alive(state)
        return alias_of(*alive[0], n) if len(alive) == 1 else (self, state)

    def spread(self, state: int) -> Spread:
        """Lengths of what may still come, in code points."""
        found = self._spreads.get(state)
        if found is None:
            known = [spread_of(m, s) for m, s in self._alive(state)]
            found = reduce(Spread.either, sorted(s if s is not None else ANY_LENGTH for s in known))
            self._spreads[state] = found
        return found

    @property
    def reach(self) -> int:
        """Bound on the fewest code points still missing in any state."""
        return max(reach_of(m) for m in self._parts)


def union(machines: Sequence[Machine]) -> Machine:
    """What any of the machines accepts."""
    parts = [m for m in machines if m.start != DEAD]
    if len(parts) > 1 and any(isinstance(m, PositionMachine) for m in parts):
        roots = [getattr(m, "root", None) for m in parts]
        sets = position_machine(*(root for root in roots if root is not None)) if None not in roots else None
        if sets is not None:
            return sets
    return Union(parts) if len(parts) > 1 else parts[0] if parts else nothing()


def spread_of(machine: Machine, state: int) -> Spread | None:
    """Lengths of what may still come, in code points; None if the machine can't tell."""
    known = getattr(machine, "spread", None)
    found: Spread | None = known(state) if known is not None else None
    return found


def reach_of(machine: Machine) -> int:
    """Bound on the fewest code points still missing in any state of the machine."""
    return int(getattr(machine, "reach", INFINITE))


def alias_of(machine: Machine, state: int, n: int) -> tuple[Machine, int]:
    """(machine, state) that can't be told from this one within `n` code points; the same for many states."""
    known = getattr(machine, "alias", None)
    found: tuple[Machine, int] = (machine, state) if known is None else known(state, n)
    return found


def gap_of(machine: Machine) -> int:
    """Bound on the distance of two lengths that follow each other, in any state of the machine."""
    return max(1, reach_of(machine), spread_gap(machine))


def spread_gap(machine: Machine) -> int:
    found = spread_of(machine, machine.start)
    return INFINITE if found is None else found.gap
