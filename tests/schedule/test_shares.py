"""Clients that want rows at the same time get alike, short requests before long ones, and nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.queue import RequestQueue
from imp_server.schedule.shares import Shares

from tests.schedule.simulated import Simulation


def steps_until_admitted(sim: Simulation, row: object, most: int = 500) -> int:
    for n_steps in range(most):
        if row in sim.scheduler.rows:
            return n_steps
        sim.step()
    raise AssertionError("never")


@pytest.mark.parametrize("n_others", [4, 64])
def test_many_requests_of_one_client_hold_no_other_up(n_others: int) -> None:
    """128 prompts of 8 choices each: another client has its row after a turn, whatever waits in front of it."""
    sim = Simulation(256, n_rows=8, context=256, make_index=PrefixCache)
    for i in range(n_others):
        sim.submit([i, i + 1, *range(30)], 100, n=8, key=i, client="many")
    for _ in range(30):
        sim.step()
    (polite,) = sim.submit([7] * 20, 10, client="polite")
    assert steps_until_admitted(sim, polite) <= 3
    for _ in range(14):
        sim.step()
    assert polite in sim.done
    assert len(sim.scheduler.rows) == 8


def test_who_made_place_comes_back_with_the_same_output() -> None:
    def outputs(*, beside: bool) -> list[list[int]]:
        sim = Simulation(256, n_rows=4, context=256, make_index=PrefixCache)
        rows = [sim.submit(range(i, i + 40), 60, key=i, client="a")[0] for i in range(4)]
        for i in range(200 if beside else 0):
            sim.step()
            if i % 15 == 12:
                sim.submit([i] * 5, 4, client=f"b{i}")
        sim.run()
        assert bool(sim.scheduler.n_preemptions) == beside
        assert sim.scheduler.n_recomputed_tokens <= 20 * sim.scheduler.n_preemptions
        return [row.sampler.output.tolist() for row in rows]

    assert outputs(beside=True) == outputs(beside=False)


def test_a_row_that_would_be_computed_again_makes_place_later() -> None:
    """Without a prefix index: only once it has computed as much as it would lose."""
    sim = Simulation(256, n_rows=2, context=256)
    for i in range(2):
        sim.submit(range(100), 120, key=i, client="a")
    while any(not row.is_decoding for row in sim.scheduler.rows) or not sim.scheduler.rows:
        sim.step()
    (other,) = sim.submit([1], 4, client="b")
    for _ in range(200):
        sim.step()
    assert other in sim.done and sim.scheduler.n_recomputed_tokens <= sum(plan.n_tokens for plan in sim.plans) / 2


def test_nobody_takes_the_only_row_of_another() -> None:
    sim = Simulation(64, n_rows=2)
    rows = [sim.submit(range(5), 60, client=name)[0] for name in "ab"]
    sim.step()
    sim.submit(range(5), 5, client="c")
    for _ in range(20):
        sim.step()
    assert sim.scheduler.rows == rows and not sim.scheduler.n_preemptions


def test_a_low_priority_takes_no_place() -> None:
    sim = Simulation(64, n_rows=2)
    for _ in range(2):
        sim.submit(range(5), 40, client="a", priority=1)
    for _ in range(20):
        sim.step()
    sim.submit(range(5), 5, client="b")
    sim.step()
    assert not sim.scheduler.n_preemptions


def test_two_floods_get_alike() -> None:
    """One of them has four times as many requests, and longer ones."""
    sim = Simulation(256, n_rows=4, context=256)
    for i in range(80):
        sim.submit([i] * 40, 40, key=i, client="many")
    for i in range(40):
        sim.submit([200 + i] * 10, 20, key=i, client="few")
    had = {"many": 0, "few": 0}
    for _ in range(150):
        for chunk in sim.step().chunks:
            had[chunk.row.client] += chunk.n_tokens
    assert 0.75 < had["many"] / had["few"] < 1.33, had


def test_short_requests_come_before_long_ones() -> None:
    sim = Simulation(256, n_rows=1, context=512)
    sim.submit(range(5), 5)
    sim.step()
    (long,) = sim.submit(range(400), 2)
    (short,) = sim.submit(range(20), 2)
    sim.run()
    assert sim.done.index(short) < sim.done.index(long)


def test_a_long_request_is_not_overtaken_for_ever() -> None:
    """By as much work as it is long itself, for each client that wants something."""
    sim = Simulation(256, n_rows=1, context=512)
    sim.submit(range(5), 5)
    (long,) = sim.submit(range(400), 2)
    n_before = 0
    while long not in sim.done:
        if sim.scheduler.n_waiting < 2:
            sim.submit([n_before % 90] * 20, 2)
            n_before += 1
        sim.step()
    assert 5 < n_before < 60


def test_a_short_prompt_is_computed_before_a_long_one() -> None:
    """Both have rows: the long one doesn't use up each step's budget."""
    sim = Simulation(256, n_rows=4, context=1024)
    (long,) = sim.submit(range(900), 2, client="a")
    sim.step()
    (short,) = sim.submit([5] * 10, 4, client="b")
    for _ in range(6):
        sim.step()
    assert short in sim.done and not long.is_decoding


def test_choices_are_admitted_as_places_become_free() -> None:
    """A request for all rows needs no empty server."""
    sim = Simulation(64, n_rows=4)
    sim.submit(range(5), 60, client="a")
    rows = sim.submit(range(30), 12, n=4, client="b")
    sim.step()
    assert [row.slot >= 0 for row in rows] == [True, True, True, False]
    assert rows[2].leader in (rows[0], None) and rows[3].leader is None
    sim.run()
    assert len({tuple(row.sampler.output.tolist()) for row in rows}) == 4


def test_unused_charges_come_back() -> None:
    """A request that was charged for a long prompt and then found it cached, or left, has had nothing."""
    sim = Simulation(64)
    sim.submit(range(5), 40, client="other")
    (row,) = sim.submit(range(60), 20, client="a")
    (waiting,) = sim.submit(range(60), 20, client="a")
    sim.scheduler.admit()
    shares = sim.scheduler.queue.shares
    assert shares.had("a") > 60
    sim.cancel(row)
    sim.cancel(waiting)
    assert shares.had("a") == shares.clock


def test_the_clock_of_work() -> None:
    shares = Shares()
    shares.join("a", 2)
    shares.join("b", 1)
    shares.charge("a", 10)
    shares.note_work(10)
    assert shares.clock == 5 and shares.had("a") == 10 and shares.had("b") == 0
    assert shares.had("c") == 5, "who comes now has saved up nothing"
    shares.leave("b")
    shares.note_work(4)
    shares.join("b", 1)
    assert shares.had("b") == shares.clock == 9
    shares.leave("a")
    shares.leave("a")
    shares.join("a", 1)
    assert shares.had("a") == 10, "leaving for a moment gives nothing back"
    shares.leave("a")
    shares.leave("b")
    assert shares.had("a") == shares.clock, "nobody else wanted it"


requests = st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.integers(1, 30), st.integers(1, 4))


@settings(max_examples=60, deadline=None)
@given(st.lists(requests, max_size=14))
def test_any_clients_requests_end_and_give_back(load: list[tuple[str, int, int, int]]) -> None:
    sim = Simulation(40)
    for client, n_prompt, n_output, n in load:
        sim.submit(range(n_prompt), n_output, n=n, client=client)
        sim.step()
    sim.run()
    queue: RequestQueue = sim.scheduler.queue
    assert not len(queue) and not queue.shares._had and not queue.shares._n_rows


def test_a_priority_orders_its_own_clients_requests_alone() -> None:
    """Unless it counts for all: then it comes before everything."""

    def order(*, outranks: bool) -> list[str]:
        sim = Simulation(256, n_rows=1)
        sim.submit([1], 3, client="first")
        sim.step()
        names = {}
        for name, client, priority in (("a1", "a", 0), ("b1", "b", 0), ("a2", "a", 9), ("b2", "b", 0)):
            (row,) = sim.submit([ord(name[1])] * 10, 3, client=client, priority=priority, outranks=outranks)
            names[row] = name
        sim.run()
        return [names[row] for row in sim.done if row in names]

    own = order(outranks=False)
    assert own.index("a2") < own.index("a1") and {"a2", "b1"} == set(own[:2]), own
    assert order(outranks=True)[0] == "a2"


def test_a_priority_chooses_the_prompt_where_it_is_the_clients_turn() -> None:
    sim = Simulation(512, n_rows=4, context=512, step_alone_ms=16.0)
    lengths = {"a-short": ("a", 30, 0), "b": ("b", 60, 0), "a-long": ("a", 90, 9)}
    rows = {
        name: sim.submit([len(name)] * n, 2, client=client, priority=priority, outranks=False)[0]
        for name, (client, n, priority) in lengths.items()
    }
    begun: list[str] = []
    for _ in range(30):
        for chunk in sim.step().chunks:
            begun += [name for name, row in rows.items() if row is chunk.row and name not in begun]
    assert begun == ["a-long", "b", "a-short"]
