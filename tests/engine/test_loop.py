"""The step loop over a tiny model: same ids alone and together, exact ends, faults that stay small."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from imp_server.backends.base import Backend, Pending, Step
from imp_server.core import (
    AdapterUse,
    EngineFaulted,
    GrammarDeadEnd,
    InvalidRequest,
    Overloaded,
    SamplingParams,
    pack_ids,
)
from imp_server.decode.drafter import ANY_ROWS, Draft, DraftedRow
from imp_server.decode.logprobs import position_logprobs
from imp_server.engine.client.inline import InlineEngine

from tests.backends import plain_model
from tests.backends.array_source import ArraySource, mixed_groups, tiny
from tests.engine.tiny_engine import IDS, SAMPLED, Tiny, ask, greedy_twin, request, with_engine


@pytest.fixture(params=[False, True], ids=["plain", "overlapped"], autouse=True)
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs under both."""
    monkeypatch.setattr(Tiny, "overlaps", request.param)


def test_greedy_equals_the_plain_model() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, request(engine, IDS[:20], 12))
        assert answer.ids == greedy_twin(IDS[:20], 12)
        assert answer.finish and answer.finish.reason == "length"
        usage = answer.finish.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (20, 12, 0)
        assert answer.prefilled[-1] == 20 and answer.finish.ttft_ms > 0

    with_engine(body)


@pytest.mark.parametrize("architecture", [tiny(), mixed_groups()], ids=["full", "mixed"])
def test_eight_together_equal_solo_runs(architecture: Any) -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        def wanted() -> list[Any]:
            return [
                request(engine, IDS[9 * i : 9 * i + 5 + 11 * i], 24, sampling=SAMPLED, logprobs=3) for i in range(8)
            ]

        alone = [(await ask(engine, each))[0] for each in wanted()]
        together = await asyncio.gather(*(ask(engine, each) for each in wanted()))
        for one, (other,) in zip(alone, together):
            assert one.ids == other.ids
            assert one.logprobs == other.logprobs, "bitwise"

    with_engine(body, architecture=architecture, n_rows=8, n_blocks=96, step_ms=8.0, prefill_chunk=13)


def test_preempted_rows_answer_the_same() -> None:
    answers: list[Any] = []

    async def body(engine: InlineEngine, setup: Tiny) -> None:
        wanted = [request(engine, IDS[i : i + 30], 60, sampling=SAMPLED, logprobs=0) for i in range(4)]
        found = await asyncio.gather(*(ask(engine, each) for each in wanted))
        answers.append([(a.ids, a.logprobs) for (a,) in found])
        assert setup.loop is not None
        answers.append(setup.loop.scheduler.n_preemptions)

    with_engine(body)
    with_engine(body, n_blocks=16)
    assert answers[0] == answers[2] and answers[1] == 0 and answers[3] > 0


def test_choices_differ_and_repeat_with_the_seed() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        first = await ask(engine, request(engine, IDS[:21], 10, sampling=SAMPLED, n=3))
        again = await ask(engine, request(engine, IDS[:21], 10, sampling=SAMPLED, n=3))
        assert [a.ids for a in first] == [a.ids for a in again]
        assert len({tuple(a.ids) for a in first}) == 3
        assert [a.finish.usage.prompt_tokens for a in first if a.finish] == [21, 0, 0]
        (alone,) = await ask(engine, request(engine, IDS[:21], 10, sampling=SAMPLED))
        assert alone.ids == first[0].ids

    with_engine(body)


def test_logprobs_equal_the_law() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        (answer,) = await ask(engine, request(engine, IDS[:9], 4, logprobs=5, prompt_logprobs=2))
        logits = plain_model.forward(ArraySource(tiny()), IDS[:9] + answer.ids)[1].astype(np.float32)
        assert len(answer.logprobs) == 4 and len(answer.prompt_logprobs) == 8
        for offset, entry in enumerate(answer.logprobs):
            wanted = position_logprobs(logits[8 + offset], entry.id, 5)
            assert entry.logprob == pytest.approx(wanted.token, abs=1e-4) and entry.rank == 1
            assert [i for i, _ in entry.top] == wanted.top_ids.tolist()
        for position, entry in enumerate(answer.prompt_logprobs):
            wanted = position_logprobs(logits[position], IDS[position + 1], 2)
            assert entry.id == IDS[position + 1]
            assert entry.logprob == pytest.approx(wanted.token, abs=1e-4) and entry.rank == wanted.rank

    with_engine(body)


def test_prompt_logprobs_of_choices_and_chunks() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        answers = await ask(engine, request(engine, IDS[:40], 2, prompt_logprobs=0, n=2))
        assert [len(a.prompt_logprobs) for a in answers] == [39, 0]
        assert [e.id for e in answers[0].prompt_logprobs] == IDS[1:40]

    with_engine(body, prefill_chunk=7)


