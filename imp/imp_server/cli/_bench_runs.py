"""What `imp bench` measures: requests through the engine's own loop, in this process."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from imp_server.backends.base import Backend, Pending, Step, StepResult
from imp_server.core import GenerateRequest, GenerationOptions, OutputPlan, SamplingParams, pack_ids
from imp_server.engine.build import BuiltEngine
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.messages import RowDelta

Build = Callable[[Callable[..., None], Callable[..., None]], BuiltEngine]


class TimedBackend:
    """A backend that adds up what its steps take; `native_s` is the part spent in native code, if it says so."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.reset()

    def reset(self) -> None:
        self.n_steps, self.native_s = 0, 0.0

    def launch(self, step: Step) -> Pending:
        return _TimedStep(self, self.inner.launch(step))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _TimedStep:
    """A step that tells a TimedBackend what it took."""

    def __init__(self, backend: TimedBackend, inner: Pending) -> None:
        self._backend, self._inner = backend, inner

    def collect(self) -> StepResult:
        backend, began = self._backend, time.perf_counter()
        result = self._inner.collect()
        backend.n_steps += 1
        backend.native_s += getattr(backend.inner, "native_s", time.perf_counter() - began)
        return result


class Measured(msgspec.Struct, frozen=True):
    """One scenario: medians over the rounds. `gb_per_s`: weights read per second, 0 where that says nothing."""

    scenario: str
    tokens_per_s: float
    low: float
    high: float
    gb_per_s: float
    share_of_bandwidth: float
    host_us_per_step: float
    n_drafted: int
    n_accepted: int


class Compute(msgspec.Struct, frozen=True):
    """Of the prefill, in 10^9 operations per second: what it did, what its layouts' inner loops and what dot products
    on registers reach, all in this run.
    """

    gops: float
    ceiling_gops: float
    peak_gops: float

    def __str__(self) -> str:
        of_ceiling, of_peak = self.gops / self.ceiling_gops, self.gops / self.peak_gops
        return (
            f"{self.gops:.0f} GOP/s in the prefill: {of_ceiling:.0%} of {self.ceiling_gops:.0f}, the ceiling of its "
            f"layouts; {of_peak:.0%} of {self.peak_gops:.0f}, the peak of dot products"
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    n_prompt: int
    n_tokens: int
    n_rows: int
    n_rounds: int
    speculative: bool


class Bench:
    """Owner of the engine under test."""

    def __init__(self, build: Build, sizes: Sizes) -> None:
        self._sizes = sizes
        self._timed: TimedBackend | None = None
        self.loop_name = ""
        self.compute: Compute | None = None

        def timed(emit: Callable[..., None], post: Callable[..., None]) -> BuiltEngine:
            built = build(emit, post)
            self._timed = TimedBackend(built.loop.backend)
            self.loop_name = type(built.loop).__name__
            built.loop.backend = self._timed
            return built

        self.engine = InlineEngine(timed)

    async def run(self) -> list[Measured]:
        s = self._sizes
        decode = await self._measure("decode, 1 stream", 1, 8, s.n_tokens)
        prefill = await self._measure(f"prefill {s.n_prompt}", 1, s.n_prompt, 1)
        self.compute = self._compute(prefill)
        return [decode, prefill, await self._measure(f"{s.n_rows} streams", s.n_rows, 8, s.n_tokens)]

    def _compute(self, prefill: Measured) -> Compute | None:
        """None where the backend can't say what would be possible."""
        bounds = getattr(self.backend.inner, "compute_bounds", None)
        if bounds is None:
            return None
        ops, ceiling, peak = bounds()
        return Compute(prefill.tokens_per_s * ops / 1e9, ceiling / 1e9, peak / 1e9)

    @property
    def backend(self) -> TimedBackend:
        assert self._timed is not None
        return self._timed

    async def _measure(self, name: str, n_rows: int, n_prompt: int, n_tokens: int) -> Measured:
        rates, hosts, reads, shares, drafted, accepted = [], [], [], [], 0, 0
        await self._round(n_rows, n_prompt, min(4, n_tokens), 0)  # warms, isn't counted
        for turn in range(1, self._sizes.n_rounds + 1):
            self.backend.reset()
            began = time.perf_counter()
            ends = await self._round(n_rows, n_prompt, n_tokens, turn)
            wall_s = time.perf_counter() - began
            n_steps = self.backend.n_steps
            rates.append((n_prompt if n_tokens == 1 else n_rows * n_tokens) / wall_s)
            hosts.append(1e6 * (wall_s - self.backend.native_s) / n_steps)
            read_bytes = self.backend.info.step_bytes or self.backend.info.weight_bytes
            reads.append(read_bytes * n_steps / wall_s if n_tokens > 1 else 0.0)
            measure = getattr(self.backend.inner, "read_bandwidth", None)
            shares.append(reads[-1] / measure() if measure else 0.0)
            drafted += sum(e.finish.usage.drafted_tokens for e in ends if e.finish)
            accepted += sum(e.finish.usage.accepted_tokens for e in ends if e.finish)
        return Measured(
            name,
            statistics.median(rates),
            min(rates),
            max(rates),
            statistics.median(reads) / 1e9,
            statistics.median(shares),
            statistics.median(hosts),
            drafted,
            accepted,
        )

    async def _round(self, n_rows: int, n_prompt: int, n_tokens: int, turn: int) -> list[RowDelta]:
        return list(await asyncio.gather(*(self._one(r, n_prompt, n_tokens, turn) for r in range(n_rows))))

    async def _one(self, row: int, n_prompt: int, n_tokens: int, turn: int) -> RowDelta:
        """One request of random ids, sampled: no text repeats, neither the prompt's nor the answer's."""
        last: RowDelta | None = None
        async for delta in await self.engine.submit(self.request(turn * 1000 + row, n_prompt, n_tokens)):
            last = delta
        assert last is not None
        return last

    def request(self, seed: int, n_prompt: int, n_tokens: int) -> GenerateRequest:
        ids = np.random.default_rng((seed, n_prompt)).integers(100, self.engine.info.vocab_size - 100, n_prompt)
        return GenerateRequest(
            key=self.engine.new_key(),
            ids=pack_ids(ids.tolist()),
            plan=OutputPlan(max_tokens=n_tokens),
            sampling=SamplingParams(temperature=1.0, top_k=40, seed=seed),
            options=GenerationOptions(speculative=None if self._sizes.speculative else False),
        )
