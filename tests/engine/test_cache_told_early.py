"""What the prefix cache gave is told when a row starts, before its first forward; what it would give, at acceptance."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from imp_server.backends.base import Backend, Pending, Step
from imp_server.engine.client.inline import InlineEngine
from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.tiers.host import HostTier

from tests.engine.tiny_engine import Tiny, ask, request, with_engine

PROMPT = np.random.default_rng(1).integers(0, 94, 70).tolist()


class Held:
    """A backend whose forwards wait while its gate is closed."""

    def __init__(self, backend: Backend, gate: threading.Event) -> None:
        self._backend, self._gate = backend, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def launch(self, step: Step) -> Pending:
        assert self._gate.wait(20)
        return self._backend.launch(step)


@pytest.mark.parametrize("keeps", [True, False])
def test_before_the_first_forward(keeps: bool) -> None:
    gate = threading.Event()
    gate.set()

    async def body(engine: InlineEngine, _: Tiny) -> None:
        told = []
        for prompt in (PROMPT, PROMPT, PROMPT[:40]):
            gate.clear()
            generation = await engine.submit(request(engine, prompt, 4))
            foreseen = (generation.cached_tokens, generation.cache_write_tokens)
            first = await anext(aiter(generation))
            assert not first.ids and first.n_prefilled == -1, "told before anything is computed"
            assert foreseen == (first.n_cached, first.n_to_cache), "nothing happened in between"
            told.append(foreseen)
            gate.set()
            last = [delta async for delta in generation][-1].finish
            assert last and (last.usage.cached_tokens, last.usage.cache_write_tokens) == foreseen
        assert told == ([(0, 70), (69, 1), (39, 1)] if keeps else [(0, 0)] * 3)

    with_engine(body, make_index=PrefixCache if keeps else None, wrap=lambda backend: Held(backend, gate))


def test_a_row_that_waits_for_anothers_prefix_is_told_what_it_got_in_the_end() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        first = await engine.submit(request(engine, PROMPT, 4))
        second = await engine.submit(request(engine, PROMPT, 4))
        told = [delta.n_cached async for delta in second if delta.n_cached >= 0]
        assert second.cached_tokens < 64 and told == [64], "whole blocks, when it starts"
        first.cancel()

    with_engine(body, make_index=PrefixCache, prefill_chunk=16)


def test_every_choice_is_told_once() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        generation = await engine.submit(request(engine, PROMPT, 4, n=3))
        told = [(delta.choice, delta.n_to_cache) async for delta in generation if delta.n_cached >= 0]
        assert sorted(told) == [(0, 70), (1, 0), (2, 0)]

    with_engine(body, make_index=PrefixCache)


def test_what_had_to_go_for_a_restored_prefix_is_counted() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        n_told = 0
        for seed in (0, 1, 0, 1):
            prompt = np.random.default_rng(seed).integers(0, 94, 100).tolist()
            (answer,) = await ask(engine, request(engine, prompt, 4))
            assert answer.finish
            n_told += answer.finish.usage.evicted_tokens
        assert answer.finish and answer.finish.usage.cached_tokens == 99
        assert answer.finish.usage.evicted_tokens >= 64, "its blocks came back, and those of the other had to go"
        counters, _rows = await engine.stats()
        assert counters["prefix_cache_restored_tokens_total"] > 0
        assert counters["prefix_cache_evicted_tokens_total"] == n_told

    with_engine(body, tier=HostTier(1 << 26), n_blocks=8, context=128)
