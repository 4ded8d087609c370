"""What all of some patterns find and none of others, or exactly one finds, as sets of positions read side by side.

Only for patterns that may be found anywhere: whatever was read each can still be found, and once it was it stays so.
For these the sets themselves tell whether a text may still end, without a search. Let a *reset* be a character that,
repeated, leaves all patterns that weren't found as they were at the start. Where there is one, a state has the future
of the start, but for what was found: so with an end behind the start there is one behind every state in which no
forbidden pattern was found (of exactly one: not two of them), by the reset and the same word. The twin is the product
of lazy_product.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from imp_server.core.turns import spend
from imp_server.grammar.machines.glushkov import (
    MAX_COST,
    Positions,
    SideBySide,
    lowest,
    members,
    positions_of,
    universal_positions,
)
from imp_server.grammar.machines.machine import DEAD, UNBOUNDED, Machine
from imp_server.grammar.machines.nodes import Node
from imp_server.grammar.machines.position_machine import PositionMachine, PositionPlace, Ways, bounds, is_small

MAX_STEPS = 4096
"""Steps in which a reset is looked for."""


class JointMachine(PositionMachine):
    """Patterns side by side; once proved, every state it hands out can still reach an end."""

    is_directed = False

    def __init__(self, roots: Sequence[Node], positions: Positions, reset: bytes) -> None:
        """`reset`: a text behind which every pattern that wasn't found is as at the start."""
        self._reset = reset
        self._parts = list(zip(_scopes(positions), positions.goal.done, strict=False))
        super().__init__(roots, positions)
        self._to_done = [Ways(positions, among) for among in positions.goal.done]
        self.word: bytes | None = None
        self.word = self._short(positions.first)
        """From the start to an end, if one is known."""

    def prove(self, word: bytes) -> None:
        """`word` leads from the start to an end."""
        assert self.positions.goal.ends(self._read(self.positions.first, word))
        self.word = word

    # --- the Machine protocol, where it differs ---------------------------------------------

    def accepts(self, state: int) -> bool:
        place = self.place(state)
        return not place.due and self.positions.goal.ends(place.positions)

    def universal(self, state: int) -> bool:
        goal = self.positions.goal
        return goal.kind == "all" and not goal.lost and self.accepts(state)

    def room(self, state: int) -> int:
        goal = self.positions.goal
        return UNBOUNDED if goal.kind == "all" and not goal.lost and not self.place(state).due else 0

    def spread(self, state: int) -> None:  # type: ignore[override]
        """Not known."""

    def shortest(self, state: int) -> bytes | None:
        """A short continuation, not always the shortest."""
        if state == DEAD:
            return None
        place = self.place(state)
        char, here = self._completed(place) if place.due else (b"", place.positions)
        word = self._short(here)
        assert self.word is not None
        return char + (self._reset + self.word if word is None else word)

    def settled(self, positions: int) -> int:
        """Of a pattern that was found nothing else matters any more."""
        for scope, among in self._parts:
            if positions & among:
                positions = positions & ~scope | 1 << lowest(self._free & among)
        return positions

    # --- words ------------------------------------------------------------------------------

    def _short(self, here: int) -> bytes | None:
        """A word that leads to an end: of one pattern, of one behind the other, or of the start."""
        words = [b"", self._one_by_one(here), *(way.word(here) for way in self._to_done)]
        if self.word:
            words.append(self.word)
        leading = [word for word in words if self.positions.goal.ends(self._read(here, word))]
        return min(leading, key=len, default=None)

    def _one_by_one(self, here: int) -> bytes:
        word = b""
        for (_, among), way in zip(self._parts, self._to_done, strict=True):
            if here and not here & among:
                more = way.word(here)
                word += more
                here = self._read(here, more)
        return word

    def _read(self, here: int, word: bytes) -> int:
        """The positions behind a text; none where no end is behind them."""
        spend(1 + len(word) * self.n_units // 4)
        for char in word.decode():
            here = self._after(here, ord(char))
            if not self.positions.goal.lives(here):
                return 0
        return here

    def _after(self, here: int, code_point: int) -> int:
        table = self.positions
        return table.follow(here) & table.chars[table.kinds[bisect_right(table.starts, code_point) - 1]]

    def _completed(self, place: PositionPlace) -> tuple[bytes, int]:
        """The rest of the character that was begun, in a way that leads on, and the positions behind it."""
        low, high = bounds(place.value, place.due, place.floor)
        table = self.positions
        for kind, among in enumerate(table.chars):
            char, here = table.character(kind, low, high), place.positions & among
            if char >= 0 and table.goal.lives(here):
                return chr(char).encode()[-place.due :], here
        raise AssertionError("a character that leads nowhere")


def _scopes(positions: Positions) -> list[int]:
    """By expression: all of its positions."""
    edges = [*members(positions.first), positions.n]
    return [(1 << end) - (1 << begin) for begin, end in pairwise(edges)]


def joint_machine(wanted: Sequence[Machine], without: Sequence[Machine], *, one: bool = False) -> JointMachine | None:
    """What all of `wanted` find and none of `without`; `one`: exactly one of `wanted`, and `without` is empty.

    None where that can't be told from sets, or their subsets are few. Its `word` isn't always known: who proves that
    there is one says so, before any state is used.
    """
    roots: list[Node] = []
    for machine in (*wanted, *without):
        root = getattr(machine, "root", None)
        if root is None:
            return None
        roots.append(root)
    positions = positions_of(*roots)
    if positions is None:
        return None
    universal = universal_positions(positions)
    found = [scope & universal for scope in _scopes(positions)]
    if positions.ends != universal or not all(found):
        return None
    n_wanted = len(wanted)
    positions = positions._replace(
        goal=SideBySide("one" if one else "all", tuple(found[:n_wanted]), sum(found[n_wanted:]))
    )
    reset = _reset(positions, universal)
    if reset is None or positions.cost > MAX_COST:
        return None
    machine = JointMachine(roots, positions, reset)
    return None if is_small(machine) else machine


def _reset(positions: Positions, universal: int) -> bytes | None:
    """A text behind which everything that wasn't found is as at the start."""
    n_left, beginning = MAX_STEPS, positions.follow(positions.first)
    for chars in sorted(positions.chars, key=int.bit_count):
        all_, start, n = (1 << positions.n) - 1 & ~universal, positions.first, 0
        while n_left > 0:
            n_left -= 1
            spend(1 + positions.n_ops // 16)
            before = all_
            all_, start, n = positions.follow(all_) & chars, positions.follow(start) & chars, n + 1
            if all_ == start and positions.follow(start) == beginning:
                return positions.sample(positions.chars.index(chars)) * n
            if all_ == before or all_ & universal:
                break
    return None
