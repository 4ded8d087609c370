"""Admission, chunking, sharing, preemption; the integrity check runs around every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.rows import Row

from tests.schedule.simulated import Simulation

TWO_GROUPS = (CacheGroup("full", (0,)), CacheGroup("window", (1,), window=20))


def test_one_request_runs_to_its_end_and_frees_everything() -> None:
    sim = Simulation(8)
    (row,) = sim.submit(range(40), 10)
    sim.run()
    assert sim.done == [row] and row.sampler.length == 50
    assert [c.free for c in sim.scheduler.memory.counts()] == [8]
    assert sum(p.n_tokens for p in sim.plans) == 49


def test_long_prompts_come_in_chunks_that_the_budget_sets() -> None:
    sim = Simulation(64, context=1024)
    sim.submit([1], 200)
    sim.step()
    for _ in range(20):
        sim.step()
    sim.submit(range(400), 2)
    sim.run()
    both = [p for p in sim.plans if len(p.chunks) == 2 and max(c.n_tokens for c in p.chunks) > 1]
    assert len(both) > 10, "the decoder must run along with every chunk"
    assert all(p.n_tokens <= 17 for p in both[2:])


def test_alone_a_prefill_gets_the_larger_budget() -> None:
    sim = Simulation(64, context=1024)
    for _ in range(3):
        sim.submit(range(300), 1)
        sim.run()
    assert max(p.n_tokens for p in sim.plans) == 32


def test_n_choices_share_one_prefill_and_copy_the_last_block() -> None:
    sim = Simulation(32)
    rows = sim.submit(range(40), 12, n=3)
    sim.run()
    assert {r.choice for r in sim.done} == {0, 1, 2}
    assert sum(p.n_tokens for p in sim.plans) == 39 + 3 * 12
    copies = [c for p in sim.plans for c in p.copies]
    assert len(copies) == 2, "39 tokens: the third block is partial, two of three rows copy it"
    assert len({tuple(r.sampler.output.tolist()) for r in rows}) == 3


@pytest.mark.parametrize("n_prompt", [1, 16, 17, 33])
def test_n_choices_at_block_borders(n_prompt: int) -> None:
    sim = Simulation(32)
    sim.submit(range(n_prompt), 20, n=4)
    sim.run()
    assert len(sim.done) == 4


def test_the_first_waiter_takes_over_a_cancelled_prefill() -> None:
    sim = Simulation(32, prefill_chunk=16)
    rows = sim.submit(range(60), 3, n=3)
    sim.step()
    sim.step()
    assert rows[1].leader is rows[0]
    done = rows[0].n_computed
    sim.cancel(rows[0])
    assert rows[1].leader is None and rows[1].n_computed == done and rows[2].leader is rows[1]
    sim.run()
    assert set(sim.done) == {rows[1], rows[2]}
    assert sum(p.n_tokens for p in sim.plans) == 59 + 2 * 3


def test_the_youngest_row_yields_and_comes_back_with_the_same_output() -> None:
    roomy = Simulation(64)
    tight = Simulation(9)
    for sim in (roomy, tight):
        for start in range(3):
            sim.submit(range(start, start + 30), 50, key=start)
        sim.run()
    assert tight.scheduler.n_preemptions > 0
    outputs = [sorted((r.key, tuple(r.sampler.output.tolist())) for r in sim.done) for sim in (roomy, tight)]
    assert outputs[0] == outputs[1]
    assert tight.done[0].key == 0, "the oldest never yields"


def test_priority_before_age_and_no_overtaking() -> None:
    sim = Simulation(64, n_rows=1)
    first = sim.submit(range(5), 3, key=1)
    sim.step()
    low = sim.submit(range(5), 3, key=2)
    high = sim.submit(range(5), 3, key=3, priority=5)
    sim.run()
    assert sim.done == [*first, *high, *low]


def test_a_request_that_does_not_fit_yet_waits_without_harm() -> None:
    sim = Simulation(8)
    sim.submit(range(60), 30, key=1)
    sim.step()
    sim.submit(range(60), 4, key=2)
    sim.step()
    assert sim.scheduler.n_waiting == 1 and sim.scheduler.n_preemptions == 0
    sim.run()
    assert [r.key for r in sim.done] == [1, 2]


def test_a_held_back_row_sits_out() -> None:
    sim = Simulation(16)
    (a,) = sim.submit(range(5), 9)
    (b,) = sim.submit(range(5), 9)
    sim.step()
    a.is_held_back = True
    assert {c.row for c in sim.step().chunks} == {b}
    a.is_held_back = False
    assert {c.row for c in sim.step().chunks} == {a, b}


def test_drafts_under_way_stay_while_the_step_in_front_is_settled() -> None:
    """Whoever forgets them takes the row's next position for known."""
    sim = Simulation(8, prefill_chunk=4)
    (row,) = sim.submit(range(8), 10)
    scheduler = sim.scheduler
    scheduler.admit()
    first = scheduler.plan()
    row.n_begun = first.chunks[0].end
    row.drafts = np.array([3], dtype=np.int32)
    second = scheduler.plan()
    row.n_begun = second.chunks[0].end
    scheduler.settle(first, [0], 1.0)
    assert row.drafts.tolist() == [3] and row.awaits_token
    scheduler.settle(second, [1], 1.0)
    assert not len(row.drafts) and row.n_computed == 9