@pytest.mark.parametrize("stage", ["queued", "prefill", "decode"])
def test_cancel_at_any_stage_frees_everything(stage: str) -> None:
    async def body(engine: InlineEngine, setup: Tiny) -> None:
        assert setup.loop is not None
        blockers = [await engine.submit(request(engine, IDS[:5], 200)) for _ in range(4 if stage == "queued" else 0)]
        generation = await engine.submit(request(engine, IDS[:200], 50, n=2 if stage != "queued" else 1))
        if stage == "prefill":
            assert (await anext(generation)).n_prefilled < 200
        elif stage == "decode":
            async for delta in generation:
                if delta.ids:
                    break
        for each in [generation, *blockers]:
            each.cancel()
        began = time.monotonic()
        while setup.loop.has_work:
            await asyncio.sleep(0.005)
        assert time.monotonic() - began < 0.25
        assert all(c.free == setup.n_blocks for c in setup.loop.scheduler.memory.counts())
        assert (await ask(engine, request(engine, IDS[:20], 3)))[0].ids == greedy_twin(IDS[:20], 3)

    with_engine(body, prefill_chunk=16)


def test_embeddings_and_scores() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        hidden, logits = plain_model.forward(ArraySource(tiny()), IDS[:33])
        (answer,) = await ask(engine, request(engine, IDS[:33], task="embed"))
        np.testing.assert_allclose(answer.vectors[0], hidden[-1], atol=1e-4)
        (answer,) = await ask(engine, request(engine, IDS[:33], task="score", score_ids=pack_ids([4, 90])))
        np.testing.assert_allclose(answer.vectors[0], logits[-1][[4, 90]], atol=1e-4)
        assert answer.finish and answer.finish.reason == "stop" and answer.finish.usage.completion_tokens == 0

    with_engine(body, prefill_chunk=10)


def test_a_full_queue_is_an_error_before_the_stream() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        live = [await engine.submit(request(engine, IDS[:5], 250)) for _ in range(2)]
        await anext(live[0])
        live.append(await engine.submit(request(engine, IDS[:5], 250)))
        with pytest.raises(Overloaded):
            await engine.submit(request(engine, IDS[:5], 250))
        for each in live:
            each.cancel()

    with_engine(body, n_rows=1, max_queue=2)


def test_hostile_requests_harm_nobody() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        live = asyncio.ensure_future(ask(engine, request(engine, IDS[:20], 40)))
        hostile: list[dict[str, Any]] = [
            {"prompt": [97]},
            {"prompt": [-1]},
            {"prompt": []},
            {"prompt": [1], "n": 5},
            {"prompt": [1], "sampling": SamplingParams(logit_bias=((500, 1.0),))},
            {"prompt": [1], "task": "score", "score_ids": pack_ids([999])},
            {"prompt": [1], "adapters": (AdapterUse("nobody"),)},
        ]
        for fields in hostile:
            with pytest.raises(InvalidRequest):
                await engine.submit(request(engine, **fields))
        assert (await live)[0].ids == greedy_twin(IDS[:20], 40)

    with_engine(body)


@pytest.mark.dead_end
def test_a_dead_end_is_an_error_and_counted() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        sampling = SamplingParams(temperature=0.0, banned_ids=tuple(range(97)))
        with pytest.raises(GrammarDeadEnd):
            await ask(engine, request(engine, IDS[:4], sampling=sampling))
        counters, _rows = await engine.stats()
        assert counters["grammar_dead_ends_total"] == 1 and counters["rows_running"] == 0

    with_engine(body)


class Failing:
    """A backend that fails when a certain id is in the step."""

    def __init__(self, backend: Backend, poison: int, fault: Exception) -> None:
        self._backend = backend
        self._poison = poison
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def launch(self, step: Step) -> Pending:
        if (step.ids == self._poison).any():
            raise self._fault
        return self._backend.launch(step)


@pytest.mark.parametrize("fault", [RuntimeError("poisoned"), MemoryError()], ids=["broken", "out of memory"])
def test_a_failed_step_takes_its_own_requests_only(fault: Exception) -> None:
    async def body(engine: InlineEngine, setup: Tiny) -> None:
        with pytest.raises(EngineFaulted):
            await ask(engine, request(engine, [1, 2, 95, 3], 4))
        sampling = SamplingParams(temperature=0.0, banned_ids=(95,))
        (answer,) = await ask(engine, request(engine, IDS[:20], 4, sampling=sampling))
        assert len(answer.ids) == 4
        counters, _ = await engine.stats()
        assert counters["steps_failed_total"] == 1
        assert setup.loop is not None
        assert all(c.free == setup.n_blocks for c in setup.loop.scheduler.memory.counts())

    with_engine(body, wrap=lambda backend: Failing(backend, 95, fault))


class Oracle:
    """A drafter that knows the truth, sometimes."""

    name = "oracle"
    confidence = 0.8
    wants_hidden = False
    most_rows = ANY_ROWS

    def __init__(self) -> None:
        self.truth: dict[int, list[int]] = {}
        self.rng = np.random.default_rng(0)

    def start(self, row: DraftedRow) -> OracleRow:
        return OracleRow(self, row)


