"""Layers that can't be rolled back resume at snapshots of their state; a toy state is checked before every chunk.

All slots begin dirty, and are handed on dirty: a restore or a start that left anything behind fails in the simulation.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import MessageSpan
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.rows import Row
from imp_server.schedule.snapshots import SnapshotLimits, Snapshots, snapshot_points
from imp_server.schedule.tiers.slab import HEAD_BYTES, SLOT_HEADER_BYTES

from tests.schedule.simulated import BLOCK_BYTES, Simulation
from tests.schedule.test_cache import WINDOWED, prompt
from tests.schedule.test_spill import Lossy, host, n_computed
from tests.schedule.test_tiers import file_tier

STATE = CacheGroup("state", (9,))
HYBRID = (CacheGroup("full", (0,)), STATE)
MIXED = (*WINDOWED, STATE)
PURE = (STATE,)
TWO_STATES = (STATE, CacheGroup("full", (0,)), CacheGroup("state", (8,)))
ALL = [HYBRID, MIXED, PURE, TWO_STATES]
LIMITS = SnapshotLimits(min_step=32)


def simulation(groups: tuple[CacheGroup, ...] = HYBRID, n_blocks: int = 64, **more: object) -> Simulation:
    more = {"context": 400, "snapshots": LIMITS} | more
    return Simulation(n_blocks, groups=groups, **more)  # type: ignore[arg-type]


def submit(sim: Simulation, ids: list[int], points: tuple[int, ...], n_output: int = 1, n: int = 1) -> list[Row]:
    rows = sim.submit(ids, n_output, n=n)
    for row in rows:
        row.snapshot_points = points
    return rows


def run(sim: Simulation, ids: list[int], points: tuple[int, ...] = (), n_output: int = 1) -> int:
    """Cached tokens of the request."""
    (row,) = submit(sim, ids, points, n_output)
    sim.run()
    return row.n_cached


def counters(sim: Simulation) -> dict[str, float]:
    return sim.scheduler.index.counters()


def snapshots_of(sim: Simulation) -> Snapshots:
    index = sim.scheduler.index
    assert isinstance(index, PrefixCache) and index._snapshots is not None
    return index._snapshots


def user(*starts: int) -> list[MessageSpan]:
    return [MessageSpan("user", start, start + 5) for start in starts]


@pytest.mark.parametrize(
    ("spans", "points"),
    [
        ([], ()),
        ([MessageSpan("system", 0, 40), MessageSpan("assistant", 50, 90)], ()),
        (user(0), ()),
        (user(40), (40,)),
        (user(40, 60), (40, 60)),
        (user(40, 60, 80, 200), (40, 200)),
        (user(40, 160, 300), (40, 160, 300)),
        (user(40, 139, 150, 151), (40, 150, 151)),
        (user(40, 2000), (40,)),
    ],
)
def test_where_states_are_kept(spans: list[MessageSpan], points: tuple[int, ...]) -> None:
    """The last user message always, others by their distance, nothing in between, nothing at 0 or the end."""
    assert snapshot_points(spans, 1000, 110 if len(spans) != 2 else 0) == points
    assert all(0 < point < 1000 for point in snapshot_points(spans, 1000, 1))


@pytest.mark.parametrize("groups", ALL)
def test_another_last_message_resumes_before_it(groups: tuple[CacheGroup, ...]) -> None:
    sim = simulation(groups, prefill_chunk=24)
    shared = prompt((1, 77))
    assert run(sim, shared + prompt((2, 30)), (77,)) == 0
    ends = [chunk.start + chunk.n_tokens for plan in sim.plans for chunk in plan.chunks]
    assert 77 in ends, "the chunk ends at the snapshot"
    assert run(sim, shared + prompt((3, 30)), (77,)) == 77
    assert run(sim, shared + prompt((2, 30)), (77,)) == 77
    assert counters(sim)["state_snapshots_restored_total"] == 2


@pytest.mark.parametrize("groups", ALL)
def test_the_next_turn_resumes_after_the_answer(groups: tuple[CacheGroup, ...]) -> None:
    sim = simulation(groups)
    (row,) = submit(sim, prompt((1, 40)), (20,), 30)
    sim.run()
    history = row.sampler.history.tolist()
    assert run(sim, history + prompt((2, 20)), (20, len(history))) == len(history) - 1


@pytest.mark.parametrize("groups", ALL)
def test_without_a_snapshot_everything_is_computed(groups: tuple[CacheGroup, ...]) -> None:
    """None is periodic; a prefix that can't be resumed is counted and no error."""
    sim = simulation(groups)
    run(sim, prompt((1, 200)))
    assert counters(sim)["state_snapshots"] == 1, "the state at the end"
    assert run(sim, prompt((1, 100), (2, 20))) == 0
    assert counters(sim)["state_snapshots_unusable_total"] == (0 if groups == PURE else 1)


