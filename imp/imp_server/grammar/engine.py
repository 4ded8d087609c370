"""A grammar at work: advance by tokens, masks, forced text, distance to the end. Rollback is keeping the old state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imp_server.core import GrammarPlan
from imp_server.grammar.frames.free_texts import FreeText
from imp_server.grammar.frames.plain_values import Scalar
from imp_server.grammar.frames.stack import Cell, State
from imp_server.grammar.frames.store import Frame
from imp_server.grammar.frames.tables import DEAD
from imp_server.grammar.frames.texts import Text
from imp_server.grammar.frames.warm_up import warm_up
from imp_server.grammar.generations import GrammarGenerations
from imp_server.grammar.plan import begin
from imp_server.vocab.table import Vocabulary

__all__ = ["GrammarSpace", "Matcher", "State"]

MAX_FORCED = 256


class GrammarSpace(GrammarGenerations):
    """The grammars of one engine and vocabulary."""

    def matcher(self, plan: GrammarPlan) -> Matcher:
        """Raises GrammarRefused, GrammarMemoryFull."""
        return Matcher(plan, self.vocabulary, self)


class Matcher:
    """One grammar over one vocabulary. Stateless: states are values, shared freely between rows and drafts.

    Safe to call from the step loop and the mask thread: a lock of the shared space serialises them.
    """

    def __init__(self, plan: GrammarPlan, vocabulary: Vocabulary, shared: GrammarSpace | None = None) -> None:
        self._shared = shared or GrammarSpace(vocabulary)
        self._generation = self._shared.of(plan)
        self._generation.users.add(self)
        self._space = self._generation.space
        self._stepper = self._generation.stepper
        self._masks = self._generation.masks
        self._distances = self._generation.distances
        self._fitting = self._generation.fitting
        self.places = self._generation.places
        self.lock = self._lock = self._generation.lock
        self._token_bytes = vocabulary.token_bytes
        self._ends = frozenset(vocabulary.end_ids)
        with self._lock:
            starts = self._generation.starts.get(plan.digest)
            if starts is None:
                begun = begin(plan, self._space)
                warm_up(self._space, begun.start)
                starts = self._generation.starts[plan.digest] = tuple(self._state(n) for n in begun if n >= 0)
        self.start = starts[0]
        self.after_closing = starts[1] if len(starts) > 1 else None
        """Where a completion goes on whose thinking was closed by force; None: where that leads by itself."""

    def _state(self, local: int) -> State:
        return State(self._stepper.cell(local, self._stepper.cell(self._space.ends.root.id, None)))

    def advance(self, state: State, token_id: int) -> State | None:
        """The state after a token; None if it is forbidden. An end token that isn't a tag keeps a finished state."""
        data = self._token_bytes[token_id]
        after = self.advance_bytes(state, data) if data else None
        if after is None and token_id in self._ends and self.is_done(state):
            return state
        return after

    def advance_bytes(self, state: State, data: bytes) -> State | None:
        """The state after marked bytes."""
        with self._lock:
            return self._stepper.run(state, data)

    def past_early(self, state: State) -> State:
        """The same state once early tags of free text (envelope.Branch) don't count any more."""
        with self._lock:
            top = self._space.locals[state.cell.top]
            if not isinstance(top, FreeText):
                return state
            return State(self._stepper.cell(top.past_early().id, state.cell.below))

    def fill_mask(self, state: State, out: NDArray[np.uint32]) -> None:
        """Write the allowed ids into `out` (ceil(vocab / 32) words, or more: the rest becomes 0)."""
        row = self._masks.known(state)
        if row is None:
            with self._lock:
                row = self._masks.row(state)
        n = len(row)
        out[:n] = row
        if len(out) > n:
            out[n:] = 0

    def mask(self, state: State) -> NDArray[np.uint32]:
        """The allowed ids, ceil(vocab / 32) words. Shared: never write to it."""
        known = self._masks.known(state)
        if known is not None:
            return known
        with self._lock:
            return self._masks.row(state)

    def fitting(self, state: State, n_left: int) -> tuple[NDArray[np.uint32], bool]:
        """The mask without tokens behind which the end isn't within `n_left` tokens, and whether that took any."""
        with self._lock:
            return self._fitting.restrict(state, self._masks.row(state), n_left)

    def n_tokens_out(self, state: State) -> int:
        """Tokens of the shortest way to the end that the grammar can prove; distance.NEVER if there is none."""
        with self._lock:
            return self._distances.n_tokens(state)

    def route(self, state: State) -> list[int]:
        """Ids of that way."""
        with self._lock:
            return self._distances.route(state)

    def local(self, number: int) -> Frame:
        return self._space.locals[number]

    def is_done(self, state: State) -> bool:
        """Whether the completion may end here."""
        with self._lock:
            return self._stepper.is_done(state.cell)

    def forced(self, state: State) -> bytes:
        """The bytes that must follow, as far as there is no choice; b"" if there is one at once, or at the end."""
        out = bytearray()
        with self._lock:
            while len(out) < MAX_FORCED and not self._stepper.is_done(state.cell):
                byte = self._only_byte(state.cell)
                after = None if byte < 0 else self._stepper.step(state, byte)
                if after is None:
                    break
                out.append(byte)
                state = after
        return bytes(out)

    def _only_byte(self, cell: Cell) -> int:
        tables = self._space.tables
        top = self._space.locals.get(cell.top)
        if isinstance(top, Text | Scalar) and top.verdicts.is_sparse:
            return top.only_byte()
        tables.entry(cell.top, 0)
        row = tables.rows[cell.top]
        (possible,) = np.nonzero(row != DEAD)
        return int(possible[0]) if len(possible) == 1 else -1

    def min_bytes(self, state: State) -> int:
        """Bytes of a shortest way to the end that the grammar can prove (0: it may end here)."""
        with self._lock:
            return self._distances.way(state).n_bytes

    def closing_ids(self, state: State) -> list[int]:
        """Tokens that lead towards the end: beginnings of the shortest way, each of them with less to go behind it.

        For length steering: while `min_bytes` fits into the tokens left, these keep it fitting. At the end: end ids.
        """
        with self._lock:
            if self._stepper.is_done(state.cell):
                return sorted(self._ends)
            way = self._distances.way(state).bytes()
            found = []
            for size in range(1, min(len(way), MAX_FORCED) + 1):
                token_id = self._masks.by_bytes.get(way[:size])
                after = None if token_id is None else self._stepper.run(state, way[:size])
                if token_id is not None and after is not None and self.min_bytes(after) < len(way):
                    found.append(token_id)
            return found

    def way_out(self, state: State) -> bytes:
        """The bytes of that way."""
        with self._lock:
            return self._distances.way(state).bytes()
