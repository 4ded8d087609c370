"""How far the end is: a shortest text to it from any state, and the fewest tokens that write that text.

Owner of the memo of ways. A way is a list of legs, each the lead of one frame; states share the legs of what lies
below them, so a state that is new costs what its own top frame adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from imp_server.core import SPECIAL_CLOSE, SPECIAL_OPEN, GrammarDeadEnd
from imp_server.core.turns import OverBudget, charge, spend
from imp_server.grammar.frames.arrays import ArrayPhase, WaitingItem
from imp_server.grammar.frames.key_texts import WaitingKey
from imp_server.grammar.frames.keys import WaitingName
from imp_server.grammar.frames.objects import ObjectPhase
from imp_server.grammar.frames.plain_values import Scalar
from imp_server.grammar.frames.position_texts import machine_of
from imp_server.grammar.frames.stack import Cell, State, Stepper
from imp_server.grammar.frames.texts import Text
from imp_server.grammar.frames.values import ValueStart
from imp_server.grammar.frames.verdicts import Single
from imp_server.grammar.machines.giving_up import dropped
from imp_server.grammar.machines.position_machine import PositionMachine
from imp_server.grammar.values.json_values import spelled
from imp_server.grammar.values.sat.found import MAX_LEAD, TooLong

NEVER = 1 << 30
"""Tokens to an end that isn't known."""
MAX_LEGS = 20_000
MAX_WAYS = 50_000
N_BYTES, N_BYTES_PLACE, N_BYTES_WINDOW = 700, 17, 250
"""Memory of a leg, of each place in it, and of what is known of the text that follows one."""
LEG = 16
"""Bytes of a leg between positions: shorter ones would be shared by more of them, and take more memory."""
WINDOW = 16
"""Bytes of the longest token that a way is written with, special ones excepted."""


class Way:
    """One leg and the rest of the way."""

    __slots__ = ("data", "n_bytes", "n_tokens", "rest", "sizes", "view", "window")

    def __init__(self, data: bytes, rest: Way | None, spellings: Spellings) -> None:
        self.data = data
        self.rest = rest
        self.n_bytes: int = len(data) + (rest.n_bytes if rest else 0)
        text = data + (rest.view if rest else b"")
        costs = [0] * len(data) + (rest.window if rest else [0])
        self.sizes = [0] * len(data)
        """Bytes of the first token of a cheapest spelling, by place in `data`; 0: it can't be spelled."""
        for at in range(len(data) - 1, -1, -1):
            costs[at], self.sizes[at] = spellings.cheapest(text, at, costs)
        self.n_tokens = costs[0]
        self.view: bytes = text[:WINDOW]
        self.window: list[int] = costs[: WINDOW + 1]

    def bytes(self) -> bytes:
        parts, way = [], self
        while way.rest is not None:
            parts.append(way.data)
            way = way.rest
        return b"".join([*parts, way.data])


class Spellings:
    """Which tokens a text may begin with. Owner of what is known of the next WINDOW bytes: long ways repeat them."""

    def __init__(self, by_bytes: Mapping[bytes, int]) -> None:
        self._by_bytes = by_bytes
        self._sizes: dict[bytes, tuple[int, ...]] = {}

    def given_up(self) -> Iterator[None]:
        return dropped(self._sizes)

    def cheapest(self, text: bytes, at: int, costs: list[int]) -> tuple[int, int]:
        """(tokens, bytes of the first one) of a cheapest spelling of `text` from `at`.

        `costs`: tokens from each later place, as far as it is known.
        """
        if text[at : at + 1] == SPECIAL_OPEN:
            size = text.find(SPECIAL_CLOSE, at) + 1 - at
            known = size > 0 and at + size < len(costs) and text[at : at + size] in self._by_bytes
            return (1 + costs[at + size], size) if known else (NEVER, 0)
        most = len(costs) - 1 - at
        best, best_size = NEVER, 0
        for size in self._beginnings(text[at : at + WINDOW]):
            if size <= most and (cost := 1 + costs[at + size]) < best:
                best, best_size = cost, size
        return best, best_size

    def _beginnings(self, window: bytes) -> tuple[int, ...]:
        """Bytes of the tokens that `window` begins with, the longest first."""
        found = self._sizes.get(window)
        if found is None:
            if len(self._sizes) > MAX_WAYS:
                self._sizes.clear()
            charge(N_BYTES_WINDOW, 2)
            found = tuple(size for size in range(len(window), 0, -1) if window[:size] in self._by_bytes)
            self._sizes[window] = found
        return found


