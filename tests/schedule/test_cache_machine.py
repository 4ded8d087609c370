"""The whole cache against a naive model of it: the set of all token sequences ever computed, searched one by one.

With room enough below memory nothing is ever lost, so what the cache finds must be exactly what the model finds:
after any order of admitting, extending, finishing, cancelling, evicting, pinning, spilling, restoring and restarting.
Where entries are damaged or given up it may find less, never more. The simulation checks the contents.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.rows import Row
from imp_server.schedule.snapshots import SnapshotLimits
from imp_server.schedule.tiers.file import FileTier

from tests.schedule.simulated import BLOCK_BYTES, Simulation
from tests.schedule.test_cache import WINDOWED, prompt
from tests.schedule.test_snapshots import HYBRID, PURE
from tests.schedule.test_spill import FULL
from tests.schedule.test_tiers import file_tier

Ids = tuple[int, ...]
parts = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([3, 16, 23, 32])), min_size=1, max_size=3)


class CacheMachine(RuleBasedStateMachine):
    groups: ClassVar[tuple[CacheGroup, ...]] = FULL

    @initialize(n_slots=st.sampled_from([4096, 4096, 12]))
    def begin(self, n_slots: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="imp-cache-machine-"))
        self.n_slots = n_slots
        self.loses = n_slots < 4096
        """Something may have been lost: the model is an upper bound."""
        self.computed: set[Ids] = set()
        self.states: set[Ids] = set()
        self.rows: list[Row] = []
        self.start()

    def start(self) -> None:
        n_blocks = 40  # four rows of 96 tokens, and less than what is cached in a while
        self.tier: FileTier = file_tier(self.folder / "tier", self.n_slots, payload=BLOCK_BYTES * len(self.groups))
        limits = SnapshotLimits(most=1000)
        self.state_tier = file_tier(self.folder / "states", 1000, payload=BLOCK_BYTES * len(self.groups) + 4 * 96)
        self.sim = Simulation(
            n_blocks,
            context=96,
            groups=self.groups,
            tier=self.tier,
            snapshots=limits,
            state_tier=self.state_tier if self.has_state else None,
        )
        index = self.sim.scheduler.index
        assert isinstance(index, PrefixCache)
        self.index = index

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "folder", Path("/nonexistent")), ignore_errors=True)

    # --- the model ------------------------------------------------------------------------------

    @property
    def has_state(self) -> bool:
        return any(group.kind == "state" for group in self.groups)

    def expected(self, ids: Ids) -> int:
        """The longest beginning of `ids` that was ever computed, and whose state was kept if there is one."""
        known = max((n_common(ids, each) for each in self.computed), default=0)
        if not self.has_state:
            return known
        if self.groups == PURE:
            known = len(ids)
        return max((len(s) for s in self.states if len(s) <= known and ids[: len(s)] == s), default=0)

    def note(self, row: Row, n_computed: int, *, is_over: bool) -> None:
        """What the row has computed so far is known: whole blocks while it runs, everything once it is over."""
        history = tuple(row.sampler.history.tolist())
        self.computed.add(history[: n_computed if is_over else n_computed // 16 * 16])
        if n_computed and (is_over or n_computed in row.snapshot_points):
            self.states.add(history[:n_computed])

    # --- what rows do ---------------------------------------------------------------------------

    @rule(beginning=parts, n_output=st.integers(1, 20), points=st.sets(st.integers(1, 60), max_size=2))
    def admit(self, beginning: list[tuple[int, int]], n_output: int, points: set[int]) -> None:
        ids = prompt(*beginning)[:70]
        (row,) = self.sim.submit(ids, n_output)
        row.snapshot_points = tuple(sorted(p for p in points if p < len(ids)))
        self.rows.append(row)

    @precondition(lambda self: self.rows)
    @rule(n_steps=st.integers(1, 6))
    def extend(self, n_steps: int) -> None:
        for _ in range(n_steps):
            if self.sim.scheduler.has_work:
                self.step()

    def step(self) -> None:
        plan = self.sim.step()
        assert self.sim.scheduler.n_preemptions == 0
        for chunk in plan.chunks:
            row, over = chunk.row, chunk.row in self.sim.done
            self.note(row, chunk.start + chunk.n_tokens, is_over=over)
        self.rows = [row for row in self.rows if row in self.sim.lengths]

    @precondition(lambda self: self.rows)
    @rule()
    def finish(self) -> None:
        for _ in range(500):
            if not self.sim.scheduler.has_work:
                break
            self.step()
        assert not self.rows
        assert self.sim.scheduler.idle_fault() == ""

    @precondition(lambda self: self.rows)
    @rule(which=st.integers(0, 100))
    def cancel(self, which: int) -> None:
        row = self.rows.pop(which % len(self.rows))
        self.note(row, row.n_computed, is_over=True)
        self.sim.cancel(row)

    # --- what memory does -----------------------------------------------------------------------

    @rule(n=st.integers(1, 12))
    def evict(self, n: int) -> None:
        self.index.reclaim(0, n)

    @rule()
    def spill_everything(self) -> None:
        self.index.reclaim(0, 10_000)
        assert self.index.n_pinned_blocks == 0, "pins yield when nothing else is left"

    @rule(beginning=parts, session=st.sampled_from([None, "a", "b"]))
    def pin(self, beginning: list[tuple[int, int]], session: str | None) -> None:
        self.index.pin(np.array(prompt(*beginning), dtype=np.int32), 0, session)

    @rule(session=st.sampled_from(["a", "b"]))
    def unpin(self, session: str) -> None:
        self.index.release_session(session)

    @precondition(lambda self: self.computed and not self.rows)
    @rule(which=st.integers(0, 1000))
    def restore(self, which: int) -> None:
        """Ask for something known and a token more."""
        known = sorted(self.computed)
        ids = (*known[which % len(known)][:69], 7)
        expected = self.expected(ids[:-1])
        (row,) = self.sim.submit(ids, 1)
        self.rows.append(row)
        self.finish()
        assert row.n_cached == expected or (self.loses and row.n_cached < expected)

    @rule()
    def save(self) -> None:
        self.index.tidy()

    @precondition(lambda self: not self.rows)
    @rule(is_killed=st.booleans())
    def restart(self, is_killed: bool) -> None:
        """Whatever was saved is known to the next process."""
        if is_killed:
            while self.index.tidy():
                pass
            self.tier.close()
        else:
            self.index.close()
        if is_killed or not self.has_state:
            self.state_tier.close()
        self.start()

    @rule(which=st.integers(0, 10_000))
    def damage(self, which: int) -> None:
        """A byte of the file changes."""
        path = self.folder / "tier"
        size = path.stat().st_size
        if size > 4096:
            self.loses = True
            with path.open("r+b") as file:
                file.seek(4096 + which * 97 % (size - 4096))
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 0x40]))

    # --- what must hold -------------------------------------------------------------------------

    @rule(beginning=parts)
    def look_up(self, beginning: list[tuple[int, int]]) -> None:
        self.compare(tuple(prompt(*beginning)))

    @precondition(lambda self: self.computed)
    @rule(which=st.integers(0, 1000), cut=st.integers(0, 90), tail=parts)
    def look_up_something_like(self, which: int, cut: int, tail: list[tuple[int, int]]) -> None:
        known = sorted(self.computed)
        self.compare((*known[which % len(known)][:cut], *prompt(*tail)))

    def compare(self, ids: Ids) -> None:
        hit = self.index.match(np.array(ids, dtype=np.int32), 0)
        written = b"".join(node.key for node in hit.nodes)
        assert tuple(np.frombuffer(written, ">i4").tolist())[: hit.n_tokens] == (
            () if self.groups == PURE else ids[: hit.n_tokens]
        )
        assert hit.n_tokens <= self.expected(ids)
        if not self.loses:
            assert hit.n_tokens == self.expected(ids)

    @invariant()
    def everything_is_whole(self) -> None:
        if hasattr(self, "sim"):
            self.sim.scheduler.check()
            assert self.tier.n_bytes <= self.n_slots * 2 * BLOCK_BYTES * (len(self.groups) + 2)


def n_common(a: Ids, b: Ids) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class WindowMachine(CacheMachine):
    groups = WINDOWED


class HybridMachine(CacheMachine):
    groups = HYBRID


class PureStateMachine(CacheMachine):
    groups = PURE


def with_settings(machine: type[CacheMachine], n_examples: int) -> type:
    case = machine.TestCase
    case.settings = settings(max_examples=n_examples, stateful_step_count=40, deadline=None)
    return case


TestCacheMachine = with_settings(CacheMachine, 20)
TestWindowMachine = with_settings(WindowMachine, 10)
TestHybridMachine = with_settings(HybridMachine, 10)
TestPureStateMachine = with_settings(PureStateMachine, 5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("machine", [CacheMachine, WindowMachine, HybridMachine, PureStateMachine])
def test_long_lives(machine: type[CacheMachine]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=80, deadline=None))