class OracleRow:
    silent_until = 0

    def __init__(self, oracle: Oracle, row: DraftedRow) -> None:
        self._oracle, self._row = oracle, row.sampler

    def propose(self, limit: int) -> Draft:
        done = self._row.position
        truth = self._oracle.truth.get(self._row.choice, [])[done : done + min(limit, 5)]
        drafts = np.array(truth, dtype=np.int32)
        rng = self._oracle.rng
        if len(drafts) and rng.random() < 0.5:
            drafts[rng.integers(len(drafts))] = 3
        return Draft(drafts)

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        pass

    def close(self) -> None:
        pass


def test_drafts_change_nothing_but_the_number_of_steps() -> None:
    oracle = Oracle()

    async def body(engine: InlineEngine, _: Tiny) -> None:
        wanted = {"sampling": SamplingParams(temperature=0.8, presence_penalty=0.5, seed=3), "n": 2, "logprobs": 2}
        plain = await ask(engine, request(engine, IDS[:20], 50, **wanted))
        oracle.truth = {c: a.ids for c, a in enumerate(plain)}
        drafted = await ask(engine, request(engine, IDS[:20], 50, **wanted))
        assert [a.ids for a in plain] == [a.ids for a in drafted]
        for one, other in zip(plain, drafted):
            assert one.logprobs == other.logprobs
            assert other.finish and other.finish.usage.accepted_tokens > 10
            assert other.finish.usage.verify_steps < 40
        off = await ask(engine, request(engine, IDS[:20], 50, **wanted, speculative=False))
        assert off[0].finish and off[0].finish.usage.drafted_tokens == 0

    with_engine(body, drafters=[oracle])


class Fourth(OracleRow):
    is_known = False

    def propose(self, limit: int) -> Draft:
        position, choice = self._row.position, self._row.choice
        truth = self._oracle.truth.get(choice, [])[position : position + min(limit, 2)]
        return Draft(np.array([] if self.is_known and position % 4 else truth, dtype=np.int32))

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        self.is_known = self.is_known or n_accepted > 0


class OracleOfFours(Oracle):
    """Right about two tokens, from its first success on at every fourth position alone."""

    def start(self, row: DraftedRow) -> OracleRow:
        return Fourth(self, row)


def test_a_row_whose_drafts_were_accepted_waits_for_its_token_so_that_the_next_are_found() -> None:
    n_verified = []
    for overlap in (False, True):
        oracle = OracleOfFours()

        async def body(engine: InlineEngine, _: Tiny, oracle: OracleOfFours = oracle) -> None:
            (plain,) = await ask(engine, request(engine, IDS[:20], 48))
            oracle.truth = {0: plain.ids}
            (drafted,) = await ask(engine, request(engine, IDS[:20], 48))
            assert drafted.ids == plain.ids and drafted.finish
            n_verified.append(drafted.finish.usage.verify_steps)

        with_engine(body, drafters=[oracle], overlap=overlap)
    assert n_verified[0] >= 10 and n_verified[1] >= n_verified[0] - 1, n_verified


def test_others_keep_going_during_a_long_prefill() -> None:
    """With a decoder present no step may take the whole prompt."""

    async def body(engine: InlineEngine, _: Tiny) -> None:
        talker = await engine.submit(request(engine, IDS[:5], 200))
        await anext(talker)
        (answer,) = await ask(engine, request(engine, IDS[:200], 1))
        assert len(answer.prefilled) > 1, answer.prefilled
        talker.cancel()

    with_engine(body, step_ms=5.0)


def test_an_idle_engine_sleeps() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, request(engine, IDS[:5], 3))
        before = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - before < 0.05

    with_engine(body)


def test_the_lower_priority_number_comes_first() -> None:
    """As clients write it; across owners only where it counts for all."""

    async def body(engine: InlineEngine, _: Tiny) -> None:
        ended: list[str] = []

        async def one(name: str, owner: str, priority: int, *, outranks: bool) -> None:
            n_tokens = 60 if name == "first" else 4  # the others are there before it ends
            asked = request(engine, IDS[:10], n_tokens, owner=owner, priority=priority, outranks=outranks)
            await ask(engine, asked)
            ended.append(name)

        first = asyncio.create_task(one("first", "x", 0, outranks=False))
        await asyncio.sleep(0)
        rest = [("late", "a", 5), ("soon", "a", -5), ("other", "b", 0)]
        await asyncio.gather(first, *(one(n, owner, p, outranks=False) for n, owner, p in rest))
        assert ended.index("soon") < ended.index("late")
        ended.clear()
        rest = [("late", "a", 5), ("other", "b", 0), ("soon", "c", -5)]
        first = asyncio.create_task(one("first", "x", -9, outranks=True))
        await asyncio.gather(first, *(one(n, owner, p, outranks=True) for n, owner, p in rest))
        assert ended == ["first", "soon", "other", "late"]

    with_engine(body, n_rows=1)