class Distances:
    """Callers hold the lock of the grammar space; `known` alone needs none."""

    def __init__(self, stepper: Stepper, by_bytes: Mapping[bytes, int]) -> None:
        self._stepper = stepper
        self._space = stepper.space
        self._by_bytes = by_bytes
        self._spellings = Spellings(by_bytes)
        self._end = Way(b"", None, self._spellings)
        self._ways: dict[State, Way] = {}
        self._from_positions: dict[tuple[PositionMachine, int, State, bool], Way] = {}

    def given_up(self) -> Iterator[None]:
        yield from dropped(self._ways, self._from_positions)
        yield from self._spellings.given_up()

    def known(self, state: State) -> Way | None:
        return self._ways.get(state)

    def way(self, state: State) -> Way:
        """Raises GrammarDeadEnd where the grammar can't prove a way."""
        try:
            return self._way(state)
        except OverBudget as over:
            over.stands(self._space.store.place(state.cell.top))
            raise

    def _way(self, state: State) -> Way:
        legs: list[tuple[State, bytes]] = []
        while (found := self._ways.get(state)) is None:
            if self._stepper.is_done(state.cell):
                found = self._ways[state] = self._end
                break
            spend()
            shared = self._shared(state)
            if shared is not None:
                found = shared
                break
            lead, after = self._leg(state)
            legs.append((state, lead))
            state = after
            if len(legs) > MAX_LEGS:
                raise GrammarDeadEnd("the grammar has no way to its end from here")
        if len(self._ways) > MAX_WAYS:
            for old in list(islice(self._ways, MAX_WAYS // 2)):
                self._ways.pop(old, None)
        for before, lead in reversed(legs):
            found = self._ways[before] = self._led(lead, found)
        return found

    def _shared(self, state: State) -> Way | None:
        """The way of a text that is a set of positions: from the nearest one, so that many sets share it."""
        local = self._space.locals[state.cell.top]
        machine = None if state.marks or local.captures else machine_of(local)
        if machine is None or not machine.is_directed:
            return None
        assert isinstance(local, Scalar | Text)
        char, at, position = machine.nearest(local.state)
        after = self._popped(state, b"", 0)
        if after is None or at > MAX_LEAD:
            return None
        way = self._from_position(machine, at, position, after, isinstance(local, Text))
        return self._led(char, way) if char else way

    def _from_position(self, machine: PositionMachine, at: int, position: int, after: State, quoted: bool) -> Way:
        legs: list[tuple[int, bytes]] = []
        while (found := self._from_positions.get((machine, position, after, quoted))) is None:
            if at == 0:
                end = self._led(b'"', self.way(after)) if quoted else self.way(after)
                found = self._from_positions[machine, position, after, quoted] = end
                break
            begun = position
            data, at, position = machine.ways.part(at, position, (at - 1) // LEG * LEG)
            legs.append((begun, spelled(("string", data.decode())).encode()[1:-1] if quoted else data))
        if len(self._from_positions) > MAX_WAYS:
            self._from_positions.clear()
        for begun, data in reversed(legs):
            found = self._from_positions[machine, begun, after, quoted] = self._led(data, found)
        return found

    def _led(self, lead: bytes, way: Way) -> Way:
        charge(N_BYTES + N_BYTES_PLACE * len(lead), 1 + len(lead) // 2)
        return Way(lead, way, self._spellings)

    def n_tokens(self, state: State) -> int:
        """Tokens of the way; NEVER if there is none that can be written."""
        try:
            return self.way(state).n_tokens
        except GrammarDeadEnd:
            return NEVER

    def route(self, state: State) -> list[int]:
        """Ids of a cheapest spelling of the way; empty if it has none."""
        if self.n_tokens(state) >= NEVER:
            return []
        ids: list[int] = []
        way, at = self.way(state), 0
        while True:
            while at >= len(way.data):
                if way.rest is None:
                    return ids
                at -= len(way.data)
                way = way.rest
            size = way.sizes[at]
            text, following = way.data[at:], way.rest
            while len(text) < size and following is not None:
                text, following = text + following.data, following.rest
            ids.append(self._by_bytes[text[:size]])
            at += size

    def _leg(self, state: State) -> tuple[bytes, State]:
        """The lead of the top frame, and the state behind it."""
        cell = state.cell
        local = self._space.locals[cell.top]
        try:
            lead = local.lead()
            if len(lead) > MAX_LEAD:
                raise TooLong
        except TooLong:
            raise GrammarDeadEnd("the shortest way to the end is too long to be worked out") from None
        if not lead:
            # the top may end without a byte of its own: what is below goes on
            after = self._popped(state, b"", local.end_result)
            if after is None:
                raise GrammarDeadEnd("the grammar has no way to its end from here")
            return b"", after
        if isinstance(local, ArrayPhase | ObjectPhase):
            goal = local.state.goal
        elif isinstance(local, ValueStart):
            goal = local.goal
        else:
            goal = None
        if goal is not None and goal.judge is None:
            after = self._popped(state, lead, 0)
            if after is not None:
                return lead, after
        if isinstance(local, Scalar | Text) and not local.captures and isinstance(local.verdicts, Single):
            after = self._popped(state, lead, 0)
            if after is not None:
                return lead, after
        after = self._stepper.run(state, lead)
        if after is None:
            raise GrammarDeadEnd("the grammar forbids its own shortest way to the end")
        return lead, after

    def _popped(self, state: State, lead: bytes, result: int) -> State | None:
        """The state after a frame that `lead` ends with `result`; None where only the exact step can tell it.

        Values of a long array needn't be stepped through: each would be a state of its own.
        """
        below = state.cell.below
        if below is None or result < 0:
            return None
        waiting = self._space.locals[below.top]
        if isinstance(waiting, WaitingKey | WaitingName):
            return None
        tape, marks = state.tape, state.marks
        if isinstance(waiting, WaitingItem) and waiting.captures:
            resumed = waiting.resumed(result, tape[marks[-1] :] + lead)
            marks = marks[:-1]
        else:
            resumed = self._space.tables.resumed(below.top, result)
        if resumed < 0:
            return None
        after: Cell = self._stepper.cell(resumed, below.below)
        return State(after, tape + lead, marks) if marks else State(after)
