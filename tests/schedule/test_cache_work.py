"""A request costs what its own blocks cost, however much the cache holds. Counted in calls, not in time."""

from __future__ import annotations

import random
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.cache import Offload, PrefixCache
from imp_server.schedule.rows import Row
from imp_server.schedule.scheduler import ScheduleLimits, Scheduler
from imp_server.schedule.tiers.host import HostTier
from numpy.typing import NDArray

from tests.schedule.simulated import BLOCK_BYTES
from tests.schedule.test_cache import prompt

SMALL, LARGE = 200, 6000


class Calls:
    """Counts the calls of Python and C functions while it is on."""

    def __init__(self) -> None:
        self.n = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, _frame: Any, event: str, _arg: Any) -> None:
        self.n += event in ("call", "c_call")


class NoMemory:
    """Stands for a backend's blocks."""

    def read_blocks(self, group: int, block_ids: NDArray[np.int32]) -> bytes:
        return bytes(BLOCK_BYTES)

    def write_blocks(self, group: int, block_ids: NDArray[np.int32], data: bytes) -> None:
        return None


def serve(scheduler: Scheduler, ids: list[int]) -> int:
    """One request of two tokens; the calls that admitting, planning and settling it made."""
    row = Row(0, 0, SamplerState(SamplingParams(), 0, np.asarray(ids, np.int32), len(ids) + 8))
    with Calls() as calls:
        scheduler.submit([row])
        while row.sampler.length < len(ids) + 2:
            scheduler.admit()
            plan = scheduler.plan()
            scheduler.settle(plan, [0] * len(plan.chunks), 1.0)
            if any(chunk.is_last for chunk in plan.chunks):
                row.sampler.append([1])
            scheduler.publish(plan)
        scheduler.remove(row)
    return calls.n


def filled(n_blocks: int, tier: HostTier | None) -> Scheduler:
    """The pool is full of conversations, some of them pinned, and so is the tier."""
    offload = Offload(NoMemory(), (BLOCK_BYTES,), tier)
    limits = ScheduleLimits(4, 160, 1e9, 1e9)
    scheduler = Scheduler(
        limits, [CacheGroup("full", (0,))], [n_blocks], make_index=partial(PrefixCache, offload=offload)
    )
    rng = random.Random(1)
    for seed in range(n_blocks // 2):
        ids = prompt((rng.randint(0, 9), 32), (seed + 100, 40))
        serve(scheduler, ids)
        if seed % 8 == 0:
            scheduler.index.pin(np.asarray(ids, np.int32), 0)
    assert scheduler.index.n_evicted_tokens > 0
    return scheduler


@pytest.mark.parametrize("tiered", [False, True])
def test_a_large_cache_costs_what_a_small_one_costs(tiered: bool) -> None:
    costs = []
    for n_blocks in (SMALL, LARGE):
        scheduler = filled(n_blocks, HostTier(n_blocks * 300) if tiered else None)
        # The first is found nowhere, and others must go for it. The second is known but for its last token.
        pairs = [[serve(scheduler, prompt((5000 + i, 140))) for _ in range(2)] for i in range(9)]
        costs.append([sorted(each)[4] for each in zip(*pairs, strict=True)])
        scheduler.check()
    (new, known), (new_large, known_large) = costs
    assert new_large < 1.2 * new and known_large < 1.2 * known, costs
    assert known < new


def test_sliding_over_a_long_text_costs_the_same_however_much_a_tier_holds() -> None:
    """What is behind the window is given up, and looked for among the row's own blocks only."""
    costs = []
    for n_stored in (SMALL, LARGE):
        offload = Offload(NoMemory(), (BLOCK_BYTES,), HostTier(n_stored * 300))
        groups = [CacheGroup("full", (0,), window=20)]
        make = partial(PrefixCache, offload=offload)
        scheduler = Scheduler(ScheduleLimits(4, 1000, 1e9, 1e9), groups, [12], make_index=make)
        for seed in range(n_stored // 2):
            serve(scheduler, prompt((seed + 100, 40)))
        costs.append(serve(scheduler, prompt((5000, 900))))
        scheduler.check()
    assert costs[1] < 1.2 * costs[0], costs
