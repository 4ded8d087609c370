"""The thread count follows what steps cost, also when that changes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from imp_server.backends.base import KvSpec
from imp_server.backends.cpu.thread_choice import ThreadChoice
from imp_server.engine.warming import warm_up
from imp_server.schedule.cost import CostTable

from tests.backends.cpu.running import open_backend
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource


def serve(choice: ThreadChoice, n_steps: int, cost: Callable[[int], float], n_tokens: int = 1) -> list[int]:
    used = []
    for _ in range(n_steps):
        n = choice.threads_for(n_tokens)
        choice.observe(n_tokens, n, cost(n) * n_tokens)
        used.append(n)
    return used


def test_counts_are_powers_of_two_and_the_most() -> None:
    assert ThreadChoice(1).counts == (1,)
    assert ThreadChoice(2).counts == (1, 2)
    assert ThreadChoice(6).counts == (1, 2, 4, 6)
    assert ThreadChoice(16).counts == (1, 2, 4, 8, 16)


def test_the_fastest_count_is_used_after_one_look_at_each() -> None:
    choice = ThreadChoice(8)
    used = serve(choice, 100, {1: 5.0, 2: 3.0, 4: 2.0, 8: 4.0}.__getitem__)
    assert used[:5] == [8, 8, 4, 2, 1]
    assert used[5:].count(4) >= 93


def test_a_busy_neighbour_moves_it_and_its_end_moves_it_back() -> None:
    choice = ThreadChoice(2)
    serve(choice, 50, {1: 3.0, 2: 2.0}.__getitem__)
    busy = serve(choice, 400, {1: 3.2, 2: 6.0}.__getitem__)
    assert busy[-200:].count(1) > 190
    quiet = serve(choice, 800, {1: 3.0, 2: 2.0}.__getitem__)
    assert quiet[-200:].count(2) > 190


def test_widths_are_apart() -> None:
    choice = ThreadChoice(2)
    serve(choice, 60, {1: 1.0, 2: 2.0}.__getitem__, n_tokens=1)
    serve(choice, 60, {1: 2.0, 2: 1.0}.__getitem__, n_tokens=512)
    assert serve(choice, 1, {1: 1.0, 2: 2.0}.__getitem__, n_tokens=1) == [1]
    assert serve(choice, 1, {1: 2.0, 2: 1.0}.__getitem__, n_tokens=300) == [2]


def test_depths_are_apart() -> None:
    """A shallow step on one thread takes less than a deep one on two, and yet two are right for both."""
    choice = ThreadChoice(2)
    used = []
    for turn in range(600):
        depth = 1280 if turn % 3 else 256
        n = choice.threads_for(512, depth)
        choice.observe(512, n, {1: 3.0, 2: 1.7}[n] * (1.9 if depth > 1000 else 1.0), depth)
        used.append(n)
    assert used[:4] == [2, 2, 1, 2]
    assert used[4:].count(1) <= 600 // 48 + 1


def test_a_new_depth_begins_with_what_its_neighbour_knows() -> None:
    choice = ThreadChoice(4)
    serve(choice, 60, {1: 5.0, 2: 2.0, 4: 3.0}.__getitem__)
    used = []
    for _ in range(20):
        n = choice.threads_for(1, 5000)
        choice.observe(1, n, {1: 50.0, 2: 20.0, 4: 30.0}[n], 5000)
        used.append(n)
    assert used == [2] * 20


def test_small_noise_does_not_swing_it() -> None:
    choice = ThreadChoice(2)
    costs = iter([1.0, 1.01, 0.99, 1.02] * 200)
    used = serve(choice, 500, lambda n: next(costs))
    changes = sum(a != b for a, b in pairwise(used[4:]))
    assert changes <= 2 * (500 // 48 + 1)


def test_the_cold_first_step_says_nothing_and_a_bad_look_is_soon_forgotten() -> None:
    choice = ThreadChoice(2)
    times = iter([90.0])
    assert serve(choice, 20, lambda n: next(times, 2.0) if n == 2 else 3.0) == [2, 2, 1, *[2] * 17]
    choice = ThreadChoice(2)
    times = iter([90.0, 9.0])
    used = serve(choice, 110, lambda n: next(times, 2.0) if n == 2 else 3.0)
    assert used[3:40] == [1] * 37 and used[-5:] == [2] * 5


def test_the_start_up_measures_each_class_of_steps_on_each_count() -> None:
    backend = open_backend(SyntheticSource(VARIANTS[0].architecture, VARIANTS[0].types), n_threads=2)
    costs = CostTable()
    warm_up(backend, KvSpec((8,), "bf16"), costs, 128)
    table = backend.thread_costs()
    assert list(table) == ["1", "3", "7", "15", "31", "63"]
    assert all(set(by_count) == {"1", "2"} for by_count in table.values())
    backend.close()
