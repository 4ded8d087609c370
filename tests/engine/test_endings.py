"""How completions end in the loop: end ids, stop strings, limits, forced closings, cancels, deadlines, shutdown."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from imp_server.core import (
    ContextLengthExceeded,
    OutputPlan,
    SamplingParams,
    Segment,
    Unavailable,
    pack_ids,
    special,
    unpack_ids,
)
from imp_server.engine.client.inline import InlineEngine

from tests.engine.tiny_engine import IDS, SAMPLED, UNTHINK, Tiny, ask, greedy_twin, request, with_engine

NO_SPECIALS = SamplingParams(temperature=0.0, banned_ids=(94, 95, 96))


@pytest.fixture(params=[False, True], ids=["plain", "overlapped"], autouse=True)
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs under both."""
    monkeypatch.setattr(Tiny, "overlaps", request.param)


@pytest.mark.parametrize("n_shown", [0, 1, 5])
def test_end_ids_and_stop_strings(n_shown: int) -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        free = greedy_twin(IDS[:20], 12)
        end = free[n_shown]
        first = free.index(end)
        plan = OutputPlan(end_ids=(end,), max_tokens=12)
        (answer,) = await ask(engine, request(engine, IDS[:20], plan=plan))
        assert answer.ids == free[: first + 1]
        assert answer.finish and answer.finish.reason == "stop" and answer.finish.end_id == end
        text = bytes(32 + i for i in free[: n_shown + 2])
        plan = OutputPlan(stop=(text[-2:],), max_tokens=12)
        (answer,) = await ask(engine, request(engine, IDS[:20], plan=plan))
        assert answer.finish and answer.finish.stop_string == text[-2:]

    with_engine(body)


def test_max_tokens_zero_and_the_context_limit() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, request(engine, IDS[:20], 0, prompt_logprobs=0))
        assert answer.ids == [] and answer.finish and answer.finish.reason == "length"
        assert len(answer.prompt_logprobs) == 19
        (answer,) = await ask(engine, request(engine, IDS[:250], 100))
        assert len(answer.ids) == 6 and answer.finish and answer.finish.reason == "length"
        with pytest.raises(ContextLengthExceeded):
            await engine.submit(request(engine, IDS[:256], 1))
        (answer,) = await ask(engine, request(engine, IDS[:256], 0))
        assert answer.finish

    with_engine(body)


THINKING = OutputPlan(
    segments=(Segment("think", closers=(special("</think>"),), closes_to=1), Segment("answer")),
    max_tokens=20,
    think_closer=pack_ids([UNTHINK, 5]),
)


@pytest.mark.parametrize("budget", [0, 1, 6])
@pytest.mark.parametrize("n", [1, 2])
def test_the_budget_closes_reasoning(budget: int, n: int) -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        plan = msgspec.structs.replace(THINKING, think_budget=budget)
        for answer in await ask(engine, request(engine, IDS[:18], plan=plan, n=n, logprobs=0, sampling=NO_SPECIALS)):
            assert answer.ids[budget : budget + 2] == [UNTHINK, 5]
            assert len(answer.ids) == 20 == len(answer.logprobs)
            assert answer.finish and answer.finish.detail == "reasoning_budget_exhausted"
            assert answer.finish.usage.reasoning_tokens == budget + 1
            wanted = greedy_twin(IDS[:18], budget, 94)
            rest = greedy_twin([*IDS[:18], *wanted, UNTHINK, 5], 3, 94)
            assert answer.ids[:budget] == wanted and answer.ids[budget + 2 : budget + 5] == rest

    with_engine(body)


def test_reasoning_ends_on_demand() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        plan = msgspec.structs.replace(THINKING, max_tokens=200)
        generation = await engine.submit(request(engine, IDS[:18], plan=plan, sampling=NO_SPECIALS))
        ids = list(unpack_ids((await anext(generation)).ids))
        assert await generation.end_reasoning() == "ending"
        async for delta in generation:
            ids += unpack_ids(delta.ids)
        at = ids.index(UNTHINK)
        assert at < 150 and ids[at + 1] == 5 and UNTHINK not in ids[at + 1 :]
        plain = await engine.submit(request(engine, IDS[:18], 200))
        assert await plain.end_reasoning() == "no_closer"
        plain.cancel()

    with_engine(body)


def test_cancelling_one_choice_leaves_the_others() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        whole = await ask(engine, request(engine, IDS[:60], 20, sampling=SAMPLED, n=3))
        for gone in (0, 1):
            generation = await engine.submit(request(engine, IDS[:60], 20, sampling=SAMPLED, n=3))
            generation.cancel(gone)
            ids: dict[int, list[int]] = {}
            async for delta in generation:
                ids.setdefault(delta.choice, []).extend(unpack_ids(delta.ids))
            assert ids == {c: whole[c].ids for c in range(3) if c != gone}

    with_engine(body, prefill_chunk=16)


def test_deadline_in_queue_and_while_running() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        running = request(engine, IDS[:5], 250, deadline_s=0.3)
        waiting = request(engine, IDS[:5], 250, deadline_s=0.1)
        (a,), (b,) = await asyncio.gather(ask(engine, running), ask(engine, waiting))
        assert b.finish and b.finish.detail == "timed_out" and not b.ids
        assert a.finish and (a.finish.detail == "timed_out" or len(a.ids) == 250)

    with_engine(body, n_rows=1)


def test_stop_ends_what_is_running() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        generation = await engine.submit(request(engine, IDS[:5], 250))
        await anext(generation)
        stopping = asyncio.ensure_future(engine.stop())

        async def read_all() -> None:
            async for _delta in generation:
                pass

        with pytest.raises(Unavailable):
            await read_all()
        await stopping
        with pytest.raises(Unavailable):
            await engine.submit(request(engine, IDS[:5], 1))

    with_engine(body)


def test_drain_finishes_what_is_running() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        generation = await engine.submit(request(engine, IDS[:5], 30))
        draining = asyncio.ensure_future(engine.drain(30.0))
        await asyncio.sleep(0)
        ids = [i async for delta in generation for i in unpack_ids(delta.ids)]
        assert len(ids) == 30
        await draining

    with_engine(body)
