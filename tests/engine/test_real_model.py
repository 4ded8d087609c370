"""The default model: eight streams equal their solo runs, logits bit by bit (seen through every token's logprobs).

Probabilities as drawn, which are computed beside the native sampler, change no token, with and without drafts.
"""

from __future__ import annotations

import asyncio
import functools
import math
from typing import Any

import pytest
from imp_server.backends import choose
from imp_server.config import Config
from imp_server.core import SamplingParams
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine

from tests.backends.golden import golden_cases
from tests.engine.tiny_engine import ask, request
from tests.real_model import smollm2

CASES = [c for c in golden_cases() if len(c.prompt_ids) < 60][:8]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["auto", pytest.param("reference", marks=pytest.mark.slow)])
def test_eight_streams_equal_solo_runs(backend: str) -> None:
    if backend == "auto" and choose("auto") == "reference":
        pytest.skip("the native library isn't built, and the reference run is marked slow")
    n_tokens = 6 if backend == "reference" else 24
    config = Config.of({"engine.backend": backend, "prefix_cache.enabled": False})

    async def body() -> None:
        engine = InlineEngine(
            functools.partial(build_engine, str(smollm2()), "smollm2", config.for_engine()), check_each_step=True
        )
        await engine.start()

        def wanted(number: int) -> Any:
            sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=number)
            return request(engine, CASES[number].prompt_ids, n_tokens, sampling=sampling, logprobs=5)

        alone = [(await ask(engine, wanted(number)))[0] for number in range(8)]
        together = await asyncio.gather(*(ask(engine, wanted(number)) for number in range(8)))
        for one, (other,) in zip(alone, together):
            assert (one.ids, one.logprobs) == (other.ids, other.logprobs)
        await engine.stop()

    asyncio.run(body())


@pytest.mark.timeout(300)
def test_probabilities_as_drawn_belong_to_the_same_tokens() -> None:
    if choose("auto") == "reference":
        pytest.skip("the native library isn't built: there is no other sampler to compare with")
    config = Config.of({"prefix_cache.enabled": False})
    samplings = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, repetition_penalty=1.2),
        SamplingParams(temperature=0.8, top_k=0, top_p=0.95, seed=5),
        SamplingParams(temperature=1.2, top_k=30, min_p=0.02, seed=6),
    ]

    async def body() -> None:
        engine = InlineEngine(
            functools.partial(build_engine, str(smollm2()), "smollm2", config.for_engine()), check_each_step=True
        )
        await engine.start()
        for sampling in samplings:

            def wanted(sampling: SamplingParams = sampling, **fields: Any) -> Any:
                return request(engine, CASES[0].prompt_ids, 40, sampling=sampling, **fields)

            ((native,), (plain,), (drafted,)) = [
                await ask(engine, wanted(speculative=False)),
                await ask(engine, wanted(speculative=False, logprobs=20, logprobs_as_drawn=True)),
                await ask(engine, wanted(speculative=True, logprobs=20, logprobs_as_drawn=True)),
            ]
            assert native.ids == plain.ids == drafted.ids
            assert plain.logprobs == drafted.logprobs
            for entry in plain.logprobs:
                shown = [math.exp(value) for _, value in entry.top]
                assert sum(shown) < 1 + 1e-6 and shown == sorted(shown, reverse=True)
                if sampling.temperature == 0.0:
                    assert (entry.logprob, entry.top) == (0.0, ((entry.id, 0.0),))
        await engine.stop()

    asyncio.run(body())
