"""Combinations of machines, explored only where somebody goes (product.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from imp_server.core import GrammarRefused
from imp_server.core.turns import GaveUp, spend
from imp_server.grammar.machines.combine import anything, exactly_one, intersect, universal
from imp_server.grammar.machines.containing import containing_machine
from imp_server.grammar.machines.joint import JointMachine, joint_machine
from imp_server.grammar.machines.lengths import counted_table
from imp_server.grammar.machines.machine import DEAD, UNBOUNDED, Machine
from imp_server.grammar.machines.nodes import INFINITE, Kind, Nodes
from imp_server.grammar.machines.plain_length import PlainLength
from imp_server.grammar.machines.product import SEARCH, Product, States, accepting, one_by_one
from imp_server.grammar.machines.terms import TermMachine


class LazyMachine:
    """A product as a machine, with a proof of an end behind every state that is entered. Steps raise GaveUp."""

    def __init__(self, product: Product, is_universal: Callable[[States], bool]) -> None:
        """`is_universal`: every text is accepted from there.

        Raises GrammarRefused if no word is found although there may be one.
        """
        self._product, self._is_universal = product, is_universal
        self._universal: dict[int, bool] = {}
        self.classes = product.classes
        try:
            self.start = product.start()
        except GaveUp:
            message = f"no text that satisfies all rules was found in {SEARCH} steps; simplify them"
            raise GrammarRefused(message) from None

    def universal(self, state: int) -> bool:
        found = self._universal.get(state)
        if found is None:
            spend(1 + len(self._product.parts) // 4)
            found = self._universal[state] = self._is_universal(self._product.states(state))
        return found

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


def lazy_product(wanted: Sequence[Machine], without: Sequence[Machine]) -> Machine:
    """What all of `wanted` accept and none of `without`. Raises as LazyMachine does."""
    return _sets(wanted, without) or searched_product(wanted, without)


def _sets(wanted: Sequence[Machine], without: Sequence[Machine]) -> Machine | None:
    """The same as sets of positions, where those tell dead ends."""
    containing = containing_machine(wanted, without)
    if containing is not None:
        return containing
    joint = joint_machine([m for m in wanted if not universal(m, m.start)], without)
    return None if joint is None else _proved(joint, lambda: searched_product(wanted or [anything()], without))


def _proved(joint: JointMachine, product: Callable[[], LazyMachine]) -> Machine:
    """The sets side by side, once a text of them is known; else the product, which has looked for one."""
    if joint.word is None:
        lazy = product()
        word = lazy.shortest(lazy.start)
        if word is None:
            return lazy
        joint.prove(word)
    return joint


def searched_product(wanted: Sequence[Machine], without: Sequence[Machine]) -> LazyMachine:
    n_wanted = len(wanted)
    parts = [*wanted, *without]

    def is_lost(states: States) -> bool:
        refused = zip(without, states[n_wanted:])
        return DEAD in states[:n_wanted] or any(s != DEAD and universal(m, s) for m, s in refused)

    def is_end(states: States) -> bool:
        found = accepting(parts, states)
        return all(found[:n_wanted]) and not any(found[n_wanted:])

    def guesses(states: States) -> Iterator[bytes]:
        """One part's shortest word may suit all, or the words of all parts one behind the other."""
        for machine, state in zip(wanted, states):
            yield machine.shortest(state) or b""
        yield one_by_one(wanted, states)

    def is_universal(states: States) -> bool:
        return all(map(universal, wanted, states)) and all(s == DEAD for s in states[n_wanted:])

    product = Product(parts, is_lost, is_end, guesses)
    return LazyMachine(product, is_universal)


def lazy_one(machines: Sequence[Machine]) -> LazyMachine:
    """What exactly one of the machines accepts. Raises as LazyMachine does."""

    def is_lost(states: States) -> bool:
        return all(s == DEAD for s in states)

    def is_end(states: States) -> bool:
        return sum(accepting(machines, states)) == 1

    def guesses(states: States) -> Iterator[bytes]:
        return (m.shortest(s) or b"" for m, s in zip(machines, states) if s != DEAD)

    def is_universal(states: States) -> bool:
        alive = [(m, s) for m, s in zip(machines, states) if s != DEAD]
        return len(alive) == 1 and universal(*alive[0])

    product = Product(machines, is_lost, is_end, guesses)
    return LazyMachine(product, is_universal)


def counted_apart(wanted: Sequence[Machine], without: Sequence[Machine]) -> Machine | None:
    """Where all but a length makes a small table: that table, counted."""
    low, high, nodes = 0, INFINITE, Nodes()
    rest: list[Machine] = []
    for machine in wanted:
        root = getattr(machine, "root", None)
        if isinstance(machine, PlainLength):
            low, high = max(low, machine.low), min(high, INFINITE if machine.high is None else machine.high)
        elif root is not None and root.kind is Kind.LOOP and root.first.kind is Kind.CLASS:
            low, high = max(low, root.low), min(high, root.high)
            rest.append(TermMachine(nodes, nodes.loop(nodes.chars(root.first.ranges), 0, INFINITE)))
        else:
            rest.append(machine)
    if high == INFINITE or low > high:
        return None
    try:
        return counted_table(intersect(rest or [anything()], without), low, high)
    except GrammarRefused:
        return None


def either_product(wanted: Sequence[Machine], without: Sequence[Machine]) -> Machine:
    """The whole product where it is small, else a lazy one. Raises GrammarRefused as the lazy one does."""
    sets = _sets(wanted, without)
    if sets is not None:
        return sets
    try:
        return intersect(wanted, without)
    except GrammarRefused:
        return counted_apart(wanted, without) or searched_product(wanted or [anything()], without)


def either_one(machines: Sequence[Machine]) -> Machine:
    """The same for what exactly one accepts."""
    parts = [m for m in machines if m.start != DEAD]
    joint = joint_machine(parts, [], one=True)
    if joint is not None:
        return _proved(joint, lambda: lazy_one(parts))
    try:
        return exactly_one(parts)
    except GrammarRefused:
        return lazy_one(parts)
