"""Closing a session: its pins go, those that its running turns would make too, and nobody else's."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import numpy as np
from imp_server.core import CacheMarks, GrammarPlan, OutputPlan
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.constrained.constraint import Constraint
from imp_server.engine.constrained.grammars import Grammars
from imp_server.grammar.check import check_schema
from imp_server.schedule.cache import PrefixCache

from tests.engine.tiny_engine import END, Tiny, ask, request, vocabulary, with_engine

IDS = np.random.default_rng(2).integers(0, 94, 200).tolist()
PINNING = partial(PrefixCache, pin_budget=0.5)


def turn(engine: InlineEngine, session_id: str, first: int = 0, n_output: int = 2) -> Any:
    return request(engine, IDS[first : first + 40], n_output, cache=CacheMarks(session_id=session_id))


async def n_pinned(engine: InlineEngine) -> float:
    counters, _ = await engine.stats()
    return counters["prefix_cache_pinned_blocks"]


def test_closing_releases_the_sessions_blocks_once() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, turn(engine, "a"))
        await ask(engine, turn(engine, "b", first=100))
        assert await n_pinned(engine) == 4
        assert await engine.close_session("a") == 2
        assert await n_pinned(engine) == 2
        assert await engine.close_session("a") == 0
        assert await engine.close_session("never") == 0
        assert await engine.close_session("b") == 2

    with_engine(body, make_index=PINNING)


def test_blocks_that_two_sessions_share_are_released_with_the_second() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, turn(engine, "a"))
        await ask(engine, turn(engine, "b"))
        assert await engine.close_session("a") == 0
        assert await engine.close_session("b") == 2

    with_engine(body, make_index=PINNING)


def test_a_turn_that_runs_when_its_session_is_closed_pins_nothing() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        running = await engine.submit(turn(engine, "a", n_output=60))
        await anext(aiter(running))
        assert await engine.close_session("a") == 0
        async for _delta in running:
            pass
        assert await n_pinned(engine) == 0
        await ask(engine, turn(engine, "a"))
        assert await n_pinned(engine) > 0, "a later turn opens the session again"

    with_engine(body, make_index=PINNING)


def test_a_turn_whose_grammar_is_being_started_when_its_session_is_closed_pins_nothing() -> None:
    may_start, make = threading.Event(), Grammars(vocabulary())

    def start_late(plan: GrammarPlan) -> Constraint:
        assert may_start.wait(20)
        return make(plan)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        plan = OutputPlan(end_ids=(END,), max_tokens=20, grammar=check_schema({"enum": ["a", "b"]}))
        marks = CacheMarks(session_id="a")
        running = asyncio.ensure_future(ask(engine, request(engine, IDS[:40], plan=plan, cache=marks)))
        await asyncio.sleep(0.05)
        assert await engine.close_session("a") == 0
        may_start.set()
        await running
        assert await n_pinned(engine) == 0
        await ask(engine, turn(engine, "a"))
        assert await n_pinned(engine) == 2, "what comes after the close opens the session again"

    with_engine(body, make_index=PINNING, make_constraint=start_late)


def test_without_a_cache_there_is_nothing_to_close() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, turn(engine, "a"))
        assert await engine.close_session("a") == 0

    with_engine(body)
