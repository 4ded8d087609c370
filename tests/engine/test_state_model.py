"""A family that declares a state group is served like any other: reuse, pressure and refusals change no token."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from imp_server.core import MessageSpan, SamplingParams
from imp_server.engine.client.inline import InlineEngine
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.snapshots import SnapshotLimits
from imp_server.schedule.tiers.host import HostTier

from tests.engine.tiny_engine import Tiny, ask, request, with_engine
from tests.engine.toy_state import GROUPS, ToyState, toy

SYSTEM = np.random.default_rng(1).integers(0, 94, 50).tolist()
PURE = (CacheGroup("state", ()),)


def turn(engine: InlineEngine, number: int, max_tokens: int = 12, n: int = 1) -> Any:
    """A system message that all share, then a user message of its own."""
    user = np.random.default_rng(10 + number).integers(0, 94, 30).tolist()
    spans = (MessageSpan("system", 0, 50), MessageSpan("user", 50, 80))
    sampling = SamplingParams(temperature=0.7 * (number % 2), seed=number)
    return request(engine, [*SYSTEM, *user], max_tokens, sampling=sampling, spans=spans, n=n, logprobs=2)


async def eight(engine: InlineEngine) -> list[Any]:
    return [a for answers in await asyncio.gather(*(ask(engine, turn(engine, i)) for i in range(8))) for a in answers]


@pytest.mark.parametrize("groups", [GROUPS, PURE])
def test_reuse_changes_no_token(groups: tuple[CacheGroup, ...]) -> None:
    runs: list[list[Any]] = []
    cached: list[list[int]] = []
    counters: list[dict[str, float]] = []

    async def body(engine: InlineEngine, _: Tiny) -> None:
        for _again in range(2):
            answers = await eight(engine)
            runs.append([(a.ids, a.logprobs) for a in answers])
            cached.append([a.finish.usage.cached_tokens for a in answers])
        counters.append(dict((await engine.stats())[0]))

    with_engine(body, **toy(groups=groups, snapshots=SnapshotLimits(most=0)))
    with_engine(body, **toy(groups=groups))
    with_engine(body, **toy(groups=groups, snapshots=SnapshotLimits(most=2, cap_bytes=400)))
    if groups is GROUPS:
        with_engine(body, **toy(20, groups, tier=HostTier(1 << 20)))
        with_engine(body, **toy(20, groups))
    assert all(run == runs[0] for run in runs)
    assert cached[0] == cached[1] == [0] * 8
    assert cached[3] == [50] * 8 and cached[2].count(50) >= 4, "before the last user message"
    assert all(each["steps_failed_total"] == each["integrity_faults_total"] == 0 for each in counters)
    if groups is GROUPS:
        assert counters[3]["prefix_cache_restored_tokens_total"] > 0


def test_the_next_turn_goes_on_behind_the_answer() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        (first,) = await ask(engine, turn(engine, 0, 20))
        user = np.random.default_rng(10).integers(0, 94, 30).tolist()
        history = [*SYSTEM, *user, *first.ids]
        spans = (MessageSpan("user", 50, 80), MessageSpan("user", len(history), len(history) + 9))
        (second,) = await ask(engine, request(engine, [*history, *SYSTEM[:9]], 4, spans=spans))
        assert second.finish and second.finish.usage.cached_tokens == len(history) - 1

    with_engine(body, **toy())


def test_choices_share_their_prompt() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        together = await ask(engine, turn(engine, 1, n=4))
        again = await ask(engine, turn(engine, 1, n=4))
        assert [a.ids for a in together] == [a.ids for a in again]
        assert len({tuple(a.ids) for a in together}) == 4

    with_engine(body, **toy())


def test_a_position_that_runs_again_clears_the_row_and_changes_no_answer() -> None:
    """A mask that comes too late makes the engine run a position twice: a state can't be rolled back for that."""
    runs: list[list[Any]] = []

    async def body(engine: InlineEngine, setup: Tiny) -> None:
        runs.append([(a.ids, a.logprobs) for a in await eight(engine)])
        counters, _rows = await engine.stats()
        assert counters["steps_failed_total"] == counters["requests_failed_total"] == 0
        backend = setup.loop.backend if setup.loop else None
        assert isinstance(backend, ToyState)
        assert counters["rollbacks_refused_total"] == backend.n_late
        if backend.late_every:
            assert backend.n_late > 10
            assert (counters.get("state_snapshots_restored_total", 0) > 0) == (setup.snapshots.most > 0)

    with_engine(body, **toy())
    with_engine(body, **toy(late_every=5))
    with_engine(body, **toy(late_every=5, snapshots=SnapshotLimits(most=0)))
    assert runs[1] == runs[2] == runs[0], "from a snapshot or from zero: the same"
