"""A full context that is shifted: the reply goes on as if its text had been the kept ids from the beginning."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import numpy as np
import pytest
from imp_server.core import ContextShift, SamplingParams
from imp_server.decode.ngram import NgramDrafter, NgramKnobs
from imp_server.decode.state import SamplerState
from imp_server.engine.client.inline import InlineEngine
from imp_server.schedule.cache import PrefixCache

from tests.engine.hash_model import HashModel, hashes_of
from tests.engine.tiny_engine import IDS, Tiny, ask, request, with_engine

EAGER = NgramKnobs(min_match=1, max_match=4)
CONTEXT, PROMPT = 48, IDS[:20]


def expected(model: HashModel, n_tokens: int, keep: int, discard: int) -> list[int]:
    """By the model alone, from the whole text each time."""
    text, written = list(PROMPT), list[int]()
    for _ in range(n_tokens):
        hashes = hashes_of(np.array(text, dtype=np.int32))
        written.append(int(np.argmax(model._logits(text[-1], int(hashes[-1])))))
        if len(text) + 1 > CONTEXT:
            n_gone = discard or (len(text) - keep) // 2
            text = text[:keep] + text[keep + n_gone :]
        text.append(written[-1])
    return written


@pytest.mark.parametrize(("keep", "discard"), [(0, 0), (5, 0), (20, 0), (5, 3), (7, 9)])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("drafters", [[], [NgramDrafter(EAGER)]], ids=["plain", "drafted"])
def test_what_is_kept_is_computed_anew(keep: int, discard: int, cached: bool, drafters: list[Any]) -> None:
    models: list[HashModel] = []

    def wrap(backend: Any) -> HashModel:
        models.append(HashModel(backend.architecture))
        return models[-1]

    async def body(engine: InlineEngine, _: Tiny) -> None:
        wanted = request(engine, PROMPT, 150, shift=ContextShift(keep, discard))
        (answer,) = await ask(engine, wanted)
        assert answer.ids == expected(models[0], 150, keep, discard) and not models[0].faults
        assert answer.finish is not None and answer.finish.reason == "length"
        assert answer.finish.usage.shifted_tokens >= 150 + len(PROMPT) - CONTEXT - 1
        (plain,) = await ask(engine, request(engine, PROMPT, 150))
        assert plain.ids == answer.ids[: CONTEXT - len(PROMPT)] and plain.finish
        assert not plain.finish.usage.shifted_tokens

    with_engine(body, context=CONTEXT, wrap=wrap, make_index=PrefixCache if cached else None, drafters=drafters)


def test_several_choices_shift_each_for_itself() -> None:
    models: list[HashModel] = []

    def wrap(backend: Any) -> HashModel:
        models.append(HashModel(backend.architecture))
        return models[-1]

    async def body(engine: InlineEngine, _: Tiny) -> None:
        sampling = SamplingParams(temperature=1.0, seed=3)
        wanted = request(engine, PROMPT, 90, shift=ContextShift(4), sampling=sampling, n=3)
        answers = await ask(engine, wanted)
        assert len({tuple(answer.ids) for answer in answers}) == 3 and not models[0].faults
        assert all(len(answer.ids) == 90 for answer in answers)

    with_engine(body, context=CONTEXT, wrap=wrap, make_index=partial(PrefixCache), n_blocks=32)


def test_a_loop_that_runs_ahead_waits_where_the_context_may_move() -> None:
    models: list[HashModel] = []

    def wrap(backend: Any) -> HashModel:
        models.append(HashModel(backend.architecture))
        return models[-1]

    async def body(engine: InlineEngine, tiny: Tiny) -> None:
        beside = asyncio.create_task(ask(engine, request(engine, IDS[5:9], 40)))
        (answer,) = await ask(engine, request(engine, PROMPT, 150, shift=ContextShift(5)))
        assert answer.ids == expected(models[0], 150, 5, 0) and not models[0].faults
        ((other,), loop) = (await beside, tiny.loop)
        assert len(other.ids) == 40 and loop is not None
        assert loop.stats()[0]['overlap_waits_total{reason="shift"}'] > 0

    with_engine(body, context=CONTEXT, wrap=wrap, make_index=PrefixCache, overlap=True)


def test_output_positions_go_on_counting() -> None:
    state = SamplerState(SamplingParams(min_tokens=8), 0, np.arange(6, dtype=np.int32), 32)
    state.append(range(10, 16))
    state.shift(2, 7)
    assert state.history.tolist() == [0, 1, 13, 14, 15] and state.n_prompt == 2
    assert state.position == 6 and state.output.tolist() == [13, 14, 15] and state.params.min_tokens == 5
