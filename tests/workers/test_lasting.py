"""Workers that answer many questions: each within limits, one always ready, none lost with the zygote."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from imp_server.core.errand import Errand, NotWanted, running
from imp_server.workers.client import Workers
from imp_server.workers.lasting import GRACE_S, LastingWorkers, WorkerEnded, WorkerFault
from imp_server.workers.wire import JobLimits

from tests.workers.test_jobs import gone_within

JOBS = "tests.workers.some_jobs"
MOST = 1 << 20


@pytest.fixture
def workers() -> Iterator[Workers]:
    found = Workers([f"{JOBS}:warm_up"])
    yield found
    found.close()


def counters(workers: Workers, cpu_s: float = 5.0, opening: bytes = b"0") -> LastingWorkers:
    return LastingWorkers(workers, f"{JOBS}:open_counter", opening, JobLimits(cpu_s=cpu_s))


def asked(own: LastingWorkers, question: bytes = b"") -> tuple[int, int]:
    n, pid = own.call(question, MOST).split()
    return int(n), int(pid)


def test_one_worker_answers_many_questions(workers: Workers) -> None:
    own = counters(workers)
    own.open()
    assert [asked(own)[0] for _ in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(WorkerFault, match="invalid literal"):
        counters(workers, opening=b"x").open()


@pytest.mark.parametrize("how", ["spin", "sleep"])
def test_what_never_answers_is_replaced(workers: Workers, how: str) -> None:
    own = counters(workers, cpu_s=0.1)
    own.open()
    _, first = asked(own)
    for n in range(1, 4):
        assert not own.is_failing
        with pytest.raises(WorkerEnded, match="cpu" if how == "spin" else "killed|crashed"):
            own.call(how.encode(), MOST)
        assert own.n_killed == n
    assert own.is_failing
    assert asked(own)[1] != first and not own.is_failing


def test_the_other_one_serves_meanwhile(workers: Workers) -> None:
    own = counters(workers, cpu_s=1.0)
    own.open()
    asked(own)

    def stuck() -> None:
        with pytest.raises(WorkerEnded):
            own.call(b"spin", MOST)

    thread = threading.Thread(target=stuck)
    thread.start()
    time.sleep(0.1)
    began = time.monotonic()
    asked(own)
    assert time.monotonic() - began < 0.9
    thread.join()


def test_an_answer_too_long_ends_the_worker(workers: Workers) -> None:
    own = counters(workers)
    with pytest.raises(WorkerEnded, match="memory"):
        own.call(b"", 1)
    assert asked(own)[0] == 1


def test_questions_outlive_the_zygote(workers: Workers) -> None:
    own = counters(workers)
    _, before = asked(own)
    assert workers.pid is not None
    os.kill(workers.pid, signal.SIGKILL)
    assert gone_within(before, 5)
    n, after = asked(own)
    assert n == 1 and after != before and own.n_killed == 0 and workers.n_deaths == 1


def leaving_after(seconds: float, errand: Errand) -> None:
    timer = threading.Timer(seconds, errand.end)
    timer.daemon = True
    timer.start()


def test_a_question_that_nobody_waits_for_ends_its_worker(workers: Workers) -> None:
    own = counters(workers, cpu_s=60.0)
    own.open()
    _, first = asked(own)
    errand = Errand()
    leaving_after(0.1, errand)
    began = time.monotonic()
    with running(errand), pytest.raises(NotWanted):
        own.call(b"spin", MOST)
    assert time.monotonic() - began < 5
    assert gone_within(first, 2)
    assert own.n_killed == own.n_in_row == 0, "it is nobody's fault"
    assert {asked(own)[1] for _ in range(4)} != {first}


def test_a_question_that_is_nearly_answered_keeps_its_worker(workers: Workers) -> None:
    own = counters(workers)
    own.open()
    n, first = asked(own)
    errand = Errand()
    with running(errand):
        assert asked(own) == (n + 1, first)
        errand.end()
        with pytest.raises(NotWanted):
            own.call(b"", MOST)
    time.sleep(1.5 * GRACE_S)
    assert asked(own) == (n + 2, first)


def test_who_waits_for_a_worker_may_leave(workers: Workers) -> None:
    own = counters(workers, cpu_s=60.0)
    own.open()
    errands = [Errand() for _ in range(3)]
    ended: list[int] = []

    def ask(number: int) -> None:
        with running(errands[number]), pytest.raises(NotWanted):
            own.call(b"spin", MOST)
        ended.append(number)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    errands[2].end()
    threads[2].join(2)
    assert ended == [2]
    for errand in errands:
        errand.end()
    for thread in threads:
        thread.join(10)
    assert sorted(ended) == [0, 1, 2] and asked(own)[0] == 1
