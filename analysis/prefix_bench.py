"""What the prefix cache saves when a prompt's beginning is known, and what it costs when it never is.

python analysis/prefix_bench.py MODEL [--backend cpu] [--rounds 7] [--prefix 2048]

One process. Hit against miss: each round sends a new prefix with a tail, then the same prefix with another tail; the
ratio of their times to the first token. Cost: eight streams of prompts that share nothing, on a pool so small that each
evicts others, with the cache and without it, in turn. What the cache can change is the engine's own work beside the
model's forwards (it is the same forwards): the difference of that, in CPU time, as a share of all CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import statistics
import time
from typing import Any

import numpy as np
from imp_server.config import Config
from imp_server.core import GenerateRequest, GenerationOptions, OutputPlan, SamplingParams, pack_ids
from imp_server.engine.build import BuiltEngine, build_engine
from imp_server.engine.client.inline import InlineEngine

N_STREAMS = 8
PROMPT, REPLY = 512, 32
"""Tokens of the prompts that share nothing, and of their replies."""


class Bench:
    """One engine, and the CPU seconds of its thread: in all steps, and in the forwards among them."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        self._settings = settings
        self.engine = InlineEngine(functools.partial(self._build, model))
        self.steps_s = self.forwards_s = 0.0
        self._vocab_size = 0

    def _build(self, model: str, *more: Any) -> BuiltEngine:
        built = build_engine(model, "model", Config.of(self._settings).for_engine(), *more)
        self._vocab_size = built.info.vocab_size
        loop: Any = built.loop
        backend: Any = built.loop.backend
        step, run = loop.step, backend.run

        def timed_step() -> None:
            began = time.thread_time()
            step()
            self.steps_s += time.thread_time() - began

        def timed_run(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return run(*args)
            finally:
                self.forwards_s += time.thread_time() - began

        loop.step = timed_step
        backend.run = timed_run
        return built

    async def first_token_ms(self, ids: list[int]) -> tuple[float, int]:
        """And how many tokens came from the cache."""
        finish = await self._ask(ids, 1)
        return finish.ttft_ms, finish.usage.cached_tokens

    async def streams_s(self, seed: int) -> tuple[float, float]:
        """CPU seconds of all steps, and of what isn't forwards, for eight prompts that nobody sent before."""
        rng = np.random.default_rng(seed)
        prompts = [self.prompt(rng, PROMPT) for _ in range(N_STREAMS)]
        self.steps_s = self.forwards_s = 0.0
        await asyncio.gather(*(self._ask(ids, REPLY) for ids in prompts))
        return self.steps_s, self.steps_s - self.forwards_s

    def prompt(self, rng: np.random.Generator, n: int) -> list[int]:
        found: list[int] = rng.integers(0, self._vocab_size, n).tolist()
        return found

    async def _ask(self, ids: list[int], n_tokens: int) -> Any:
        plan, sampling = OutputPlan(max_tokens=n_tokens), SamplingParams(temperature=0.0)
        request = GenerateRequest(
            self.engine.new_key(), pack_ids(ids), plan, sampling, GenerationOptions(speculative=False)
        )
        finish = None
        async for delta in await self.engine.submit(request):
            finish = delta.finish or finish
        return finish


async def saving(bench: Bench, rounds: int, n_prefix: int) -> None:
    ratios = []
    for seed in range(rounds):
        rng = np.random.default_rng(1000 + seed)
        prefix = bench.prompt(rng, n_prefix)
        miss_ms, none = await bench.first_token_ms(prefix + bench.prompt(rng, 32))
        hit_ms, n_cached = await bench.first_token_ms(prefix + bench.prompt(rng, 32))
        assert none == 0 and n_cached == n_prefix
        ratios.append(miss_ms / hit_ms)
        print(f"  prefix {n_prefix}: miss {miss_ms:.0f} ms, hit {hit_ms:.1f} ms")
    print(f"first token, miss / hit: {statistics.median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})")


async def cost(kept: Bench, plain: Bench, rounds: int) -> None:
    for bench in (kept, plain):
        await bench.streams_s(1)
    shares, added = [], []
    for seed in range(rounds):
        first, second = (kept, plain) if seed % 2 else (plain, kept)
        one, other = await first.streams_s(10 + seed), await second.streams_s(10 + seed)
        (_, with_s), (all_s, without_s) = (one, other) if seed % 2 else (other, one)
        shares.append(100 * without_s / all_s)
        added.append(100 * (with_s - without_s) / all_s)
    counters, _ = await kept.engine.stats()
    assert counters["prefix_cache_hit_tokens_total"] == 0
    print(
        f"  {counters['prefix_cache_evictions_total']:.0f} blocks evicted; beside the forwards, without a cache: ",
        end="",
    )
    print(f"{statistics.median(shares):.2f} % of all")
    print(f"no hits, added: {statistics.median(added):.2f} % ({min(added):.2f} to {max(added):.2f})")


async def measure(options: argparse.Namespace) -> None:
    common = {"engine.backend": options.backend, "speculative.enabled": "off"}
    roomy = Bench(options.model, common)
    await roomy.engine.start()
    await saving(roomy, options.rounds, options.prefix)
    await roomy.engine.stop()
    # Threads that spin while a busy machine keeps them waiting would count as work.
    small = common | {"cpu.threads": 1, "kv_cache.max_blocks": N_STREAMS * (PROMPT + REPLY) // 16 + 32}
    kept, plain = Bench(options.model, small), Bench(options.model, small | {"prefix_cache.enabled": False})
    for bench in (kept, plain):
        await bench.engine.start()
    await cost(kept, plain, options.rounds)
    for bench in (kept, plain):
        await bench.engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prefix", type=int, default=2048)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
