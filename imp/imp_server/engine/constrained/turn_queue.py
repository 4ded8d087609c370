"""One thread for many questions: each works for a turn and then lets the others have theirs.

Three levels. A new question gets a small slice. What exceeds it sinks, and is resumed in longer turns behind new ones:
it starts again with each turn and finds what it kept there (core/turns.py); where it kept nothing its turns become
longer, so that it gets through. Sunk questions get every other turn at least. On each level the owner who has had least
comes first, so one who asks much waits for himself. While rows run that need nothing of it, sunk work rests between its
turns: it shares the interpreter's lock with the step loop, so a lower priority of the thread would hold up the loop.

Beside rows of other owners, who haven't used up their own share, a slice is paid for: from what its owner has, and all
of them together, for quick work; each token that was sampled earns as much as common masks cost. With nothing left new
questions are sunk from the start: many rows whose every mask is a little dear would never sink else.

A thread that doesn't come back from a turn is stuck. Its question fails, and another thread takes its place.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, TypeVar

from imp_server.core import GrammarTooCostly
from imp_server.core.credit import Credits
from imp_server.core.lanes import SPARES
from imp_server.core.turns import OutOfTurn, n_kept, turn

T = TypeVar("T")
log = logging.getLogger(__name__)

SLICE = 1000
"""Units of a question's first turn: about two milliseconds."""
TURN = 4000
"""Units of its second: about eight milliseconds."""
LONG_TURN = 8000
"""Units of further ones."""
TOKEN_S = 0.0015
"""Earned by a sampled token. Under a schema that nobody has sent before masks take 0.6 ms of the thread per token,
those included that leave no choice."""
OWN = (0.005, 0.015)
"""Of the time, and seconds at once: what an owner's quick slices may take beside rows of others."""
SHARED = (0.08, 0.05)
"""The same of all owners together."""
_REST = 12.0
"""Times the turn before: so long nothing sunk runs while others want the processor. All owners together have a
thirteenth of the time.
"""
_N_LEVELS = 3
QUICK_SECONDS, SUNK_SECONDS = (f'mask_thread_seconds_total{{turns="{name}"}}' for name in ("quick", "sunk"))
"""Count CPU seconds of the thread: in slices that were paid for or held up nobody, and in others."""
TOO_COSTLY = "this grammar takes too much work; simplify it"


@dataclass(slots=True, eq=False)
class _Job:
    answer: Callable[[], Any]
    future: Future[Any]
    owner: str
    about: Any
    """What it is for, as its asker calls it."""
    n_units: int
    level: int = 0
    is_quick: bool = True
    """Its turn is a slice that was paid for, or that holds up nobody."""


@dataclass(slots=True, eq=False)
class _Owner:
    """What somebody has waiting, by level, and the seconds that he has had, as far as they matter."""

    name: str
    had_s: float = 0.0
    waiting: tuple[deque[_Job], ...] = field(default_factory=lambda: tuple(deque() for _ in range(_N_LEVELS)))

    @property
    def has_new(self) -> bool:
        return bool(self.waiting[0])

    @property
    def has_sunk(self) -> bool:
        return any(self.waiting[1:])

    @property
    def has_any(self) -> bool:
        return any(self.waiting)


@dataclass(slots=True, eq=False)
class _Running:
    """The thread at work: on what, since when (seconds, 0.0 = on nothing)."""

    name: str
    job: _Job | None = None
    since_s: float = 0.0


class Stuck(GrammarTooCostly):
    """The thread never came back from this question."""


