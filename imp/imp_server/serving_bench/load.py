"""Who asks when: so many clients one request after another (closed), or requests that arrive by chance (open)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from imp_server.serving_bench.exchange import BenchTarget, Timing
from imp_server.serving_bench.shapes import SHAPES


@dataclass(frozen=True, slots=True)
class Plan:
    """One of `clients` (closed loop) and `rate` (requests per second, open loop: Poisson arrivals) is in force."""

    shapes: tuple[str, ...]
    n_requests: int
    max_tokens: int
    clients: int = 0
    rate: float = 0.0
    seed: int = 0
    temperature: float | None = None
    """Of generated answers; None = the server's own, which differs from server to server."""


async def run(target: BenchTarget, plan: Plan, on_end: Callable[[Timing], None] = lambda _: None) -> list[Timing]:
    """Every request's timing, in the order of asking. What is asked depends on the seed alone."""
    draw = random.Random(plan.seed)
    asked = [
        (shape, random.Random(draw.random())) for shape in (draw.choice(plan.shapes) for _ in range(plan.n_requests))
    ]
    timings: list[Timing] = []
    begin = time.perf_counter()

    async def one(shape: str, own: random.Random) -> None:
        request = SHAPES[shape](own, plan.max_tokens)
        timing = Timing(shape, time.perf_counter() - begin)
        timings.append(timing)
        body = request.body
        if plan.temperature is not None and "messages" in body:
            body = {**body, "temperature": plan.temperature}
        await target.ask(request.path, body, timing)
        on_end(timing)

    if plan.rate > 0:
        async with asyncio.TaskGroup() as group:
            for shape, own in asked:
                group.create_task(one(shape, own))
                await asyncio.sleep(draw.expovariate(plan.rate))
    else:
        waiting = iter(asked)

        async def client() -> None:
            for shape, own in waiting:
                await one(shape, own)

        async with asyncio.TaskGroup() as group:
            for _ in range(plan.clients):
                group.create_task(client())
    return timings
