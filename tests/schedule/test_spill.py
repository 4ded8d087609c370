"""Evicted blocks come back from a tier without being computed again, and only ever under their own tokens.

The simulation checks every position that a query sees against a digest of the row's history, so a block that came
back wrong, or half, or for somebody else, fails there.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.rows import Row
from imp_server.schedule.spill import Spill
from imp_server.schedule.tiers.host import HostTier
from imp_server.schedule.tiers.record import BlockRecord, is_lasting, reuse_group_of
from imp_server.schedule.tiers.slab import HEAD_BYTES, SlabFile
from imp_server.schedule.tiers.tier import Tier
from imp_server.schedule.tree import TreeNode

from tests.schedule.simulated import BLOCK_BYTES, Simulation
from tests.schedule.test_cache import WINDOWED, prompt, run_one
from tests.schedule.test_tiers import file_tier

FULL = (CacheGroup("full", (0,)),)


def host(n_blocks: int, n_groups: int = 1) -> HostTier:
    return HostTier(n_blocks * (BLOCK_BYTES * n_groups + 256))


def index_of(sim: Simulation) -> PrefixCache:
    index = sim.scheduler.index
    assert isinstance(index, PrefixCache)
    return index


def n_computed(sim: Simulation) -> int:
    return sum(chunk.n_tokens for plan in sim.plans for chunk in plan.chunks)


class Lossy(HostTier):
    """Loses, refuses or damages entries by chance, as a bad disk would under FileTier's sums."""

    def __init__(self, n_blocks: int, seed: int, n_groups: int) -> None:
        super().__init__(n_blocks * (BLOCK_BYTES * n_groups + 256))
        self.random = random.Random(seed)

    def put(self, record: BlockRecord) -> bool:
        return self.random.random() < 0.8 and super().put(record)

    def get(self, digest: bytes, parent: bytes, key: bytes) -> BlockRecord | None:
        if self.random.random() < 0.2:
            self.drop(digest)
        return super().get(digest, parent, key)


@pytest.mark.parametrize("groups", [FULL, WINDOWED])
def test_an_evicted_prefix_comes_back_without_being_computed(groups: tuple[CacheGroup, ...]) -> None:
    sim = Simulation(12, context=96, groups=groups, tier=host(64, len(groups)))
    first = prompt((1, 70))
    assert run_one(sim, first, 4) == 0
    for seed in range(2, 6):
        run_one(sim, prompt((seed, 80)))
    index = index_of(sim)
    assert index.n_evicted > 10
    before = n_computed(sim)
    assert run_one(sim, first, 4) == 69
    assert n_computed(sim) - before == 4
    assert index.counters()["prefix_cache_restored_tokens_total"] >= 60


def test_without_room_below_it_is_computed_again() -> None:
    sim = Simulation(12, context=96, tier=host(0))
    run_one(sim, prompt((1, 70)))
    for seed in range(2, 6):
        run_one(sim, prompt((seed, 80)))
    assert run_one(sim, prompt((1, 70))) == 0
    assert index_of(sim).counters()["kv_host_spill_refused_total"] > 0


def test_a_restored_prefix_can_be_forked_and_extended() -> None:
    sim = Simulation(24, context=160, tier=host(64))
    shared = prompt((1, 70))
    run_one(sim, shared)
    for seed in range(2, 8):
        run_one(sim, prompt((seed, 120)))
    rows = [*sim.submit(shared, 9, n=3), *sim.submit(shared + prompt((9, 5)), 20)]
    sim.run()
    assert rows[0].n_cached == 69 and rows[3].n_cached >= 69


def test_the_tier_gives_up_the_least_recently_used() -> None:
    sim = Simulation(12, context=96, tier=host(10))
    a, b = prompt((1, 64)), prompt((2, 64))
    run_one(sim, a)
    run_one(sim, b)
    for seed in range(3, 10):
        run_one(sim, prompt((seed, 64)))
        assert run_one(sim, a) == 63, "used again and again, it stays"
    assert run_one(sim, b) < 63
    assert index_of(sim).counters()["kv_host_spill_evictions_total"] > 0


