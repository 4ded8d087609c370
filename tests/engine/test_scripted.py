"""The scripted engine: same acceptance, same plan walk, every fault on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from imp_server.core import (
    ContextLengthExceeded,
    Draining,
    EngineCrashed,
    EngineFaulted,
    GenerateRequest,
    InvalidRequest,
    ModelLoading,
    OutputPlan,
    Overloaded,
    Segment,
    TokenLogprob,
    pack_ids,
    special,
    unpack_ids,
)
from imp_server.engine.client.scripted import (
    Crash,
    Emit,
    Fail,
    ScriptedEngine,
    ScriptGate,
    Wait,
    byte_vocabulary,
    text_ids,
)
from imp_server.engine.messages import RowDelta

from tests.asked import made

END = 256
THINK_CLOSE = 257


def vocabulary() -> Any:
    return byte_vocabulary("<|end|>", "</think>", "<think>")


def request(engine: ScriptedEngine, text: str = "hi", **fields: Any) -> GenerateRequest:
    plan = fields.pop("plan", OutputPlan(end_ids=(END,), max_tokens=64))
    return made(GenerateRequest, key=engine.new_key(), ids=pack_ids(text_ids(text)), plan=plan, **fields)


def run(test: Callable[[ScriptedEngine], Awaitable[None]], **fields: Any) -> None:
    async def body() -> None:
        engine = ScriptedEngine(vocabulary(), **fields)
        await engine.start()
        await asyncio.wait_for(test(engine), 20)
        await engine.stop()

    asyncio.run(body())


async def collect(engine: ScriptedEngine, wanted: GenerateRequest) -> dict[int, tuple[list[int], RowDelta]]:
    """Per choice: all ids and the last delta."""
    ids: dict[int, list[int]] = {}
    last: dict[int, RowDelta] = {}
    async for delta in await engine.submit(wanted):
        ids.setdefault(delta.choice, []).extend(unpack_ids(delta.ids))
        last[delta.choice] = delta
    return {choice: (ids[choice], last[choice]) for choice in ids}


def test_a_play_ends_with_the_end_id_and_exact_usage() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.play(text_ids("Hello"))
        got, last = (await collect(engine, request(engine)))[0]
        assert bytes(got[:-1]) == b"Hello" and got[-1] == END
        assert last.finish and last.finish.reason == "stop" and last.finish.end_id == END
        assert last.finish.usage.completion_tokens == 6 and last.finish.usage.prompt_tokens == 2
        assert engine.n_running == 0

    run(body)


def test_stop_string_cuts_the_hand_off_that_completes_it() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.play(Emit(text_ids("one STOP two")))
        plan = OutputPlan(end_ids=(END,), stop=(b"STOP",), max_tokens=64)
        got, last = (await collect(engine, request(engine, plan=plan)))[0]
        assert bytes(got) == b"one STOP"
        assert last.finish and last.finish.stop_string == b"STOP" and last.finish.usage.completion_tokens == 8

    run(body)


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_max_tokens(max_tokens: int) -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.play(text_ids("abcdef"))
        plan = OutputPlan(end_ids=(END,), max_tokens=max_tokens)
        got, last = (await collect(engine, request(engine, plan=plan)))[0]
        assert len(got) == max_tokens
        assert last.finish and last.finish.reason == "length" and last.finish.usage.completion_tokens == max_tokens

    run(body)


def test_the_context_is_the_limit_of_a_completion() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.always(text_ids("x" * 99))
        got, last = (await collect(engine, request(engine, "12345")))[0]
        assert len(got) == 3 and last.finish and last.finish.reason == "length"
        with pytest.raises(ContextLengthExceeded):
            await engine.submit(request(engine, "12345678"))

    run(body, context_length=8)


THINK = OutputPlan(
    segments=(
        Segment(kind="think", closers=(special("</think>"),), closes_to=1),
        Segment(kind="answer"),
    ),
    end_ids=(END,),
    max_tokens=64,
    think_budget=4,
    think_closer=pack_ids([THINK_CLOSE]),
)


def test_the_budget_forces_the_closer() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.play(text_ids("hmmmANSWER"))
        got, last = (await collect(engine, request(engine, plan=THINK)))[0]
        assert got == [*text_ids("hmmm"), THINK_CLOSE, *text_ids("ANSWER"), END]
        assert last.finish and last.finish.detail == "reasoning_budget_exhausted"
        assert last.finish.usage.reasoning_tokens == 5

    run(body)


def test_reasoning_can_be_closed_on_demand() -> None:
    async def body(engine: ScriptedEngine) -> None:
        gate = asyncio.Event()
        engine.play(text_ids("ab"), ScriptGate(gate), text_ids("cd"))
        generation = await engine.submit(request(engine, plan=THINK))
        await asyncio.sleep(0.02)
        assert await generation.end_reasoning() == "ending"
        gate.set()
        got: list[int] = []
        async for delta in generation:
            got += unpack_ids(delta.ids)
        assert got == [*text_ids("ab"), THINK_CLOSE, *text_ids("cd"), END]
        assert await generation.end_reasoning() == "already_closed"

    run(body)


def test_choices_have_plays_of_their_own_and_prompt_tokens_count_once() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.play_choices([text_ids("a")], [Wait(0.01), text_ids("bb")], [text_ids("c")])
        got = await collect(engine, request(engine, n=3))
        assert [bytes(got[c][0][:-1]) for c in range(3)] == [b"a", b"bb", b"c"]
        finishes = [got[c][1].finish for c in range(3)]
        assert [f.usage.prompt_tokens for f in finishes if f] == [2, 0, 0]

    run(body)


def test_what_nobody_waited_for_comes_merged() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.play(text_ids("abc"))
        generation = await engine.submit(request(engine, logprobs=0))
        await asyncio.sleep(0.05)
        deltas = [delta async for delta in generation]
        assert len(deltas) == 1 and len(deltas[0].logprobs) == 4

    run(body)


def test_logprobs_come_from_the_script() -> None:
    async def body(engine: ScriptedEngine) -> None:
        entry = TokenLogprob(97, -0.5, ((97, -0.5), (98, -1.0)), 1)
        engine.play(Emit([97], [entry]))
        generation = await engine.submit(request(engine, logprobs=2))
        found = [lp async for delta in generation for lp in delta.logprobs]
        assert found == [entry, TokenLogprob(END, 0.0)]

    run(body)


def test_cancel_frees_the_row_and_ends_the_iteration() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.play(text_ids("a"), ScriptGate(asyncio.Event()))
        generation = await engine.submit(request(engine))
        await anext(generation)
        assert engine.n_running == 1
        generation.cancel()
        generation.cancel()
        assert [d async for d in generation] == []
        assert engine.n_running == 0

    run(body)


def test_a_cancelled_submit_leaves_nothing() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.always(ScriptGate(asyncio.Event()))
        first = await engine.submit(request(engine))
        await asyncio.sleep(0)
        queued = await engine.submit(request(engine))
        queued.cancel()
        await engine.submit(request(engine))
        await engine.submit(request(engine))
        with pytest.raises(Overloaded):
            await engine.submit(request(engine))
        assert not first.is_over

    run(body, n_rows=1, max_queue=2)


def test_fail_is_raised_after_the_tokens() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.play(text_ids("ab"), Fail(EngineFaulted("boom")))
        generation = await engine.submit(request(engine))
        await asyncio.sleep(0.02)
        assert bytes(list(unpack_ids((await anext(generation)).ids))) == b"ab"
        with pytest.raises(EngineFaulted, match="boom"):
            await anext(generation)

    run(body)


def test_a_crash_retries_what_has_emitted_nothing_and_fails_the_rest() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.play(Emit(text_ids("seen")), ScriptGate(asyncio.Event()))
        emitted = await engine.submit(request(engine))
        await anext(emitted)
        engine.play(Crash())
        engine.play(text_ids("second try"))
        got, _ = (await collect(engine, request(engine)))[0]
        assert bytes(got[:-1]) == b"second try" and engine.n_crashes == 1
        with pytest.raises(EngineCrashed):
            await anext(emitted)

    run(body)


def test_a_request_is_retried_once() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.always(Crash())
        with pytest.raises(EngineCrashed):
            await collect(engine, request(engine))
        engine.always(text_ids("ok"))
        assert engine.n_crashes == 2

    run(body)


def test_deadline() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.play(text_ids("a"), ScriptGate(asyncio.Event()))
        got, last = (await collect(engine, request(engine, deadline_s=0.05)))[0]
        assert got == [97] and last.finish
        assert (last.finish.reason, last.finish.detail) == ("length", "timed_out")

    run(body)


@pytest.mark.parametrize(
    "fields",
    [
        {"ids": b""},
        {"ids": pack_ids([99999])},
        {"ids": pack_ids([-1])},
        {"ids": b"abc"},
        {"n": 0},
        {"n": 99},
        {"task": "dance"},
        {"plan": OutputPlan(max_tokens=-1)},
        {"plan": OutputPlan(end_ids=(5000,))},
        {"plan": OutputPlan(think_closer=pack_ids([70000]))},
        {"score_ids": pack_ids([-3])},
        {"logprobs": 2000},
    ],
)
def test_hostile_requests_are_refused(fields: dict[str, Any]) -> None:
    async def body(engine: ScriptedEngine) -> None:
        with pytest.raises(InvalidRequest):
            await engine.submit(made(GenerateRequest, **{"key": engine.new_key(), "ids": pack_ids([1]), **fields}))

    run(body)


def test_states() -> None:
    async def body() -> None:
        engine = ScriptedEngine(vocabulary(), load_seconds=0.05)
        starting = asyncio.ensure_future(engine.start())
        await asyncio.sleep(0)
        with pytest.raises(ModelLoading):
            _ = engine.info
        with pytest.raises(ModelLoading):
            await engine.submit(request(engine))
        await starting
        engine.play(text_ids("a"), Wait(0.05))
        generation = await engine.submit(request(engine))
        draining = asyncio.ensure_future(engine.drain(5.0))
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            await engine.submit(request(engine))
        assert [unpack_ids(d.ids)[-1] async for d in generation][-1] == END
        await draining
        assert engine.state == "stopped"

    asyncio.run(body())


def test_a_long_prompt_is_cheap() -> None:
    async def body(engine: ScriptedEngine) -> None:
        engine.always(text_ids("ok"))
        wanted = GenerateRequest(
            key=engine.new_key(),
            ids=pack_ids([97]) * 200_000,
            plan=OutputPlan(end_ids=(END,), max_tokens=8),
        )
        _, last = (await collect(engine, wanted))[0]
        assert last.finish and last.finish.usage.prompt_tokens == 200_000

    run(body, context_length=262_144)
