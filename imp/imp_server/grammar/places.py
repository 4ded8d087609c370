"""Places: what an engine wants to know of a state, each worked out once and then read without a lock.

A place that was visited before answers from its own fields, so a row on known ground never waits for a grammar that
the mask thread is busy with. Places are shared by all requests of a space.
"""

from __future__ import annotations

from itertools import islice

from imp_server.core.turns import charge, turn
from imp_server.grammar.engine import Matcher
from imp_server.grammar.frames.arrays import WaitingItem
from imp_server.grammar.frames.stack import State
from imp_server.grammar.generations import SpaceLock
from imp_server.grammar.masks.distance import NEVER
from imp_server.grammar.masks.token_sets import Row

MAX_PLACES = 100_000
N_BYTES = 900
"""Memory of a place and of what is known of it, but for its mask."""
PATIENT_UNITS = 150
"""Work that a question with patience may cost: about the time that the step loop would wait for another thread."""


class Place:
    """Owner of the answers about one state. Fields are written under the space's lock and read without it."""

    __slots__ = ("__weakref__", "after", "forced", "is_done", "mask", "n_out", "past", "state")

    def __init__(self, state: State, is_done: bool) -> None:
        self.state = state
        self.is_done = is_done
        self.after: dict[int, Place | None] = {}
        self.n_out: int | None = None
        """Tokens of the shortest way to the end that the grammar can prove; NEVER if there is none."""
        self.mask: Row | None = None
        self.forced: bytes | None = None
        self.past: Place | None = None


class _Held:
    """One holding of the space's lock. Every question needs one, so it is no generator."""

    __slots__ = ("_lock", "_patience_s", "_turn")

    def __init__(self, lock: SpaceLock, patience_s: float | None) -> None:
        self._lock, self._patience_s = lock, patience_s
        self._turn = None if patience_s is None else turn(PATIENT_UNITS)

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=-1 if self._patience_s is None else self._patience_s):
            raise TimeoutError
        if self._turn is not None:
            self._turn.__enter__()

    def __exit__(self, *_: object) -> None:
        try:
            if self._turn is not None:
                self._turn.__exit__()
        finally:
            self._lock.release()


class Places:
    """One grammar, as the engine sees it (engine.constraint.Constraint)."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._lock = matcher.lock
        self._known = matcher.places
        with self._held(None):
            self.start = self._place(matcher.start)
            closed = matcher.after_closing
            self.after_closing = None if closed is None else self._place(closed)
            self.n_out(self.start)

    def _held(self, patience_s: float | None) -> _Held:
        """The lock of the space. Raises TimeoutError, also when a caller with patience would have to work for long."""
        return _Held(self._lock, patience_s)

    def _place(self, state: State) -> Place:
        found = self._known.get(state)
        if found is None:
            if len(self._known) >= MAX_PLACES:
                for old in list(islice(self._known, MAX_PLACES // 2)):
                    del self._known[old]
            charge(N_BYTES)
            found = self._known[state] = Place(state, self._matcher.is_done(state))
        return found

    def step(self, place: Place, token_id: int, patience_s: float | None = None) -> Place | None:
        """The place behind the token; None if it isn't allowed.

        Raises TimeoutError if another thread keeps the grammar busy for `patience_s` (None = no limit).
        """
        if token_id in place.after:
            return place.after[token_id]
        with self._held(patience_s):
            state = self._matcher.advance(place.state, token_id)
            after = place.after[token_id] = None if state is None else self._place(state)
        return after

    def past_early(self, place: Place, patience_s: float | None = None) -> Place:
        """The place once early tags don't count any more. TimeoutError as for `step`."""
        if place.past is None:
            with self._held(patience_s):
                place.past = self._place(self._matcher.past_early(place.state))
        return place.past

    def n_out(self, place: Place, patience_s: float | None = None) -> int:
        """Tokens of the shortest way to the end. TimeoutError as for `step`, and where it takes long to tell."""
        if place.n_out is not None:
            return place.n_out
        if patience_s is not None and _remembers_items(self._matcher, place.state):
            raise TimeoutError
        with self._held(patience_s):
            place.n_out = self._matcher.n_tokens_out(place.state)
        return place.n_out

    def route(self, place: Place, patience_s: float | None = None) -> tuple[int, ...]:
        """Ids of that way. TimeoutError as for `step`."""
        with self._held(patience_s):
            return tuple(self._matcher.route(place.state))

    def known_mask(self, place: Place) -> Row | None:
        """The allowed ids, packed, if they are known. Shared: never write to it."""
        return place.mask

    def mask(self, place: Place) -> Row:
        """The same, worked out if need be."""
        if place.mask is None:
            with self._held(None):
                place.mask = self._matcher.mask(place.state)
        return place.mask

    def fitting(self, place: Place, n_left: int) -> tuple[Row, bool]:
        """The mask without tokens behind which the end isn't within `n_left` tokens, and whether that took any."""
        with self._held(None):
            return self._matcher.fitting(place.state, n_left)

    def is_done(self, place: Place) -> bool:
        return place.is_done

    def forced(self, place: Place, patience_s: float | None = None) -> bytes:
        """The bytes that must follow; b"" if there is a choice. TimeoutError as for `step`."""
        if place.forced is None:
            with self._held(patience_s):
                place.forced = self._matcher.forced(place.state)
        return place.forced


def _remembers_items(matcher: Matcher, state: State) -> bool:
    """Whether items of a unique array have to be told apart: each way out of it is a search."""
    cell = state.cell.below if state.marks else None
    while cell is not None:
        local = matcher.local(cell.top)
        if isinstance(local, WaitingItem) and local.captures:
            return True
        cell = cell.below
    return False


__all__ = ["NEVER", "Place", "Places"]
