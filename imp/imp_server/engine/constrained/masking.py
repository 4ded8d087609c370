"""The mask thread: starts grammars, fills masks and answers what the loop has no time for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Timer
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

import numpy as np

from imp_server.core import EngineFaulted, GrammarMemoryFull, GrammarPlan
from imp_server.core.limits import QUESTION, START, Limit, bounded
from imp_server.engine.constrained.constraint import Constraint, MakeConstraint, Mask
from imp_server.engine.constrained.heap_freezer import HeapFreezer
from imp_server.engine.constrained.turn_queue import TurnQueue

T = TypeVar("T")
MASK_GRACE_S = 0.002
"""How long a step waits for masks, drafts' included, while other rows could run: less than a step, more than a common
mask."""
ROOM_WAIT_S, ROOM_TRIES = 0.25, 20
"""How long a new grammar waits between two tries where those of live rows fill the memory, and how often it tries."""
_MAX_READY = 1024
"""Finished masks kept, so that a row on known ground costs a look into a dict."""


class Made(NamedTuple):
    """`is_narrowed`: length steering took tokens away that the grammar allows. `only`: the single id allowed, or -1."""

    bits: Mask
    is_narrowed: bool = False
    only: int = -1


class Wanted(NamedTuple):
    """A mask to be made. `n_left` >= 0: only tokens behind which the end is within so many tokens, and `keep`."""

    constraint: Constraint
    place: Any
    end_ids: tuple[int, ...]
    n_left: int = -1
    keep: int = -1
    refused: frozenset[int] = frozenset()
    """Ids left out although the grammar allows them."""
    goes_on: bool = False
    """The reply is too short yet: nothing ends it where the grammar allows anything else."""


class Asker(NamedTuple):
    """For whom the thread works: turns are shared alike by owners. `key`: of the request."""

    owner: str = ""
    key: int = 0


NOBODY = Asker()


class MaskThread:
    """Owner of the one thread that works on grammars while the model's forward runs.

    A thread that gets stuck may hold what all grammars share: their constraints are lost then, and new ones begin on
    something new.
    """

    def __init__(
        self,
        vocab_size: int,
        make: MakeConstraint,
        rests: Callable[[], bool] = lambda: False,
        running: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`rests`, `running`: as of a TurnQueue."""
        self._n_words = -(-vocab_size // 32)
        self._make = make
        self._jobs = TurnQueue("imp-mask", between=HeapFreezer(), rests=rests, running=running)
        self._ready: WeakKeyDictionary[Any, dict[tuple[int, ...], Future[Made]]] = WeakKeyDictionary()
        """By place: a grammar that is given up takes its finished masks along."""
        self._constraints: WeakSet[Constraint] = WeakSet()
        self._lost: WeakSet[Constraint] = WeakSet()

    def start(self, plan: GrammarPlan, asker: Asker = NOBODY) -> Future[Constraint]:
        """Fails with GrammarRefused, GrammarMemoryFull."""
        started: Future[Constraint] = Future()
        self._try(plan, asker, started, ROOM_TRIES)
        return started

    def _try(self, plan: GrammarPlan, asker: Asker, started: Future[Constraint], n_left: int) -> None:
        """`n_left`: tries behind this one, should there be no memory."""

        def settle(done: Future[Constraint]) -> None:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, GrammarMemoryFull) and n_left:
                timer = Timer(ROOM_WAIT_S, self._try, (plan, asker, started, n_left - 1))
                timer.daemon = True
                timer.start()
            elif done.cancelled():
                started.cancel()
            elif not started.set_running_or_notify_cancel():
                return
            elif error is not None:
                started.set_exception(error)
            else:
                started.set_result(done.result())

        job = self._ask(_within(START, lambda: self._made_constraint(plan)), asker)
        weak = ref(job)  # neither is to keep the other: what they hold would stay until cycles are searched for
        started.add_done_callback(lambda done: done.cancelled() and (found := weak()) is not None and found.cancel())
        job.add_done_callback(settle)

    def _made_constraint(self, plan: GrammarPlan) -> Constraint:
        constraint = self._make(plan)
        self._constraints.add(constraint)
        return constraint

    def find_stuck(self, stuck_s: float) -> Asker | None:
        """For whom the thread was at work when it got stuck for good: none is left. Called about once a second."""
        found = self._jobs.find_stuck(stuck_s)
        if found is None:
            return None
        asker, goes_on = found
        lost, self._constraints = self._constraints, WeakSet()  # the thread's successor adds to it already
        self._lost |= lost
        abandon = getattr(self._make, "abandon", None)
        if abandon is not None:
            abandon()
        return None if goes_on else asker

    def _ask(self, function: Callable[[], T], asker: Asker) -> Future[T]:
        return self._jobs.submit(function, asker.owner, asker)

    def _check(self, constraint: Constraint) -> None:
        if constraint in self._lost:
            raise EngineFaulted("the thread that works on grammars got stuck on another one; send the request again")

    @property
    def seconds(self) -> Mapping[str, float]:
        """Counters of the thread's CPU time."""
        return self._jobs.seconds

    def is_quick(self, asker: Asker) -> bool:
        """New questions get a slice at once."""
        return self._jobs.is_quick(asker.owner)

    def earn(self, asker: Asker) -> None:
        """A token was sampled under one of its masks."""
        self._jobs.earn(asker.owner)

    def submit(self, wanted: Wanted, asker: Asker = NOBODY) -> Future[Made]:
        """Done at once where the mask is known from an earlier visit."""
        known = None if wanted.n_left >= 0 else wanted.constraint.known_mask(wanted.place)
        if known is None:
            return self.call(lambda: self.fill(wanted), wanted.constraint, asker)
        if wanted.refused:
            return _done(self._made(wanted, known))
        finished = self._finished_masks(wanted.place)
        key = (*wanted.end_ids, -1) if wanted.goes_on else wanted.end_ids
        ready = finished.get(key)
        if ready is None:
            ready = finished[key] = _done(self._made(wanted, known))
        return ready

    def _finished_masks(self, place: Any) -> dict[tuple[int, ...], Future[Made]]:
        """Of one place, by end ids."""
        if len(self._ready) >= _MAX_READY:
            self._ready.clear()
        try:
            return self._ready.setdefault(place, {})
        except TypeError:  # nothing can refer to it weakly
            return {}

    def call(self, function: Callable[[], T], constraint: Constraint, asker: Asker = NOBODY) -> Future[T]:
        """Run there, in turn. `constraint`: the grammar that it asks."""

        def ask() -> T:
            self._check(constraint)
            return function()

        return self._ask(_within(QUESTION, ask), asker)

    def stop(self) -> None:
        self._jobs.stop()

    def fill(self, wanted: Wanted) -> Made:
        """At once, on the calling thread."""
        constraint, place = wanted.constraint, wanted.place
        if wanted.n_left < 0:
            return self._made(wanted, constraint.mask(place))
        return self._made(wanted, *constraint.fitting(place, wanted.n_left))

    def _made(self, wanted: Wanted, allowed: Mask, is_narrowed: bool = False) -> Made:
        bits = self._finished(wanted, allowed)
        return Made(bits, is_narrowed, _only(bits))

    def _finished(self, wanted: Wanted, allowed: Mask) -> Mask:
        bits = np.zeros(self._n_words, dtype=np.uint32)
        bits[: len(allowed)] = allowed[: self._n_words]
        may_end = wanted.constraint.is_done(wanted.place)
        for token_id in wanted.end_ids:
            _set(bits, token_id, may_end)
        if wanted.keep >= 0:
            _set(bits, wanted.keep, True)
        for token_id in wanted.refused:
            _set(bits, token_id, False)
        return _going_on(bits, wanted.end_ids) if wanted.goes_on and may_end else bits


