"""The prefix cache on pretended memory: what it gives back is what the tokens wrote, at whatever point it ends."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.tree import PrefixTree, key_of

from tests.schedule.simulated import Simulation

WINDOWED = (CacheGroup("full", (0,)), CacheGroup("window", (1,), window=20))


def cached(n_blocks: int = 64, **more: object) -> Simulation:
    return Simulation(n_blocks, make_index=PrefixCache, **more)  # type: ignore[arg-type]


def prompt(*parts: tuple[int, int]) -> list[int]:
    """(seed, length) parts, one after the other."""
    return [t for seed, n in parts for t in np.random.default_rng(seed).integers(0, 1000, n).tolist()]


def run_one(sim: Simulation, ids: list[int], n_output: int = 1) -> int:
    """Cached tokens of the request."""
    (row,) = sim.submit(ids, n_output)
    sim.run()
    return row.n_cached


def test_an_identical_prompt_recomputes_one_token() -> None:
    sim = cached()
    ids = prompt((1, 37))
    assert run_one(sim, ids, 5) == 0
    assert run_one(sim, ids, 5) == 36
    assert run_one(sim, ids[:20], 2) == 19


def test_a_match_ends_at_any_token() -> None:
    sim = cached(512)
    run_one(sim, prompt((1, 40)))
    for n_common in range(40):
        assert run_one(sim, prompt((1, 40))[:n_common] + prompt((n_common + 50, 30))) == n_common


def test_the_next_turn_reuses_the_answer() -> None:
    sim = cached()
    (row,) = sim.submit(prompt((1, 21)), 30)
    sim.run()
    history = row.sampler.history.tolist()
    assert run_one(sim, history + prompt((2, 5))) == len(history) - 1  # the last id was sampled, never run


def test_adapters_share_nothing() -> None:
    sim = cached()
    (row,) = sim.submit(prompt((1, 40)), 1)
    sim.run()
    (row,) = sim.submit(prompt((1, 40)), 1)
    row.reuse_group = 1
    sim.run()
    assert row.n_cached == 0


def test_concurrent_requests_compute_a_shared_prefix_once() -> None:
    sim = cached(prefill_chunk=16, context=256)
    shared = prompt((1, 96))
    rows = [sim.submit(shared + prompt((i, 8)), 4)[0] for i in range(2, 5)]
    sim.run()
    assert [row.n_cached for row in rows] == [0, 96, 96]
    computed = sum(c.n_tokens for plan in sim.plans for c in plan.chunks)
    assert computed <= 96 + 3 * (8 + 4)


def test_the_first_waiter_takes_over_when_the_owner_is_cancelled() -> None:
    sim = cached(prefill_chunk=16, context=256)
    shared = prompt((1, 96))
    owner, second, third = (sim.submit(shared + prompt((i, 8)), 4)[0] for i in range(2, 5))
    sim.step()
    sim.step()
    assert second.tables is None
    sim.cancel(owner)
    sim.run()
    assert second.n_cached == 32
    assert third.n_cached == 96


@pytest.mark.parametrize("slot", [0, 1])
def test_a_named_slot_finds_what_any_slot_computed(slot: int) -> None:
    """Also one that has served another prompt since, or none at all."""
    sim = cached(n_rows=2)
    found = []
    for ids, wanted in ((prompt((1, 60)), 0), (prompt((2, 60)), 0), (prompt((1, 60)), slot)):
        (row,) = sim.submit(ids, 2)
        row.wanted_slot = wanted
        sim.run()
        found.append(row.n_cached)
    assert found == [0, 0, 59]


def test_a_prefix_is_found_while_another_request_holds_the_slot_that_computed_it() -> None:
    sim = cached(n_rows=2)
    shared = prompt((1, 60))
    run_one(sim, shared)
    (busy,) = sim.submit(prompt((2, 10)), 60)
    busy.wanted_slot = 0
    sim.step()
    (row,) = sim.submit(shared + prompt((3, 5)), 2)
    sim.step()
    assert busy.slot == 0 and row.slot == 1 and row.n_cached == 60
    sim.run()


def test_least_recently_used_goes_first() -> None:
    sim = cached(12, context=96)
    a, b, c = prompt((1, 64)), prompt((2, 64)), prompt((3, 64))
    run_one(sim, a)
    run_one(sim, b)
    assert run_one(sim, a) == 63
    run_one(sim, c)
    assert run_one(sim, a) == 63
    assert run_one(sim, b) < 63


def test_pins_survive_pressure_within_their_budget() -> None:
    sim = Simulation(16, context=96, make_index=partial(PrefixCache, pin_budget=0.25))
    index = sim.scheduler.index
    assert isinstance(index, PrefixCache)
    a = prompt((1, 64))
    run_one(sim, a)
    index.pin(np.array(a, dtype=np.int32), 0)
    assert index.n_pinned_blocks == 4
    for seed in range(2, 12):
        run_one(sim, prompt((seed, 80)))
    assert run_one(sim, a) == 63
    b = prompt((20, 40))
    run_one(sim, b)
    index.pin(np.array(b, dtype=np.int32), 0)
    assert index.n_pinned_blocks == 2, "the older pin had to go"


def test_sessions_replace_their_pin_and_expire() -> None:
    now = [0.0]
    sim = Simulation(32, make_index=partial(PrefixCache, session_ttl_s=10.0, clock=lambda: now[0]))
    index = sim.scheduler.index
    assert isinstance(index, PrefixCache)
    run_one(sim, prompt((1, 64)))
    index.pin(np.array(prompt((1, 32)), dtype=np.int32), 0, "s")
    index.pin(np.array(prompt((1, 64)), dtype=np.int32), 0, "s")
    assert index.n_pinned_blocks in (2, 4)
    now[0] = 11.0
    index.expire()
    assert index.n_pinned_blocks == 0
    assert not index.release_session("s")


def test_pins_yield_before_a_request_must() -> None:
    sim = Simulation(8, context=128, make_index=partial(PrefixCache, pin_budget=1.0))
    index = sim.scheduler.index
    assert isinstance(index, PrefixCache)
    run_one(sim, prompt((1, 100)))
    index.pin(np.array(prompt((1, 100)), dtype=np.int32), 0)
    run_one(sim, prompt((2, 120)), 4)
    assert index.n_pinned_blocks < 6


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(24, ()), (40, WINDOWED)]))
def test_random_requests_never_meet_others_tokens(seed: int, shape: tuple[int, tuple[CacheGroup, ...]]) -> None:
    """Simulation checks every position a query sees against a digest of the row's own history."""
    rng = random.Random(seed)
    n_blocks, groups = shape
    sim = cached(n_blocks, n_rows=4, context=160, **({"groups": groups} if groups else {}))
    rows = []
    for _ in range(60):
        if rng.random() < 0.6:
            parts = [(rng.randint(0, 2), rng.choice([7, 16, 33, 48])) for _ in range(rng.randint(1, 3))]
            rows += sim.submit(
                prompt(*parts)[:120], rng.randint(1, 30), n=rng.choice([1, 1, 1, 2]), client=rng.choice("ab")
            )
        if rng.random() < 0.1 and rows:
            sim.cancel(rng.choice(rows))
        if sim.scheduler.has_work:
            sim.step()
    sim.run()
    sim.scheduler.check()


