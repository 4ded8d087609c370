"""A scheduler driven without a model: KV blocks hold a digest of the history up to each position.

So a wrong table, a missed copy or a block written by two rows shows up as a wrong digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

import numpy as np
from imp_server.backends.base import BLOCK_TOKENS
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.cache import Offload, PrefixCache
from imp_server.schedule.prefix import MakeIndex
from imp_server.schedule.rows import PlannedStep, Row
from imp_server.schedule.scheduler import ScheduleLimits, Scheduler
from imp_server.schedule.snapshots import SnapshotLimits
from imp_server.schedule.tiers.tier import Tier
from numpy.typing import NDArray

BLOCK_BYTES = 8 * BLOCK_TOKENS
"""Of the pretended memory."""
_DIRT = 0x5EED
"""What memory holds before anybody wrote it."""


def digest(history: Sequence[int] | NDArray[np.int32]) -> int:
    return int.from_bytes(hashlib.blake2b(np.asarray(history, "<i4").tobytes(), digest_size=7).digest(), "little")


class Simulation:
    """Owner of the pretended KV memory. Every token costs 1 ms."""

    def __init__(
        self,
        n_blocks: int,
        *,
        n_rows: int = 4,
        context: int = 128,
        groups: Sequence[CacheGroup] = (CacheGroup("full", (0,)),),
        step_ms: float = 8.0,
        step_alone_ms: float = 32.0,
        prefill_chunk: int = 0,
        make_index: MakeIndex | None = None,
        tier: Tier | None = None,
        snapshots: SnapshotLimits | None = None,
        state_tier: Tier | None = None,
    ) -> None:
        """`tier`, `snapshots`, `state_tier`: under a prefix cache, instead of `make_index`."""
        counts = [2 * n_rows if group.kind == "state" else n_blocks for group in groups]
        self.kv = [np.full((n, BLOCK_TOKENS), _DIRT, dtype=np.int64) for n in counts]
        if tier is not None or snapshots is not None:
            offload = Offload(self, (BLOCK_BYTES,) * len(groups), tier, snapshots or SnapshotLimits(), state_tier)
            make_index = partial(PrefixCache, offload=offload)
        limits = ScheduleLimits(n_rows, context, step_ms, step_alone_ms, prefill_chunk)
        self.scheduler = Scheduler(limits, groups, counts, make_index=make_index)
        self.context = context
        self.lengths: dict[Row, int] = {}
        self.done: list[Row] = []
        self.plans: list[PlannedStep] = []

    def submit(
        self,
        prompt: Sequence[int],
        n_output: int,
        *,
        n: int = 1,
        key: int = 0,
        priority: int = 0,
        client: str = "",
        outranks: bool = True,
    ) -> list[Row]:
        rows = []
        for choice in range(n):
            ids = np.asarray(prompt, dtype=np.int32)
            state = SamplerState(SamplingParams(), choice, ids, len(ids) + n_output + 8)
            urgency = priority if outranks else 0
            rows.append(Row(key, choice, state, priority=priority, urgency=urgency, client=client))
            self.lengths[rows[-1]] = min(len(ids) + n_output, self.context)
        self.scheduler.submit(rows)
        return rows

    def read_blocks(self, group: int, block_ids: NDArray[np.int32]) -> bytes:
        return self.kv[group][block_ids].tobytes()

    def write_blocks(self, group: int, block_ids: NDArray[np.int32], data: bytes) -> None:
        self.kv[group][block_ids] = np.frombuffer(data, dtype=np.int64).reshape(len(block_ids), BLOCK_TOKENS)

    def cancel(self, row: Row) -> None:
        if self.lengths.pop(row, None) is not None:
            self.scheduler.remove(row)
            self.scheduler.check()

    def step(self) -> PlannedStep:
        scheduler = self.scheduler
        scheduler.admit()
        scheduler.check()
        plan = scheduler.plan()
        scheduler.check()
        self.plans.append(plan)
        for group, source, target in plan.copies if plan.chunks else ():  # without chunks there is no step
            self.kv[group][target] = self.kv[group][source]
        for chunk in plan.chunks:
            self._run(chunk.row, chunk.start, chunk.n_tokens)
        sampled = [chunk.row for chunk in plan.chunks if chunk.is_last]
        scheduler.settle(plan, [0] * len(plan.chunks), float(plan.n_tokens))
        for row in sampled:
            row.sampler.append([int(row.sampler.history.sum()) % 1000 + row.choice])
        scheduler.publish(plan)
        for row in sampled:
            if row.sampler.length >= self.lengths[row]:
                scheduler.remove(row)
                del self.lengths[row]
                self.done.append(row)
        scheduler.check()
        return plan

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            waited = any(row.is_restoring for row in self.scheduler.rows)
            assert self.step().chunks or waited or any(row.is_restoring for row in self.scheduler.rows), "no progress"
        raise AssertionError("the work doesn't end")

    def _run(self, row: Row, start: int, n_tokens: int) -> None:
        assert row.tables is not None
        history = row.sampler.history
        for group, description in enumerate(self.scheduler.memory.groups):
            columns = row.tables.columns(group)
            if description.kind == "state":
                self._advance(group, int(columns[0]), history.tolist(), start, n_tokens)
                continue
            for position in range(start, start + n_tokens):
                block = columns[position // BLOCK_TOKENS]
                self.kv[group][block, position % BLOCK_TOKENS] = digest(history[: position + 1])
            first = max(0, start - description.window + 1) if description.window else 0
            for position in range(first, start + n_tokens):
                block = columns[position // BLOCK_TOKENS]
                assert block >= 0, "a position that a query sees was given up"
                assert self.kv[group][block, position % BLOCK_TOKENS] == digest(history[: position + 1])

    def _advance(self, group: int, slot: int, history: list[int], start: int, n_tokens: int) -> None:
        """A toy of a recurrent layer: its state is a function of every token so far, and can't be taken back."""
        if start == 0:
            self.kv[group][slot] = state_after([])
        assert (self.kv[group][slot] == state_after(history[:start])).all(), "the state isn't that of these tokens"
        self.kv[group][slot] = state_after(history[start : start + n_tokens], self.kv[group][slot])


def state_after(ids: Sequence[int], state: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """From `state`, else from the beginning."""
    state = np.arange(BLOCK_TOKENS, dtype=np.int64) if state is None else state.copy()
    for token in ids:
        state = (state * 31 + token + 7) % 1_000_000_007
    return state
