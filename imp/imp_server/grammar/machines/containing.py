"""Texts of some characters and a length that hold one of each of several kinds: what passwords are asked for.

As sets of positions: for each kind whether one was read, all side by side, with the counts of counted.py. How many more
characters it takes at least to read one of every kind that is missing is known for each set of them, as one character
may be of several kinds. A text may go on as long as that many are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core.turns import charge, spend
from imp_server.grammar.machines.codepoints import ANY, Ranges, common, negated
from imp_server.grammar.machines.glushkov import Positions, SideBySide, positions_of
from imp_server.grammar.machines.machine import DEAD, UNBOUNDED, Machine
from imp_server.grammar.machines.nodes import INFINITE, Kind, Node, Nodes
from imp_server.grammar.machines.plain_length import PlainLength
from imp_server.grammar.machines.position_machine import PositionMachine, bounds

MOST_KINDS = 8
FEW_STATES = 64
"""Up to so many a product is as good."""


class ContainingMachine(PositionMachine):
    """`low` to `high` of some characters, one of each kind among them."""

    is_directed = False

    def __init__(self, roots: Sequence[Node], positions: Positions, low: int, high: int) -> None:
        """`positions` of the roots, each of which reads a kind; a goal of all of them."""
        super().__init__(roots, positions)
        self.root = None
        self._any = positions.ranges[-1] == ANY
        own = [among & -among for among in positions.goal.done]
        self._kinds = [sum(1 << i for i, p in enumerate(own) if among & p) for among in positions.chars]
        """By class of characters: of which kinds they are."""
        self.missing = _fewest(self._kinds, len(own))
        """By the kinds that were read, as bits: how many more characters it takes."""
        first = self.place(self.start)._replace(needed=low, allowed=-1 if high >= INFINITE else high)
        self.start = self.intern(first) if self._lives(first.positions, low, first.allowed) else DEAD

    # --- the Machine protocol, where it differs ---------------------------------------------

    def accepts(self, state: int) -> bool:
        place = self.place(state)
        return not place.due and not place.needed and self.positions.goal.ends(place.positions)

    def universal(self, state: int) -> bool:
        return self._any and self.accepts(state) and self.place(state).allowed < 0

    def room(self, state: int) -> int:
        place = self.place(state)
        if place.due or not self._any:
            return 0
        return UNBOUNDED if place.allowed < 0 else place.allowed - self.missing[self._met(place.positions)]

    def spread(self, state: int) -> None:  # type: ignore[override]
        """Not known."""

    def shortest(self, state: int) -> bytes | None:
        """Of the fewest characters, more exactly."""
        if state == DEAD:
            return None
        here, due, value, floor, needed, allowed = self.place(state)
        table, word, n = self.positions, b"", 0
        if due:
            low, high = bounds(value, due, floor)
            kinds = [k for k, among in enumerate(table.chars) if table.character(k, low, high) >= 0]
            kind = next(k for k in kinds if self._lives(here & table.chars[k], needed, allowed))
            word, here = chr(table.character(kind, low, high)).encode()[-due:], here & table.chars[kind]
        met = self._met(here)
        while self.missing[met] or n < needed:
            kind = min(range(len(table.chars)), key=lambda k: self.missing[met | self._kinds[k]])
            met, n = met | self._kinds[kind], n + 1
            word += table.sample(kind)
            spend(1 + len(table.chars) // 8)
        return word

    # --- construction -----------------------------------------------------------------------

    def settled(self, positions: int) -> int:
        """Of a kind that was read it doesn't matter when."""
        for among in self.positions.goal.done:
            if positions & among:
                positions = positions & ~self._scope(among) | 1 << among.bit_length() - 1
        return positions

    def _scope(self, done: int) -> int:
        """All positions of the expression whose last ones these are: two stand before them."""
        end = done.bit_length()
        return (1 << end) - (1 << end - 4)

    def _met(self, positions: int) -> int:
        return sum(1 << i for i, among in enumerate(self.positions.goal.done) if positions & among)

    def _lives(self, positions: int, needed: int, allowed: int) -> bool:
        return bool(positions) and (allowed < 0 or self.missing[self._met(positions)] <= allowed)


def _fewest(kinds: list[int], n: int) -> list[int]:
    """By kinds that were read, as bits: the fewest characters that make all of them."""
    charge(8 << n, 1 + (len(kinds) << n) // 16)
    found = [INFINITE] * (1 << n)
    found[-1] = 0
    for met in range(len(found) - 2, -1, -1):
        found[met] = min((1 + found[met | more] for more in kinds if more & ~met), default=INFINITE)
    return found


def containing_machine(wanted: Sequence[Machine], without: Sequence[Machine]) -> Machine | None:
    """What all of `wanted` accept and none of `without`.

    None unless they ask for characters, a length, and characters that are to be among them or not.
    """
    nodes = Nodes()
    low, high, chars = 0, INFINITE, ANY
    found: list[Node] = []
    for machine in wanted:
        root = getattr(machine, "root", None)
        if isinstance(machine, PlainLength):
            low, high = max(low, machine.low), min(high, INFINITE if machine.high is None else machine.high)
        elif root is not None and root.kind is Kind.LOOP and root.first.kind is Kind.CLASS:
            low, high, chars = max(low, root.low), min(high, root.high), common(chars, root.first.ranges)
        elif root is not None:
            found.append(root)
        else:
            return None
    kinds = [_found_in(root, chars) for root in found]
    banned = [_found_in(root, chars) if (root := getattr(m, "root", None)) is not None else None for m in without]
    for ranges in banned:
        chars = common(chars, negated(ranges or ()))
    if None in kinds or None in banned or not kinds or len(kinds) > MOST_KINDS:
        return None
    n_counts = low if high == INFINITE else high
    parts = [common(chars, ranges or ()) for ranges in kinds]
    if not all(parts) or low > high or (n_counts + 1) << len(parts) <= FEW_STATES:
        return None
    any_ = nodes.loop(nodes.chars(chars), 0, INFINITE)
    roots = [nodes.sequence([any_, nodes.chars(part), any_]) for part in parts]
    positions = positions_of(*roots)
    if positions is None:
        return None
    last = [0b11 << (4 * i + 2) for i in range(len(parts))]
    positions = positions._replace(goal=SideBySide("all", tuple(last)))
    return ContainingMachine(roots, positions, low, high)


def _found_in(root: Node, chars: Ranges) -> Ranges | None:
    """Which character is to be found anywhere among such `chars`; None if it is something else that is to be found."""
    if root.kind is not Kind.SEQUENCE or root.rest.kind is not Kind.SEQUENCE:
        return None
    before, own, behind = root.first, root.rest.first, root.rest.rest
    is_free = all(
        part.kind is Kind.LOOP
        and part.low == 0
        and part.high == INFINITE
        and part.first.kind is Kind.CLASS
        and common(part.first.ranges, chars) == chars
        for part in (before, behind)
    )
    return own.ranges if is_free and own.kind is Kind.CLASS else None