class TreeMachine(RuleBasedStateMachine):
    """The tree against a naive model: a set of known token tuples, searched one by one."""

    @initialize()
    def begin(self) -> None:
        self.tree = PrefixTree()
        self.known: list[tuple[int, ...]] = []
        self.n_blocks = 0

    @rule(ids=st.lists(st.integers(0, 2), min_size=1, max_size=60))
    def insert(self, ids: list[int]) -> None:
        key, node = key_of(np.array(ids, dtype=np.int32)), self.tree.root(0)
        for at in range(0, len(key), 64):
            piece = key[at : at + 64]
            if len(piece) < 64 and self.tree.serves(node, piece):
                break
            self.n_blocks += 1
            node, is_new = self.tree.insert(node, piece, [self.n_blocks])
            if is_new:
                for shorter in self.tree.covered(node):
                    self.tree.remove(shorter)
        self.known.append(tuple(ids))

    @precondition(lambda self: self.known)
    @rule()
    def evict(self) -> None:
        """The least recently used leaf; the model keeps what the tree still holds."""
        for leaf in self.tree.leaves_by_age():
            self.tree.remove(leaf)
            break
        self.known = [tuple(np.frombuffer(k, ">i4").tolist()) for k in self._held()]

    @rule(ids=st.lists(st.integers(0, 2), min_size=1, max_size=60))
    def match(self, ids: list[int]) -> None:
        found = self.tree.match(key_of(np.array(ids, dtype=np.int32)), 0, len(ids))
        longest = max((_common(ids, known) for known in self.known), default=0)
        assert found.n_tokens == longest
        written = b"".join(node.key for node in found.nodes)
        assert np.frombuffer(written, ">i4").tolist()[: found.n_tokens] == ids[: found.n_tokens]

    def _held(self) -> list[bytes]:
        return [b"".join(reversed([n.key for n in node.path()])) for node in self.tree.nodes()]

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "tree"):
            assert len(list(self.tree.nodes())) == self.tree.n_nodes


def _common(a: list[int], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


TestTree = pytest.mark.filterwarnings("ignore")(TreeMachine.TestCase)
TestTree.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
