"""The golden prompts with and without prefix cache, with and without each combination of drafters: the same ids.

The truth is one engine that keeps and guesses nothing and has one request at a time on one thread; the others have
twelve at once for their rows, in one order and in its reverse. A few prompts in `make test`; all are marked slow.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pytest
from imp_server.backends import choose
from imp_server.config import Config
from imp_server.core import OutputPlan, SamplingParams, TokenLogprob, pack_ids
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.grammar.check import check_schema

from tests.backends.golden import golden_cases, golden_document
from tests.engine.tiny_engine import Answer, ask, request
from tests.real_model import smollm2

pytestmark = pytest.mark.skipif(choose("auto") == "reference", reason="the native library isn't built")
N_NEW = 20
N_TOGETHER = 12
"""More than there are rows: some wait, and each meets others in the middle of theirs."""
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=17)
OTHERS = (
    SamplingParams(temperature=0.7, repetition_penalty=1.2, repeat_last_n=32, seed=3),
    SamplingParams(temperature=0.9, mirostat=2, seed=4),
    SamplingParams(temperature=0.0, dry_multiplier=0.8),
    SamplingParams(temperature=0.8, typical_p=0.9, presence_penalty=0.4, seed=5),
)
SCHEMA = check_schema(
    {
        "type": "object",
        "properties": {"first_name": {"type": "string", "maxLength": 8}, "is_confirmed": {"type": "boolean"}},
        "required": ["first_name", "is_confirmed"],
        "additionalProperties": False,
    }
)
ALONE: tuple[str, ...] = ("forced", "ngram")
"""Those that need no second model; `prediction` text is a region of ngram's."""
DRAFTERS = (*ALONE, "model")
COMBINATIONS = [names for n in range(4) for names in itertools.combinations(DRAFTERS, n)] + [
    ALONE[::-1],
    DRAFTERS[::-1],
]
FEW = {"list", "json", "single_token", "chinese"}


class Said(NamedTuple):
    ids: list[int]
    logprobs: list[TokenLogprob]
    reason: str


class Case(NamedTuple):
    """One request; `prediction` is what its reply is going to be, but for an error in the middle."""

    prompt: list[int]
    fields: dict[str, Any]


def cases(names: set[str] | None, few: bool) -> list[Case]:
    found = []
    ends = tuple(golden_document()["end_ids"])
    for number, golden in enumerate(golden_cases()):
        if names is not None and golden.name not in names:
            continue
        plain = OutputPlan(end_ids=ends, max_tokens=N_NEW)
        bound = OutputPlan(end_ids=ends, max_tokens=40, grammar=SCHEMA)
        wanted = [(GREEDY, plain), (SAMPLED, plain), (OTHERS[number % len(OTHERS)], plain)]
        if golden.messages is not None and (not few or number % 2 == 0):
            wanted += [(SAMPLED, bound), (GREEDY, bound)]
        for sampling, plan in wanted:
            found.append(Case(golden.prompt_ids, {"sampling": sampling, "plan": plan, "logprobs": number % 3 or None}))
    return found


async def play(
    engine: InlineEngine, wanted: Sequence[Case], n_together: int, **more: Any
) -> tuple[list[Said], int, int]:
    """So many at a time, in order. What they said, the cached and the drafted tokens."""
    turn = asyncio.Semaphore(n_together)

    async def one(case: Case) -> Answer:
        async with turn:
            (answer,) = await ask(engine, request(engine, case.prompt, **(case.fields | more)))
            return answer

    said: list[Said] = []
    n_cached = n_drafted = 0
    for answer in await asyncio.gather(*(one(case) for case in wanted)):
        assert answer.finish
        said.append(Said(answer.ids, answer.logprobs, answer.finish.reason))
        n_cached += answer.finish.usage.cached_tokens
        n_drafted += answer.finish.usage.drafted_tokens
    return said, n_cached, n_drafted


async def with_engine(settings: dict[str, Any], body: Any) -> Any:
    build = functools.partial(build_engine, str(smollm2()), "smollm2", Config.of(settings).for_engine())
    engine = InlineEngine(build, check_each_step=True)
    await engine.start()
    try:
        return await body(engine)
    finally:
        await engine.stop()


@lru_cache
def truth(few: bool) -> tuple[list[Case], list[Said]]:
    wanted = cases(FEW if few else None, few)

    async def body(engine: InlineEngine) -> list[Said]:
        said, n_cached, n_drafted = await play(engine, wanted, 1)
        assert n_cached == n_drafted == 0
        return said

    off = {"prefix_cache.enabled": False, "speculative.enabled": "off", "engine.warmup": False, "cpu.threads": 1}
    return wanted, asyncio.run(with_engine(off, body))


def settings_of(drafters: tuple[str, ...], cached: bool) -> dict[str, Any]:
    """Drafts at every chance, whatever they cost."""
    found: dict[str, Any] = {"prefix_cache.enabled": cached, "engine.warmup": False}
    found |= {"speculative.cost_gate": False, "speculative.min_match": 1, "speculative.miss_burst": 0}
    if "model" in drafters:
        found["speculative.draft_model"] = str(smollm2())
    return found | ({"speculative.drafters": drafters} if drafters else {"speculative.enabled": "off"})


def check(drafters: tuple[str, ...], cached: bool, few: bool) -> None:
    wanted, expected = truth(few)
    predicted = [
        case._replace(fields=case.fields | {"prediction": bent(said.ids)}) for case, said in zip(wanted, expected)
    ]

    async def body(engine: InlineEngine) -> None:
        await compare("first", engine, wanted, expected)
        second = predicted if drafters else wanted
        await compare("reversed", engine, second[::-1], expected[::-1])

    async def compare(name: str, engine: InlineEngine, arm: list[Case], right: list[Said]) -> None:
        said, n_cached, n_drafted = await play(engine, arm, N_TOGETHER)
        for case, one, other in zip(arm, said, right, strict=True):
            assert one == other, f"{name}, {drafters}, cache {cached}: {case.fields}"
        assert (n_cached > 0) == cached
        assert (n_drafted > 0) == bool(drafters)

    asyncio.run(with_engine(settings_of(drafters, cached), body))


def bent(ids: list[int]) -> bytes:
    """A prediction that is right but for one token."""
    guess = list(ids)
    guess[len(guess) // 2] = (guess[len(guess) // 2] + 1) % 1000
    return pack_ids(guess)


def test_a_few_prompts() -> None:
    check(ALONE, cached=True, few=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("drafters", COMBINATIONS, ids=lambda names: "+".join(names) or "none")
def test_all_prompts(drafters: tuple[str, ...]) -> None:
    check(drafters, cached=True, few=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("drafters", [(), DRAFTERS], ids=["none", "all"])
def test_all_prompts_without_a_cache(drafters: tuple[str, ...]) -> None:
    check(drafters, cached=False, few=False)