@pytest.mark.parametrize("groups", ALL)
def test_no_snapshots_no_reuse(groups: tuple[CacheGroup, ...]) -> None:
    sim = simulation(groups, snapshots=SnapshotLimits(most=0))
    assert not sim.scheduler.index.keeps
    for _ in range(2):
        assert run(sim, prompt((1, 60)), (20,)) == 0


def test_bytes_are_capped() -> None:
    sim = simulation(snapshots=SnapshotLimits(cap_bytes=3 * BLOCK_BYTES + 5))
    for seed in range(1, 7):
        run(sim, prompt((seed, 50)), (20,))
        assert counters(sim)["state_snapshot_bytes"] <= 3 * BLOCK_BYTES
    assert counters(sim)["state_snapshots_evicted_total"] == 9
    assert run(sim, prompt((6, 50)), (20,)) == 20
    tiny = simulation(snapshots=SnapshotLimits(cap_bytes=BLOCK_BYTES - 1))
    run(tiny, prompt((1, 50)), (20,))
    assert counters(tiny)["state_snapshots_taken_total"] == 0, "one above the cap isn't attempted"
    assert run(tiny, prompt((1, 50))) == 0


def test_a_full_conversation_gives_up_what_is_close_and_keeps_the_newest() -> None:
    sim = simulation(snapshots=SnapshotLimits(most=4, min_step=40), n_blocks=128, context=600)
    ids, points = prompt((1, 300)), (10, 60, 70, 120)
    run(sim, ids[:121], points)
    lengths = [s.n_tokens for s in snapshots_of(sim).along(b"".join(t.to_bytes(4, "big") for t in ids), 0)]
    assert lengths == [10, 60, 120, 121], "70 is close behind 60; 120 and 121 are the newest"
    run(sim, ids[:200], (199,))
    lengths = [s.n_tokens for s in snapshots_of(sim).along(b"".join(t.to_bytes(4, "big") for t in ids), 0)]
    assert len(lengths) == 4 and lengths[-2:] == [199, 200]


def test_short_prompts_evict_nothing() -> None:
    sim = simulation(n_blocks=256)
    for seed in range(1, 30):
        run(sim, prompt((seed, 20)), (8,))
    assert counters(sim)["state_snapshots_evicted_total"] == 0
    assert all(run(sim, prompt((seed, 9))) == 8 for seed in range(1, 30))


@pytest.mark.parametrize("groups", ALL)
def test_a_state_is_not_rolled_back_but_cleared(groups: tuple[CacheGroup, ...]) -> None:
    sim = simulation(groups)
    (row,) = submit(sim, prompt((1, 60)), (45,), 30)
    for _ in range(10):
        sim.step()
    assert row.n_computed > 62
    sim.scheduler.rewind(row, row.n_computed)
    assert sim.scheduler.n_refused_rollbacks == 0, "there is nothing to take back"
    sim.scheduler.rewind(row, row.n_computed - 1)
    assert sim.scheduler.n_refused_rollbacks == 1
    sim.step()
    assert row.n_computed >= 45, "it went on from its snapshot"
    (other,) = submit(sim, prompt((2, 60)), (), 30)
    for _ in range(6):
        sim.step()
    sim.scheduler.rewind(other, other.n_computed - 1)
    sim.step()
    sim.run()
    plain = Simulation(64, context=400)
    plain.submit(prompt((1, 60)), 30)
    plain.submit(prompt((2, 60)), 30)
    plain.run()
    outputs = [sorted(tuple(r.sampler.output.tolist()) for r in each.done) for each in (sim, plain)]
    assert outputs[0] == outputs[1]


