"""Threads that get stuck: reported by name, replaced twice, and taken back when they go on."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from imp_server.core.lanes import Lane


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Doors:
    """Work that goes on until its door is opened."""

    def __init__(self) -> None:
        self.all: list[threading.Event] = []

    def endless(self) -> tuple[Callable[[], str], threading.Event]:
        begun, door = threading.Event(), threading.Event()
        self.all.append(door)

        def work() -> str:
            begun.set()
            door.wait(20)
            return "done at last"

        return work, begun


@pytest.fixture
def doors() -> Iterator[Doors]:
    found = Doors()
    yield found
    for door in found.all:
        door.set()


def stick(lane: Lane, doors: Doors, clock: Clock) -> None:
    """Let one of its threads get stuck."""
    work, begun = doors.endless()
    lane.submit(work)
    assert begun.wait(5)
    clock.now += 31
    lane.look()


def test_order_results_and_errors() -> None:
    lane = Lane("test")
    seen: list[int] = []
    jobs = [lane.submit(partial(seen.append, i)) for i in range(20)]
    failing = lane.submit(lambda: 1 // 0)
    assert lane.submit(lambda: "fine").result(5) == "fine"
    assert seen == list(range(20)) and all(job.done() for job in jobs)
    with pytest.raises(ZeroDivisionError):
        failing.result(5)
    lane.close()
    assert lane.submit(lambda: "late").cancelled()


def test_a_stuck_thread_is_named_and_replaced_twice(doors: Doors, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    lane = Lane("imp-test", stuck_s=30, clock=clock)
    for n in (1, 2):
        stick(lane, doors, clock)
        assert (lane.n_stuck, lane.is_lost) == (n, False)
        assert lane.submit(lambda: "still served").result(5) == "still served"
    stick(lane, doors, clock)
    assert (lane.n_stuck, lane.is_lost) == (3, True)
    stuck = [record.getMessage() for record in caplog.records]
    assert [text.partition(" is stuck: ")[0] for text in stuck] == [f"thread imp-test-{i}" for i in (1, 2, 3)]
    assert "Doors.endless" in stuck[0] and "31 s" in stuck[0]
    assert "(1 of 2)" in stuck[0] and "(2 of 2)" in stuck[1] and "none is left" in stuck[2]
    lane.look()
    assert len(caplog.records) == 3, "each once"
    lane.close()


def test_a_thread_that_goes_on_gives_its_result_and_its_place_back(doors: Doors) -> None:
    clock = Clock()
    lane = Lane("test", 2, stuck_s=30, clock=clock)
    work, begun = doors.endless()
    late = lane.submit(work)
    assert begun.wait(5)
    clock.now += 29
    lane.look()
    assert lane.n_stuck == 0, "long isn't stuck"
    clock.now += 2
    lane.look()
    assert lane.n_stuck == 1
    doors.all[0].set()
    assert late.result(5) == "done at last"
    until = time.monotonic() + 5
    while (lane.n_stuck or len(lane._workers) != 2) and time.monotonic() < until:
        time.sleep(0.01)
    assert (lane.n_stuck, len(lane._workers)) == (0, 2)
    both = threading.Barrier(2, timeout=5)
    for job in [lane.submit(both.wait), lane.submit(both.wait)]:
        job.result(5)
    lane.close()


def test_lost_lanes_are_found_again(doors: Doors) -> None:
    clock = Clock()
    lane = Lane("test", stuck_s=30, spares=0, clock=clock)
    stick(lane, doors, clock)
    waiting = lane.submit(lambda: "served")
    assert lane.is_lost and not waiting.done()
    doors.all[0].set()
    assert waiting.result(5) == "served" and not lane.is_lost
    lane.close()


def test_without_a_limit_nothing_is_stuck(doors: Doors) -> None:
    clock = Clock()
    lane = Lane("test", clock=clock)
    stick(lane, doors, clock)
    clock.now += 10**6
    lane.look()
    assert lane.n_stuck == 0 and not lane.is_lost
    lane.close()


def test_cancelled_work_never_begins(doors: Doors) -> None:
    lane = Lane("test")
    work, begun = doors.endless()
    running = lane.submit(work)
    assert begun.wait(5)
    called: list[int] = []
    waiting = lane.submit(lambda: called.append(1))
    assert waiting.cancel() and not running.cancel()
    doors.all[0].set()
    assert lane.submit(lambda: len(called)).result(5) == 0
    lane.close()


def test_a_stuck_thread_keeps_no_process_alive() -> None:
    work = "Lane('x').submit(lambda: time.sleep(60)); time.sleep(0.1)"
    code = f"import time; from imp_server.core.lanes import Lane; {work}"
    subprocess.run([sys.executable, "-c", code], timeout=20, check=True)