def test_window_groups_give_up_what_nobody_sees() -> None:
    sim = Simulation(16, context=256, groups=TWO_GROUPS)
    sim.submit(range(50), 150)
    most = 0
    while sim.scheduler.has_work:
        sim.step()
        most = max(most, sim.scheduler.memory.counts()[1].held)
    assert most <= 5


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    requests = st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(1, 3), st.integers(0, 1))
    return {
        "n_blocks": draw(st.integers(8, 24)),
        "groups": draw(st.sampled_from([TWO_GROUPS, TWO_GROUPS[:1]])),
        "prefill_chunk": draw(st.sampled_from([0, 1, 7, 16])),
        "events": draw(
            st.lists(st.one_of(requests, st.integers(0, 30), st.just("step"), st.just("step")), min_size=1, max_size=30)
        ),
    }


@settings(max_examples=120, deadline=None)
@given(workloads())
def test_any_workload_keeps_memory_whole_and_ends(load: dict[str, Any]) -> None:
    """Requests of any shape arrive, are cancelled at any time, and the rest completes with sound KV contents."""
    sim = Simulation(load["n_blocks"], groups=load["groups"], prefill_chunk=load["prefill_chunk"])
    rows: list[Row] = []
    for event in load["events"]:
        if isinstance(event, tuple):
            n_prompt, n_output, n, priority = event
            client = "abc"[n_prompt % 3]
            rows += sim.submit(range(n_prompt), n_output, n=n, key=len(rows), priority=priority, client=client)
        elif event == "step":
            sim.step()
        elif rows:
            sim.cancel(rows[event % len(rows)])
    wanted = set(sim.lengths)
    sim.run()
    assert wanted <= set(sim.done)
    counts = sim.scheduler.memory.counts()
    assert all(c.free == load["n_blocks"] for c in counts)


def test_a_named_slot_is_waited_for_and_holds_nobody_else() -> None:
    sim = Simulation(64, n_rows=2)
    (first,) = sim.submit(range(20), 10)
    first.wanted_slot = 1
    sim.step()
    assert first.slot == 1
    (second,) = sim.submit(range(20), 2)
    second.wanted_slot = 1
    (third,) = sim.submit(range(20), 2)
    sim.step()
    assert second.slot == -1 and third.slot == 0
    while first in sim.lengths:
        sim.step()
    sim.step()
    assert second.slot == 1 or second in sim.done
    sim.run()


def test_any_slot_is_taken_by_whoever_named_none() -> None:
    sim = Simulation(64, n_rows=3)
    rows = [sim.submit(range(20), 8)[0] for _ in range(3)]
    sim.step()
    assert sorted(row.slot for row in rows) == [0, 1, 2]
    sim.run()
