"""Rows under a grammar: valid output, a slow mask that holds nobody, dead ends that are told apart."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
import pytest
from imp_server.core import (
    GrammarDeadEnd,
    GrammarPlan,
    GrammarRefused,
    InternalError,
    OutputPlan,
    SamplingParams,
    Segment,
    pack_ids,
    special,
    unpack_ids,
)
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.constrained.grammar_row import GrammarRow
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.constrained.masking import MaskThread
from imp_server.grammar.check import check_schema
from msgspec.structs import replace

from tests.asked import changed
from tests.engine.tiny_engine import END, UNTHINK, VOCAB, Tiny, ask, request, vocabulary, with_engine

IDS = np.random.default_rng(3).integers(0, 94, 600).tolist()
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
FAKE = GrammarPlan("fake", "fake", b"")


def text_of(ids: list[int]) -> str:
    return bytes(32 + i for i in ids if i < 94).decode()


def test_real_grammars_alone_together_and_mixed() -> None:
    plan = OutputPlan(end_ids=(END,), max_tokens=120, steers=True, grammar=check_schema(SCHEMA))

    async def body(engine: InlineEngine, _: Tiny) -> None:
        def wanted(seed: int) -> Any:
            sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=seed)
            return request(engine, IDS[seed : seed + 20], plan=plan, sampling=sampling)

        alone = [(await ask(engine, wanted(seed)))[0].ids for seed in range(3)]
        free = ask(engine, request(engine, IDS[:9], 40))
        together = await asyncio.gather(*(ask(engine, wanted(seed)) for seed in range(3)), free)
        for ids, (answer,) in zip(alone, together):
            assert answer.ids == ids
            value = json.loads(text_of(ids))
            assert set(value) == {"name", "ok"} and isinstance(value["ok"], bool)
            assert answer.finish and answer.finish.end_id == END
        (counters, _rows) = await engine.stats()
        assert counters["grammar_dead_ends_total"] == 0

    with_engine(body, make_constraint=Grammars(vocabulary()))


LAWS = {
    "greedy": SamplingParams(temperature=0.0),
    "noise": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=4, repetition_penalty=1.4),
    "mirostat": SamplingParams(temperature=1.0, seed=5, mirostat=2),
    "bias": SamplingParams(temperature=1.0, seed=6, logit_bias=((0, 2.0),)),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("max_tokens", [120, 26])
def test_tokens_without_a_choice_need_no_logits(law: str, max_tokens: int) -> None:
    """The same ids and end as with logits, steered or not; whatever else is asked of a token has it sampled."""
    plan = OutputPlan(end_ids=(END,), max_tokens=max_tokens, steers=True, grammar=check_schema(SCHEMA))
    found: dict[bool, list[Any]] = {}
    for takes_only in (True, False):

        async def body(engine: InlineEngine, _: Tiny, takes_only: bool = takes_only) -> None:
            plain = request(engine, IDS[:20], plan=plan, sampling=LAWS[law])
            first, second = [(await ask(engine, replace(plain, key=engine.new_key())))[0] for _ in range(2)]
            assert first.ids == second.ids
            (counters, _rows) = await engine.stats()
            n_only = counters["constrained_only_total"]
            if max_tokens == 120:  # steered masks are made too late for it
                assert (n_only > 5) == (takes_only and law in ("greedy", "noise"))
            (told,) = await ask(engine, changed(plain, key=engine.new_key(), logprobs=1))
            assert told.ids == first.ids and len(told.logprobs) == len(told.ids)
            assert (await engine.stats())[0]["constrained_only_total"] == n_only
            assert first.finish and first.finish.usage.completion_tokens == len(first.ids)
            found[takes_only] = [first.ids, first.finish.reason, first.finish.end_id]

        with_engine(body, make_constraint=Grammars(vocabulary()), takes_only=takes_only)
    assert found[True] == found[False]


class Fake:
    """Allows `allowed` at any time, ends after `length` tokens; states are counts."""

    start = 0
    after_closing: int | None = None

    def __init__(self, allowed: range = range(10), length: int = 5, mask_seconds: float = 0.0) -> None:
        self._allowed = allowed
        self._length = length
        self._mask_seconds = mask_seconds
        self.masks_made = 0

    def step(self, state: int, token_id: int, patience_s: float | None = None) -> int | None:
        return state + 1 if state < self._length and token_id in self._allowed else None

    def past_early(self, state: int, patience_s: float | None = None) -> int:
        return state

    def known_mask(self, state: int) -> None:
        return None

    def mask(self, state: int) -> Any:
        time.sleep(self._mask_seconds)
        self.masks_made += 1
        out = np.zeros(4, np.uint32)
        if state < self._length:
            for token_id in self._allowed:
                out[token_id // 32] |= np.uint32(1 << (token_id % 32))
        return out

    def fitting(self, state: int, n_left: int) -> tuple[Any, bool]:
        return self.mask(state), False

    def is_done(self, state: int) -> bool:
        return state >= self._length

    def forced(self, state: int, patience_s: float | None = None) -> bytes:
        return b""

    def n_out(self, state: int, patience_s: float | None = None) -> int:
        return 0

    def route(self, state: int, patience_s: float | None = None) -> tuple[int, ...]:
        return ()


def constrained(**fields: Any) -> OutputPlan:
    return OutputPlan(**{"end_ids": (END,), "max_tokens": 30, "grammar": FAKE, "steers": True, **fields})


def test_the_end_id_is_allowed_exactly_when_done() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        for n in (1, 2):
            for answer in await ask(engine, request(engine, IDS[:20], plan=constrained(), n=n)):
                assert len(answer.ids) == 6 and answer.ids[-1] == END and set(answer.ids[:-1]) <= set(range(10))

    with_engine(body, make_constraint=lambda plan: Fake())


def test_without_end_ids_a_finished_grammar_stops() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, request(engine, IDS[:20], plan=constrained(end_ids=())))
        assert len(answer.ids) == 5 and answer.finish and answer.finish.reason == "stop"

    with_engine(body, make_constraint=lambda plan: Fake())


def test_a_slow_mask_holds_nobody() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        slow = asyncio.ensure_future(ask(engine, request(engine, IDS[:20], plan=constrained())))
        began = time.monotonic()
        (free,) = await ask(engine, request(engine, IDS[:20], 30))
        assert len(free.ids) == 30
        # 30 tokens can't take less than the six masks of 0.3 s if each step waited for one.
        assert time.monotonic() - began < 1.0 and not slow.done()
        assert len((await slow)[0].ids) == 6

    with_engine(body, make_constraint=lambda plan: Fake(mask_seconds=0.3))


def test_a_slow_start_holds_nobody_and_can_be_cancelled() -> None:
    def make(plan: GrammarPlan) -> Fake:
        time.sleep(0.4)
        return Fake()

    async def body(engine: InlineEngine, _: Tiny) -> None:
        starting = asyncio.ensure_future(engine.submit(request(engine, IDS[:20], plan=constrained())))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        assert len((await ask(engine, request(engine, IDS[:20], 5)))[0].ids) == 5
        assert time.monotonic() - began < 0.3 and not starting.done()
        starting.cancel()
        await asyncio.sleep(0.5)
        assert (await engine.stats())[0]["requests_waiting"] == 0

    with_engine(body, make_constraint=make)


def test_refused_and_broken_grammars_fail_before_the_stream() -> None:
    def make(plan: GrammarPlan) -> Any:
        raise GrammarRefused("too large") if plan.digest == "fake" else ValueError("bug")

    async def body(engine: InlineEngine, _: Tiny) -> None:
        with pytest.raises(GrammarRefused, match="too large"):
            await engine.submit(request(engine, IDS[:5], plan=constrained()))
        with pytest.raises(InternalError):
            await engine.submit(request(engine, IDS[:5], plan=constrained(grammar=GrammarPlan("x", "y", b""))))

    with_engine(body, make_constraint=make)


@pytest.mark.dead_end
def test_a_dead_end_fails_its_request_and_is_counted() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        healthy = asyncio.ensure_future(ask(engine, request(engine, IDS[:20], 30)))
        with pytest.raises(GrammarDeadEnd):
            await ask(engine, request(engine, IDS[:20], plan=constrained()))
        assert (await engine.stats())[0]["grammar_dead_ends_total"] == 1
        assert len((await healthy)[0].ids) == 30

    with_engine(body, make_constraint=lambda plan: Fake(allowed=range(0)))


def test_a_mask_that_raises_fails_its_request_alone() -> None:
    class Broken(Fake):
        def mask(self, state: int) -> Any:
            if state == 2:
                raise ValueError("bug")
            return super().mask(state)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        healthy = asyncio.ensure_future(ask(engine, request(engine, IDS[:20], 30)))
        with pytest.raises(InternalError):
            await ask(engine, request(engine, IDS[:20], plan=constrained(), n=2))
        assert len((await healthy)[0].ids) == 30

    with_engine(body, make_constraint=lambda plan: Broken())


@pytest.mark.parametrize("asked", ["n_out", "step", "route", "forced"])
def test_a_question_of_the_loop_that_raises_fails_its_request_alone(asked: str) -> None:
    def broken(self: Any, state: int, *_: Any) -> Any:
        raise GrammarRefused("too complex")

    kind = type("Broken", (Fake,), {asked: broken})

    async def body(engine: InlineEngine, _: Tiny) -> None:
        healthy = asyncio.ensure_future(ask(engine, request(engine, IDS[:20], 30)))
        if asked in ("n_out", "step"):
            with pytest.raises(InternalError):
                await ask(engine, request(engine, IDS[:20], plan=constrained()))
        else:
            assert len((await ask(engine, request(engine, IDS[:20], plan=constrained())))[0].ids) == 6
        assert len((await healthy)[0].ids) == 30

    with_engine(body, make_constraint=lambda plan: kind())


def test_forced_closing_moves_the_grammar_along() -> None:
    """The grammar binds the whole completion: it sees the closer that the engine feeds."""
    seen: list[int] = []

    class Recording(Fake):
        def step(self, state: int, token_id: int, patience_s: float | None = None) -> int | None:
            if seen[state:] != [token_id]:
                seen.append(token_id)
            return state + 1

    async def body(engine: InlineEngine, _: Tiny) -> None:
        plan = constrained(
            segments=(Segment("think", closers=(special("</think>"),), closes_to=1), Segment("answer")),
            think_budget=2,
            think_closer=pack_ids([UNTHINK, 7]),
            end_ids=(),
        )
        generation = await engine.submit(request(engine, IDS[:18], plan=plan))
        ids = [i async for delta in generation for i in unpack_ids(delta.ids)]
        assert ids[2:4] == [UNTHINK, 7] and seen == ids

    with_engine(body, make_constraint=lambda plan: Recording(length=9))


@pytest.mark.parametrize("asked", [False, True])
def test_behind_a_forced_closing_the_grammar_says_where_it_goes_on(asked: bool) -> None:
    """By the budget or on demand: the token behind the closer is masked from the place that the grammar names."""
    masked: list[int] = []

    class Recording(Fake):
        after_closing = 50

        def step(self, state: int, token_id: int, patience_s: float | None = None) -> int | None:
            return state + 1

        def mask(self, state: int) -> Any:
            masked.append(state)
            return super().mask(state)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        plan = constrained(
            segments=(Segment("think", closers=(special("</think>"),), closes_to=1), Segment("answer")),
            think_budget=-1 if asked else 2,
            think_closer=pack_ids([UNTHINK]),
            end_ids=(),
            max_tokens=12,
        )
        generation = await engine.submit(request(engine, IDS[:18], plan=plan))
        if asked:
            assert await generation.end_reasoning() == "ending"
        ids = [i async for delta in generation for i in unpack_ids(delta.ids)]
        n_thought = ids.index(UNTHINK)
        assert asked or n_thought == 2
        assert set(masked) & set(range(50, 62)) == set(range(50, 62 - n_thought - 1))
        assert not set(masked) & set(range(n_thought + 1, 50))

    with_engine(body, make_constraint=lambda plan: Recording(allowed=range(90), length=90))


def test_a_draft_of_the_closer_gives_no_mask_where_the_thinking_was_closed_by_force() -> None:
    class Elsewhere(Fake):
        after_closing: int | None = 50

    masks = MaskThread(VOCAB, lambda _: Elsewhere(length=90))
    try:
        row = GrammarRow(Elsewhere(length=90), (), masks, 30)
        behind = row.walk([1, 2, 3])
        assert row.advance(1) and row.job is behind[0]
        row.closed_by_force()
        assert row.job not in behind and row.draft_masks(3) == [] and not row.is_on_walk
    finally:
        masks.stop()