def _done(made: Made) -> Future[Made]:
    future: Future[Made] = Future()
    future.set_result(made)
    return future


def _within(limit: Limit, answer: Callable[[], T]) -> Callable[[], T]:
    """`answer`, all of whose tries together may cost so much. It raises GrammarTooCostly beyond that."""
    budget = limit.budget()

    def paid() -> T:
        with bounded(budget, "grammar"):
            return answer()

    return paid


def _only(bits: Mask) -> int:
    words = np.flatnonzero(bits)
    word = int(bits[words[0]]) if len(words) == 1 else 0
    return 32 * int(words[0]) + word.bit_length() - 1 if word and not word & (word - 1) else -1


def _going_on(bits: Mask, end_ids: tuple[int, ...]) -> Mask:
    """Without what ends the reply, if anything is left then."""
    others = bits.copy()
    for token_id in end_ids:
        _set(others, token_id, False)
    return others if others.any() else bits


def _set(bits: Mask, token_id: int, allowed: bool) -> None:
    bit = np.uint32(1 << (token_id % 32))
    if allowed:
        bits[token_id // 32] |= bit
    else:
        bits[token_id // 32] &= ~bit


def wait_for_some(jobs: Iterable[Future[Any]], timeout_s: float) -> None:
    """Until one of the jobs is done."""
    wait(list(jobs), timeout_s, FIRST_COMPLETED)


def wait_for_all(jobs: Iterable[Future[Any]], timeout_s: float) -> None:
    wait(list(jobs), timeout_s)