def test_what_room_is_made_for_is_kept_there(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    real = Spill.store

    def store(spill: Spill, node: TreeNode) -> bool:
        kept.append(real(spill, node))
        return kept[-1]

    monkeypatch.setattr(Spill, "store", store)
    sim = Simulation(12, context=96, tier=host(4))
    for seed in range(1, 8):
        run_one(sim, prompt((seed, 64)))
    assert index_of(sim).counters()["kv_host_spill_evictions_total"] > 0
    assert len(kept) > 8 and all(kept)


def test_an_unreadable_block_cuts_the_prefix_and_is_forgotten(tmp_path: Path) -> None:
    tier = file_tier(tmp_path / "a", 64, payload=BLOCK_BYTES)
    sim = Simulation(12, context=96, tier=tier)
    wanted = prompt((1, 80))
    run_one(sim, wanted)
    for seed in range(2, 6):
        run_one(sim, prompt((seed, 90)))
    node = index_of(sim).tree.match(b"".join(t.to_bytes(4, "big") for t in wanted), 0, 80).nodes[2]
    assert node.is_stored and not node.is_resident
    slot = tier._slots[node.digest]
    with open(tmp_path / "a", "r+b") as file:
        file.seek(HEAD_BYTES + slot * SlabFile(-1, b"", BLOCK_BYTES).slot_bytes + 300)
        file.write(b"\xff\xff\xff")
    assert run_one(sim, wanted) == 32
    assert tier.counts.faults == 1
    assert index_of(sim).counters()["prefix_cache_restores_cut_short_total"] == 1
    assert run_one(sim, wanted) == 79, "it was computed and kept again"


def test_a_long_prefix_comes_back_in_pieces_while_others_go_on() -> None:
    sim = Simulation(64, context=1024, tier=host(256), step_ms=1e-6, step_alone_ms=1e-6)
    long = prompt((1, 640))
    run_one(sim, long)
    run_one(sim, prompt((2, 1000)))
    (other,) = sim.submit([1], 60)
    sim.step()
    (row,) = sim.submit(long, 2)
    n_steps = 0
    sim.step()
    while row.is_restoring:
        n_steps += 1
        assert any(chunk.row is other for chunk in sim.step().chunks), "the decoder must not wait"
    assert n_steps >= 30 and row.n_cached == 639
    sim.run()


@pytest.mark.parametrize("n", [1, 3])
def test_a_cancelled_restore_leaves_nothing_behind(n: int) -> None:
    sim = Simulation(48, context=700, tier=host(256), step_ms=1e-6, step_alone_ms=1e-6)
    long = prompt((1, 600))
    run_one(sim, long)
    run_one(sim, prompt((2, 650)))
    rows = sim.submit(long, 3, n=n)
    sim.step()
    sim.step()
    assert rows[0].is_restoring
    sim.cancel(rows[0])
    sim.run()
    assert set(rows[1:]) <= set(sim.done)
    assert all(count.held == 0 for count in sim.scheduler.memory.counts())


def test_a_preempted_row_resumes_where_it_was() -> None:
    """Its blocks are published, go down under pressure, and come back: nothing is computed twice."""
    outputs = []
    for tier in (None, host(64)):
        sim = Simulation(9, tier=tier) if tier is not None else Simulation(9, make_index=PrefixCache)
        for start in range(3):
            sim.submit(range(start, start + 30), 50, key=start)
        sim.run()
        assert sim.scheduler.n_preemptions > 0
        assert sim.done[0].key == 0, "the oldest never yields"
        outputs.append((sorted((r.key, tuple(r.sampler.output.tolist())) for r in sim.done), n_computed(sim)))
    assert outputs[0][0] == outputs[1][0]
    n_wanted = 3 * 79
    assert outputs[0][1] > n_wanted + 20, "without a tier much is computed again"
    assert outputs[1][1] <= n_wanted + 20, "with one at most the last, shared block is"
    assert sim.scheduler.n_resumed_tokens > 40 > sim.scheduler.n_recomputed_tokens


@pytest.mark.parametrize("groups", [FULL, WINDOWED])
def test_a_row_keeps_its_own_blocks_when_its_twins_have_left(groups: tuple[CacheGroup, ...]) -> None:
    """Two rows compute the same tokens; the tree has the first one's blocks, which are evicted under the second."""
    sim = Simulation(40, context=160, groups=groups, tier=host(300, len(groups)))
    ids = prompt((1, 40))
    (first,), (second,) = sim.submit(ids, 30), sim.submit(ids, 60)
    while first not in sim.done:
        sim.step()
    index_of(sim).reclaim(0, 1000)
    sim.scheduler.check()
    sim.run()
    history = second.sampler.history
    hit = index_of(sim).match(history[:-1], 0)
    assert hit.n_tokens == len(history) - 1 and not hit.is_below


def test_a_copy_that_never_ran_is_nobodys_contents() -> None:
    """A row may be preempted after its copy on write was planned: its last block holds nothing of its own yet."""
    sim = Simulation(32, tier=host(64))
    ids = prompt((1, 40))
    rows = sim.submit(ids, 10, n=2)
    while rows[0].n_computed < 39:
        sim.step()
    plan = sim.scheduler.plan()
    (target,) = [copy.target for copy in plan.copies]
    (copier,) = [row for row in rows if row.tables is not None and target in row.tables.held(0)]
    sim.cancel(copier)
    sim.cancel(next(row for row in rows if row is not copier))
    index_of(sim).reclaim(0, 1000)
    assert run_one(sim, ids) == 39


def test_pins_hold_what_memory_has(tmp_path: Path) -> None:
    sim = Simulation(16, context=120, tier=host(64))
    import numpy as np

    run_one(sim, prompt((1, 60)))
    for seed in range(2, 6):
        run_one(sim, prompt((seed, 110)))
    index = index_of(sim)
    index.pin(np.array(prompt((1, 60)), dtype=np.int32), 0)
    assert index.n_pinned_blocks == 0, "nothing of it is in memory"
    run_one(sim, prompt((1, 60)))
    index.pin(np.array(prompt((1, 60)), dtype=np.int32), 0)
    assert index.n_pinned_blocks == 3
    sim.scheduler.check()


# --- over restarts ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["closed", "idle then killed"])
def test_the_next_process_starts_warm(tmp_path: Path, ending: str) -> None:
    wanted = prompt((1, 75))
    first = Simulation(64, tier=file_tier(tmp_path / "a", 64, payload=BLOCK_BYTES))
    (row,) = first.submit(wanted, 30)
    first.run()
    if ending == "closed":
        first.scheduler.index.close()
    else:
        while first.scheduler.index.tidy():
            pass
        index_of(first).check()
    second = Simulation(64, tier=file_tier(tmp_path / "a", 64, payload=BLOCK_BYTES))
    second.scheduler.check()
    assert run_one(second, wanted) == 74
    assert run_one(second, row.sampler.history.tolist()) == len(row.sampler.history) - 1


def test_entries_whose_prefix_is_lost_are_dropped(tmp_path: Path) -> None:
    first = Simulation(64, tier=file_tier(tmp_path / "a", 64, payload=BLOCK_BYTES))
    run_one(first, prompt((1, 75)))
    first.scheduler.index.close()
    with open(tmp_path / "a", "r+b") as file:
        file.seek(HEAD_BYTES + SlabFile(-1, b"", BLOCK_BYTES).slot_bytes)  # the second block's header
        file.write(bytes(16))
    second = Simulation(64, tier=file_tier(tmp_path / "a", 64, payload=BLOCK_BYTES))
    assert index_of(second).tree.n_nodes == 1
    assert run_one(second, prompt((1, 75))) == 16


def run_under(sim: Simulation, reuse_group: int) -> int:
    (row,) = sim.submit(prompt((1, 75)), 1)
    row.reuse_group = reuse_group
    sim.run()
    return row.n_cached


def test_blocks_under_an_adapter_are_found_by_its_contents_alone(tmp_path: Path) -> None:
    """After a restart, too; those of one whose contents aren't known end with the process."""
    mine, other = reuse_group_of(bytes([1] * 31)), reuse_group_of(bytes([2] * 31))
    assert is_lasting(mine) and is_lasting(0) and not is_lasting(1)
    first = Simulation(64, tier=file_tier(tmp_path / "a", 64, payload=BLOCK_BYTES))
    assert [run_under(first, group) for group in (mine, 1)] == [0, 0]
    first.scheduler.index.close()
    again = Simulation(64, tier=file_tier(tmp_path / "a", 64, payload=BLOCK_BYTES))
    assert index_of(again).tree.n_nodes == 5
    assert [run_under(again, group) for group in (0, 1, other, mine)] == [0, 0, 0, 74]
    again.scheduler.check()


# --- any workload -------------------------------------------------------------------------------


def run_random(sim: Simulation, rng: random.Random, n_requests: int) -> None:
    """Requests with common beginnings arrive, are cancelled, and the rest ends."""
    rows: list[Row] = []
    while n_requests:
        if rng.random() < 0.5 and sim.scheduler.n_waiting < 12:
            parts = [(rng.randint(0, 3), rng.choice([7, 16, 33, 48])) for _ in range(rng.randint(1, 3))]
            rows += sim.submit(
                prompt(*parts)[:120], rng.randint(1, 30), n=rng.choice([1, 1, 1, 2]), client=rng.choice("ab")
            )
            n_requests -= 1
        if rng.random() < 0.1 and rows:
            sim.cancel(rng.choice(rows))
        if rng.random() < 0.2:
            sim.scheduler.index.tidy()
        if sim.scheduler.has_work:
            sim.step()
    sim.run()
    sim.scheduler.check()
    assert all(count.held == 0 for count in sim.scheduler.memory.counts())


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=st.sampled_from([(24, FULL), (40, WINDOWED)]),
    n_below=st.sampled_from([1, 10, 300]),
    lossy=st.booleans(),
    in_pieces=st.booleans(),
)
def test_random_requests_meet_only_their_own_tokens(
    seed: int, shape: tuple[int, tuple[CacheGroup, ...]], n_below: int, lossy: bool, in_pieces: bool
) -> None:
    n_blocks, groups = shape
    tier: Tier = Lossy(n_below, seed, len(groups)) if lossy else host(n_below, len(groups))
    step_ms, alone_ms = (1e-6, 1e-6) if in_pieces else (8.0, 32.0)
    sim = Simulation(n_blocks, n_rows=4, context=160, groups=groups, tier=tier, step_ms=step_ms, step_alone_ms=alone_ms)
    run_random(sim, random.Random(seed), 40)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("groups", [FULL, WINDOWED])
@pytest.mark.parametrize("make", [partial(Lossy, 60, 1), partial(Lossy, 12, 2)])
def test_thousands_of_requests(groups: tuple[CacheGroup, ...], make: partial[Lossy]) -> None:
    sim = Simulation(40, n_rows=6, context=160, groups=groups, tier=make(n_groups=len(groups)))
    run_random(sim, random.Random(7), 2500)
