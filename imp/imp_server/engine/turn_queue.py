"""One thread for many questions: each works for a turn and then lets the others have theirs.

A question that needs more than its turn starts again with its next one, and finds what it kept there (core/turns.py).
Where it kept nothing its turns become longer, so that it gets through. Between two turns of such questions one that
hasn't had any comes first, however many hard ones there are; and hard ones get every other turn at least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any, TypeVar

from imp_server.core import GrammarTooCostly
from imp_server.core.turns import OutOfTurn, n_kept, turn

T = TypeVar("T")

TURN = 1000
"""Units of a turn: about ten milliseconds."""
MOST = 1_000_000
"""Units of one question, all its turns together: about ten seconds. Whoever asks more is refused.

Of 375 real schemas none asked more than 20,000.
"""


@dataclass(slots=True)
class _Job:
    answer: Callable[[], Any]
    future: Future[Any]
    n_units: int
    n_spent: int = 0


class TurnQueue:
    """Owner of the thread, and of the order in which jobs get their turns: new ones and hard ones by turns.

    Among either: first come, first served, over and over.
    """

    def __init__(
        self, name: str, *, turn_units: int = TURN, most: int = MOST, between: Callable[[], None] = lambda: None
    ) -> None:
        """`between`: called behind each turn."""
        self._turn_units, self._most, self._between = turn_units, most, between
        self._new: deque[_Job] = deque()
        self._hard: deque[_Job] = deque()
        self._last_was_hard = False
        self._changed = Condition()
        self._stopped = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, answer: Callable[[], T]) -> Future[T]:
        """`answer` may be called several times. The future fails with GrammarTooCostly if it never gets done."""
        future: Future[T] = Future()
        with self._changed:
            if self._stopped:
                future.cancel()
            else:
                self._new.append(_Job(answer, future, self._turn_units))
                self._changed.notify()
        return future

    def stop(self) -> None:
        """Cancel what hasn't been answered."""
        with self._changed:
            self._stopped = True
            for job in (*self._new, *self._hard):
                job.future.cancel()
            self._new.clear()
            self._hard.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if job.future.cancelled():
                job.future.set_running_or_notify_cancel()
                continue
            is_answered = self._answered(job)
            self._between()
            if is_answered:
                continue
            with self._changed:
                if self._stopped:
                    job.future.cancel()
                else:
                    self._hard.append(job)
                    self._last_was_hard = True

    def _next(self) -> _Job | None:
        with self._changed:
            while not (self._new or self._hard or self._stopped):
                self._changed.wait()
            if self._stopped:
                return None
            self._last_was_hard = bool(self._hard) and not (self._new and self._last_was_hard)
            return (self._hard if self._last_was_hard else self._new).popleft()

    def _answered(self, job: _Job) -> bool:
        """Give the job a turn; False: it needs another one."""
        before = n_kept()
        try:
            with turn(job.n_units):
                result = job.answer()
        except OutOfTurn:
            job.n_spent += job.n_units
            if job.n_spent < self._most:
                job.n_units *= 1 if n_kept() > before else 2
                return False
            _settle(job.future, None, GrammarTooCostly("this grammar takes too much work; simplify it"))
        except BaseException as error:
            _settle(job.future, None, error)
        else:
            _settle(job.future, result, None)
        return True


def _settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    """Answer unless it was cancelled meanwhile. Until then it counts as waiting, so that it can be."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