class TurnQueue:
    """Owner of the thread, and of the order in which jobs get their turns."""

    def __init__(
        self,
        name: str,
        *,
        slice_units: int = SLICE,
        turn_units: int = TURN,
        between: Callable[[], None] = lambda: None,
        rests: Callable[[], bool] = lambda: False,
        running: Callable[[], Iterable[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`between`: called behind each turn. `rests`: somebody runs who needs nothing of what has sunk.

        `running`: whose rows run that don't wait for answers.
        """
        self._name, self._between, self._rests, self._clock = name, between, rests, clock
        self._running_owners = running
        self._credits = Credits(OWN, SHARED)
        self._units = (min(slice_units, turn_units), turn_units, turn_units * LONG_TURN // TURN)
        self._owners: dict[str, _Owner] = {}
        self._changed = Condition()
        self._served_s = 0.0
        """What he had had whose turn was the latest."""
        self._last_was_sunk = False
        self._rest_until_s = 0.0
        self._stopped = False
        self.n_stuck = 0
        self.seconds = {QUICK_SECONDS: 0.0, SUNK_SECONDS: 0.0}
        self._running = _Running(name)
        self._start()

    def submit(self, answer: Callable[[], T], owner: str = "", about: Any = None) -> Future[T]:
        """`answer` may be called several times; what it may cost in all is for itself to limit (core/limits.py)."""
        future: Future[T] = Future()
        with self._changed:
            if self._stopped:
                future.cancel()
            else:
                self._put(_Job(answer, future, owner, about, self._units[0]))
                self._changed.notify()
        return future

    def is_quick(self, owner: str) -> bool:
        """New questions of the owner get a slice at once."""
        with self._changed:
            return self._may_be_quick(owner)

    def earn(self, owner: str) -> None:
        """A token of the owner's was sampled."""
        with self._changed:
            self._credits.earn(owner, TOKEN_S, self._clock())

    def stop(self) -> None:
        """Cancel what hasn't been answered."""
        with self._changed:
            self._stopped = True
            for owner in self._owners.values():
                for jobs in owner.waiting:
                    for job in jobs:
                        job.future.cancel()
            self._owners.clear()
            self._changed.notify_all()

    def find_stuck(self, stuck_s: float) -> tuple[Any, bool] | None:
        """What the question was about that the thread has been at for too long, and whether another took its place.

        None: it goes on. Called by another thread, about once a second.
        """
        with self._changed:
            running = self._running
            job, seconds = running.job, self._clock() - running.since_s
            if job is None or not stuck_s or seconds <= stuck_s:
                return None
            self.n_stuck += 1
            goes_on = self.n_stuck <= SPARES
            then = f"another takes its place ({self.n_stuck} of {SPARES})" if goes_on else "none is left"
            log.error("thread %s is stuck: one question for %.0f s; %s", running.name, seconds, then)
            if goes_on:
                self._running = _Running(f"{self._name}-{self.n_stuck + 1}")
                self._start()
            else:
                running.job = None
        settle(job.future, None, Stuck(TOO_COSTLY))
        return job.about, goes_on

    def _start(self) -> None:
        Thread(target=self._run, args=(self._running,), name=self._running.name, daemon=True).start()

    # --- the order ------------------------------------------------------------------------------

    def _put(self, job: _Job) -> None:
        owner = self._owners.get(job.owner)
        if owner is None:
            # Who comes back has saved up nothing, and pays for nothing that he had while nobody else wanted it.
            owner = self._owners[job.owner] = _Owner(job.owner, self._served_s)
        owner.waiting[job.level].append(job)

    def _take(self, *, rests: bool) -> _Job | None:
        """The job whose turn it is; None if there is none. `rests`: nothing that has sunk has a turn now."""
        new = min((o for o in self._owners.values() if self._has_quick(o)), key=_had, default=None)
        sunk = None if rests else min((o for o in self._owners.values() if self._has_sunk(o)), key=_had, default=None)
        self._last_was_sunk = sunk is not None and (new is None or not self._last_was_sunk)
        owner = sunk if self._last_was_sunk else new
        if owner is None:
            return None
        self._served_s = max(self._served_s, owner.had_s)
        is_quick = self._may_be_quick(owner.name)
        job = next(jobs for jobs in owner.waiting[self._last_was_sunk and is_quick :] if jobs).popleft()
        job.is_quick = is_quick and not job.level
        return job

    def _may_be_quick(self, owner: str) -> bool:
        return self._credits.left_s(owner, self._clock()) > 0.0 or not self._is_beside_others(owner)

    def _is_beside_others(self, owner: str) -> bool:
        """Who used up their own share mind it no more than this one."""
        now_s = self._clock()
        return any(other != owner and self._credits.own_s(other, now_s) > 0.0 for other in self._running_owners())

    def _has_quick(self, owner: _Owner) -> bool:
        return owner.has_new and self._may_be_quick(owner.name)

    def _has_sunk(self, owner: _Owner) -> bool:
        """New questions that nobody pays for are among them."""
        return owner.has_sunk or (owner.has_new and not self._may_be_quick(owner.name))

    # --- the thread -----------------------------------------------------------------------------

    def _run(self, running: _Running) -> None:
        while self._took_a_turn(running):
            pass

    def _took_a_turn(self, running: _Running) -> bool:
        """Serve one job; False: the thread is to end. Whoever waits for the next one holds on to none."""
        job = self._next(running)
        if job is None:
            return False
        began_s = time.thread_time()
        is_answered = self._answered(job)
        self._between()
        self.seconds[QUICK_SECONDS if job.is_quick else SUNK_SECONDS] += time.thread_time() - began_s
        seconds = self._clock() - running.since_s
        with self._changed:
            if self._running is not running:
                log.warning("thread %s comes back from its question and ends", running.name)
                return False
            running.job = None
            self._behind(job, is_answered, seconds)
            if job.is_quick and self._is_beside_others(job.owner):
                self._credits.pay(job.owner, seconds, self._clock())
            if not (job.is_quick and is_answered):
                self._rest_until_s = self._clock() + seconds * _REST
        return True

    def _behind(self, job: _Job, is_answered: bool, seconds: float) -> None:
        if self._stopped:
            job.future.cancel()
            return
        owner = self._owners[job.owner]
        owner.had_s += seconds
        if not is_answered:
            job.level = min(job.level + 1, _N_LEVELS - 1)
            job.n_units = max(job.n_units, self._units[job.level])
            self._put(job)
        elif not owner.has_any:
            del self._owners[job.owner]

    def _next(self, running: _Running) -> _Job | None:
        with self._changed:
            while not self._stopped and self._running is running:
                rest_s = self._rest_until_s - self._clock()
                if rest_s > 0.0 and not self._rests():
                    rest_s = 0.0
                job = self._take(rests=rest_s > 0.0)
                if job is not None:
                    running.job, running.since_s = job, self._clock()
                    return job
                self._changed.wait(rest_s if rest_s > 0.0 else None)
            return None

    def _answered(self, job: _Job) -> bool:
        """Give the job a turn; False: it needs another one."""
        if job.future.cancelled():
            job.future.set_running_or_notify_cancel()
            return True
        before = n_kept()
        try:
            with turn(job.n_units):
                result = job.answer()
        except OutOfTurn:
            job.n_units *= 1 if n_kept() > before else 2
            return False
        except BaseException as error:
            settle(job.future, None, error)
        else:
            settle(job.future, result, None)
        return True


def _had(owner: _Owner) -> float:
    return owner.had_s


def settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    """Answer unless it was cancelled, or failed, meanwhile. Until then it counts as waiting, so that it can be."""
    with suppress(InvalidStateError):
        if future.done() or not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