def test_where_nothing_is_cached_a_refused_rollback_starts_from_zero() -> None:
    sim = Simulation(64, groups=HYBRID)
    (row,) = sim.submit(prompt((1, 20)), 20)
    for _ in range(6):
        sim.step()
    sim.scheduler.rewind(row, row.n_computed - 1)
    assert row.n_computed == 0
    sim.run()


@pytest.mark.parametrize("groups", ALL)
def test_a_state_that_cannot_be_had_means_zero(groups: tuple[CacheGroup, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(groups)
    run(sim, prompt((1, 60)), (45,))
    monkeypatch.setattr(Snapshots, "restore", lambda *_: False)
    assert run(sim, prompt((1, 50), (2, 10)), (45,)) == 0
    assert counters(sim)["state_snapshots_unusable_total"] == 1


@pytest.mark.parametrize("groups", ALL)
def test_a_failed_step_leaves_no_state_behind(groups: tuple[CacheGroup, ...]) -> None:
    """The backend may have advanced some states before it raised."""
    sim = simulation(groups)
    (row,) = submit(sim, prompt((1, 60)), (45,), 30)
    for _ in range(5):
        sim.step()
    sim.scheduler.admit()
    plan = sim.scheduler.plan()
    for kv in sim.kv:
        kv[:] = -1  # whatever it did
    sim.scheduler.failed(plan)
    n_before = counters(sim)["state_snapshots"]
    sim.cancel(row)
    assert counters(sim)["state_snapshots"] == n_before


@pytest.mark.parametrize("groups", [HYBRID, MIXED, TWO_STATES])
def test_a_preempted_row_resumes_with_its_state(groups: tuple[CacheGroup, ...]) -> None:
    sim = simulation(groups, n_blocks=9, tier=host(64, len(groups)))
    for start in range(3):
        sim.submit(range(start, start + 30), 50, key=start)
    sim.run()
    assert sim.scheduler.n_preemptions > 0
    assert n_computed(sim) == 3 * 79


@pytest.mark.parametrize("groups", ALL)
@pytest.mark.parametrize("n_prompt", [1, 16, 33])
def test_choices_fork_the_state(groups: tuple[CacheGroup, ...], n_prompt: int) -> None:
    sim = simulation(groups)
    submit(sim, prompt((1, n_prompt)), (5,) if n_prompt > 5 else (), 20, n=4)
    sim.run()
    assert len(sim.done) == 4


def test_a_row_waits_only_for_states_that_will_be_kept() -> None:
    sim = simulation(prefill_chunk=16)
    shared = prompt((1, 96))
    first = submit(sim, shared + prompt((2, 40)), (50,), 4)[0]
    sim.step()
    second = submit(sim, shared + prompt((3, 8)), (), 4)[0]
    sim.run()
    assert (first.n_cached, second.n_cached) == (0, 50)


def test_windows_need_no_snapshots() -> None:
    """What a window still sees is there as blocks: nothing is copied, and a repeat computes one token again."""
    sim = Simulation(64, context=400, groups=WINDOWED, snapshots=LIMITS)
    ids = prompt((1, 90))
    assert run(sim, ids, (40,)) == 0
    assert run(sim, ids, (40,)) == 89
    assert run(sim, ids[:60] + prompt((2, 9)), (40,)) == 60
    assert not any(name.startswith("state_") for name in counters(sim))


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    groups=st.sampled_from(ALL),
    n_below=st.sampled_from([0, 10, 300]),
    lossy=st.booleans(),
    limits=st.sampled_from([LIMITS, SnapshotLimits(3, 7 * BLOCK_BYTES, 16), SnapshotLimits(cap_bytes=0)]),
    in_pieces=st.booleans(),
)
def test_random_requests_meet_only_their_own_state(
    seed: int, groups: tuple[CacheGroup, ...], n_below: int, lossy: bool, limits: SnapshotLimits, in_pieces: bool
) -> None:
    rng = random.Random(seed)
    tier = Lossy(n_below, seed, len(groups)) if lossy else host(n_below, len(groups))
    more = {"step_ms": 1e-6, "step_alone_ms": 1e-6} if in_pieces else {}
    sim = simulation(groups, 32, context=160, tier=tier if n_below else None, snapshots=limits, **more)
    rows: list[Row] = []
    for _ in range(50):
        if rng.random() < 0.6:
            parts = [(rng.randint(0, 2), rng.choice([7, 16, 33, 48])) for _ in range(rng.randint(1, 3))]
            ids = prompt(*parts)[:120]
            points = tuple(sorted({p for p in (7, 16, 33, 50, rng.randint(1, 119)) if p < len(ids)}))
            rows += submit(sim, ids, points, rng.randint(1, 30), n=rng.choice([1, 1, 1, 2]))
        if rng.random() < 0.1 and rows:
            sim.cancel(rng.choice(rows))
        running = [row for row in sim.scheduler.rows if row.n_computed > 0 and row.leader is None]
        if rng.random() < 0.1 and running:
            row = rng.choice(running)
            sim.scheduler.rewind(row, row.n_computed - 1)
        if sim.scheduler.has_work:
            sim.step()
    sim.run()
    sim.scheduler.check()
    assert all(count.held == 0 for count in sim.scheduler.memory.counts())


# --- over a restart -----------------------------------------------------------------------------


def kept(path: Path, groups: tuple[CacheGroup, ...], n_states: int = 64) -> Simulation:
    """A process that keeps its blocks and states in this folder."""
    blocks = file_tier(path / "kv", 256, payload=BLOCK_BYTES * len(groups))
    states = file_tier(path / "states", n_states, payload=BLOCK_BYTES * len(groups) + 4 * 400)
    return simulation(groups, tier=blocks, state_tier=states)


@pytest.mark.parametrize("groups", ALL)
def test_the_next_process_resumes_at_the_same_places(tmp_path: Path, groups: tuple[CacheGroup, ...]) -> None:
    first, again, other = (prompt((1, 100), (tail, 20)) for tail in (2, 2, 3))
    before = kept(tmp_path, groups)
    assert run(before, first, (100,), 5) == 0
    before.scheduler.index.close()
    after = kept(tmp_path, groups)
    assert counters(after)["state_snapshots"] == counters(after)["state_snapshots_kept"] == 2
    assert run(after, again, (100,), 5) == 100, "the state behind the answer is beyond this prompt"
    assert run(after, other, (100,), 5) == 100
    after.scheduler.check()


def test_a_state_that_was_damaged_or_belongs_to_other_tokens_is_not_used(tmp_path: Path) -> None:
    ids = prompt((1, 100), (2, 20))
    before = kept(tmp_path, PURE)
    run(before, ids, (100,), 5)
    before.scheduler.index.close()
    with open(tmp_path / "states", "r+b") as file:  # a token in the payload of the first
        file.seek(HEAD_BYTES + SLOT_HEADER_BYTES + 8)
        file.write(b"\x01")
    after = kept(tmp_path, PURE)
    assert counters(after)["state_snapshots"] == counters(after)["state_snapshots_kept"] == 1
    assert run(after, ids, (100,), 5) == 0


def test_the_file_keeps_the_newest_and_what_memory_gave_up_leaves_it(tmp_path: Path) -> None:
    before = kept(tmp_path, PURE, n_states=6)
    for seed in range(6):
        run(before, prompt((seed, 60)), (50,), 2)  # a state there, and one behind the answer
        while before.scheduler.index.tidy():
            pass
    assert counters(before)["state_snapshots"] == 12 and counters(before)["state_snapshots_kept"] == 6
    before.scheduler.index.close()
    after = kept(tmp_path, PURE, n_states=6)
    assert [run(after, prompt((seed, 60), (9, 5))) == 50 for seed in range(6)] == [False] * 3 + [True] * 3
    snapshots_of(after).clear()
    assert counters(after)["state_snapshots_kept"] == 0
