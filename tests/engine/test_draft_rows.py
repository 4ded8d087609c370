"""What a draft model has read once it doesn't read again; where its memory doesn't hold all rows, some draft.

The draft model here is the model itself, so every draft must be accepted: one that isn't would show that a block of
another text, or one that was written over, was taken for its own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from imp_server.core import SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.drafting.draft_model import ModelDrafter
from imp_server.engine.drafting.draft_rows import DraftMemory, ModelRow
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.cache import PrefixCache

from tests.backends.array_source import mixed_groups
from tests.engine.test_draft_model import Counting, drafter, is_empty
from tests.engine.test_speculation import check_equal, play
from tests.engine.tiny_engine import Answer, Tiny, ask, request, with_engine

PROMPT = np.random.default_rng(2).integers(0, 94, 150).tolist()


def cached_drafter(**more: Any) -> tuple[ModelDrafter, Counting]:
    return drafter(make_index=PrefixCache, k=4, catch_up_ms=1e6, **more)


def all_accepted(answers: list[Answer]) -> int:
    """Drafted tokens."""
    usages = [answer.finish.usage for answer in answers if answer.finish]
    assert [usage.accepted_tokens for usage in usages] == [usage.drafted_tokens for usage in usages]
    return sum(usage.drafted_tokens for usage in usages)


@pytest.mark.parametrize("keeps", [True, False])
def test_the_next_turn_and_the_same_prompt_are_not_read_again(keeps: bool) -> None:
    model, backend = cached_drafter() if keeps else drafter(k=4, catch_up_ms=1e6)

    async def body(engine: InlineEngine, setup: Tiny) -> None:
        (first,) = await ask(engine, request(engine, PROMPT, 20))
        n_first = backend.n_tokens
        (again,) = await ask(engine, request(engine, PROMPT, 20))
        n_again = backend.n_tokens - n_first
        await ask(engine, request(engine, [*PROMPT, *first.ids, *PROMPT[:10]], 20))
        n_next = backend.n_tokens - n_first - n_again
        assert first.ids == again.ids and all_accepted([first, again]) > 20
        assert n_first > 150
        assert (n_again < 50 and n_next < 60) if keeps else (n_again > 150 and n_next > 170)
        assert is_empty(model)
        hits = (
            setup.loop.parts.speculation.counters().get("draft_prefix_cache_hit_tokens_total", 0) if setup.loop else 0
        )
        assert hits >= 149 + 160 if keeps else not hits

    with_engine(body, drafters=[model], n_blocks=96)


def test_choices_and_requests_that_come_together_are_read_once() -> None:
    model, backend = cached_drafter()

    async def body(engine: InlineEngine, _: Tiny) -> None:
        sampling = SamplingParams(temperature=0.8, seed=3)
        wanted = [request(engine, PROMPT, 24, n=2, sampling=sampling), request(engine, PROMPT, 24)]
        answers = [answer for answers in await asyncio.gather(*(ask(engine, w) for w in wanted)) for answer in answers]
        assert all_accepted(answers) > 30
        assert backend.n_tokens < 150 + 150, "three readings of the prompt would be 450"
        assert is_empty(model)

    with_engine(body, drafters=[model], n_blocks=96)


@pytest.mark.parametrize("groups", ["full", "mixed"])
def test_many_rows_that_share_and_differ_anywhere(groups: str) -> None:
    """In a pool that has to give up what it kept, and rows that step back."""
    architecture = mixed_groups() if groups == "mixed" else None
    model, _ = cached_drafter(n_blocks=16, architecture=architecture)
    rng = np.random.default_rng(4)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        n_drafted = 0
        for _round in range(5):
            cases = [
                {
                    "prompt": [*PROMPT[: int(rng.integers(1, 110))], *rng.integers(0, 94, int(rng.integers(1, 9)))],
                    "max_tokens": int(rng.integers(10, 40)),
                    "sampling": SamplingParams(temperature=0.7 * int(rng.integers(2)), seed=int(rng.integers(99))),
                }
                for _ in range(6)
            ]
            plain, drafted = await play(engine, cases, False), await play(engine, cases, True)
            check_equal(plain, drafted)
            n_drafted += all_accepted([answer for answers in drafted for answer in answers]) if groups == "full" else 1
            assert is_empty(model)
        assert n_drafted > 150 or groups == "mixed"

    fields: dict[str, Any] = {"architecture": mixed_groups()} if groups == "mixed" else {}
    with_engine(body, drafters=[model], n_blocks=192, n_rows=6, **fields)


def test_ten_rows_in_a_pool_for_three() -> None:
    """The oldest draft; those behind them have their turn when memory is free again."""
    model, _ = cached_drafter(n_blocks=20)
    told: list[list[Answer]] = []

    async def body(engine: InlineEngine, _: Tiny) -> None:
        prompts = [np.random.default_rng(seed).integers(0, 94, 60).tolist() for seed in range(10)]
        wanted = [request(engine, prompt, 30) for prompt in prompts]
        told.extend(await asyncio.gather(*(ask(engine, each) for each in wanted)))
        assert is_empty(model)

    with_engine(body, drafters=[model], n_blocks=192, n_rows=10)
    drafted = [answer.finish.usage.drafted_tokens for (answer,) in told if answer.finish]
    assert all_accepted([answer for (answer,) in told]) > 60, drafted
    assert sum(n > 0 for n in drafted) >= 3, drafted


def rows_of(memory: DraftMemory, *lengths: int) -> list[ModelRow]:
    """Of different texts."""
    prompts = [np.random.default_rng(seed).integers(0, 94, n).astype(np.int32) for seed, n in enumerate(lengths)]
    states = [SamplerState(SamplingParams(), 0, prompt, len(prompt) + 32) for prompt in prompts]
    return [ModelRow(state, memory, 4) for state in states]


def test_memory_of_rows_that_do_not_draft_is_there_for_those_that_do() -> None:
    memory = DraftMemory((CacheGroup("full", (0,)),), [5], 80, PrefixCache)
    idle, old, young = rows_of(memory, 40, 40, 40)
    memory.open_turn([idle])
    assert memory.begin(idle, 4) and memory.grow(idle, 40) is not None
    idle.place.n_computed = 40
    memory.open_turn([old, young])
    assert memory.begin(old, 4) and idle.place.tables is None, "it steps back"
    assert not memory.begin(young, 4), "the older one's text fills the pool, once it is read"
    memory.check()
    memory.step_back(old)
    assert memory.begin(young, 4)
    memory.open_turn([idle, young])
    assert not memory.begin(idle, 4) and memory.n_unknown(idle) < 40, "what it had is known as long as nobody needs it"


def test_who_grows_takes_from_the_youngest() -> None:
    memory = DraftMemory((CacheGroup("full", (0,)),), [6], 96, PrefixCache)
    old, young = rows_of(memory, 30, 30)
    memory.open_turn([old, young])
    assert memory.begin(old, 4) and memory.begin(young, 4)
    assert memory.grow(old, 30) is not None and memory.grow(young, 30) is not None
    old.place.n_computed = young.place.n_computed = 30
    assert memory.grow(old, 50) is not None and young.place.tables is None
    memory.check()
    assert not memory.begin(young, 4)
    old.place.n_computed = 80
    assert memory.grow(old, 20) is None and old.place.tables is None, "nobody is left to take from"
    assert all(counts.held == 0 for counts in memory.counts())
    memory.check()
