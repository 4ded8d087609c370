"""A mask thread that never comes back: its row fails alone, the next one serves, and past the second a process does."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import Any

import pytest
from imp_server.core import GrammarPlan, GrammarTooCostly, ImpError, OutputPlan, SamplingParams
from imp_server.engine import child
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.client.process import ProcessEngine
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.messages import Rejected, RequestFailed
from imp_server.grammar.check import check_schema

from tests.engine.test_constrained import FAKE, IDS, SCHEMA, Fake, text_of
from tests.engine.tiny_engine import END, Tiny, ask, request, vocabulary, with_engine


class Endless(Fake):
    """Its masks keep the thread, and whatever all grammars share, for good."""

    def __init__(self, begun: threading.Event, door: threading.Event) -> None:
        super().__init__()
        self.begun, self.door = begun, door

    def mask(self, state: int) -> Any:
        self.begun.set()
        self.door.wait(30)
        return super().mask(state)


class Stuck:
    """Makes grammars; those with the digest of FAKE get stuck."""

    def __init__(self) -> None:
        self.real = Grammars(vocabulary())
        self.begun, self.door = threading.Event(), threading.Event()

    def __call__(self, plan: GrammarPlan) -> Any:
        return Endless(self.begun, self.door) if plan.digest.startswith(FAKE.digest) else self.real(plan)

    def abandon(self) -> None:
        self.real.abandon()


def constrained(engine: InlineEngine, grammar: GrammarPlan, seed: int = 0, **fields: Any) -> Any:
    plan = OutputPlan(end_ids=(END,), max_tokens=120, grammar=grammar)
    sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=seed)
    return request(engine, IDS[:20], plan=plan, sampling=sampling, **fields)


async def get_stuck(
    engine: InlineEngine, tiny: Tiny, make: Stuck, digest: str
) -> tuple[ImpError, RequestFailed | None]:
    """The error of the request on which the thread gets stuck, and what there is to say if none is left."""
    make.begun.clear()
    grammar = GrammarPlan(FAKE.kind, digest, FAKE.payload)
    asked = asyncio.ensure_future(ask(engine, constrained(engine, grammar)))
    assert await asyncio.to_thread(make.begun.wait, 10)
    await asyncio.sleep(0.05)
    assert tiny.loop is not None
    last = tiny.loop.requests.find_stuck(0.01)
    with pytest.raises(ImpError) as caught:
        await asyncio.wait_for(asked, 10)
    return caught.value, last


@pytest.mark.dead_end
def test_its_row_fails_alone_and_others_go_on() -> None:
    make = Stuck()

    async def body(engine: InlineEngine, tiny: Tiny) -> None:
        try:
            for n in (1, 2, 3):
                error, last = await get_stuck(engine, tiny, make, f"{FAKE.digest}{n}")
                assert "too much work" in error.message
                assert (last is None) == (n < 3)
                (free,) = await ask(engine, request(engine, IDS[:9], 20))
                assert len(free.ids) == 20
                if n == 3:
                    assert last is not None and last.is_too_costly
                    return
                (answer,) = await ask(engine, constrained(engine, check_schema(SCHEMA), seed=n))
                json.loads(text_of(answer.ids))
        finally:
            make.door.set()

    with_engine(body, make_constraint=make)


@pytest.mark.dead_end
def test_rows_on_what_it_held_fail_and_say_so() -> None:
    """A row of another grammar, begun before, needs what the stuck thread holds: it must not wait for that for ever."""
    make = Stuck()

    async def body(engine: InlineEngine, tiny: Tiny) -> None:
        try:
            begun = await engine.submit(constrained(engine, check_schema({"type": "array", "minItems": 40})))
            await anext(aiter(begun))
            await get_stuck(engine, tiny, make, f"{FAKE.digest}1")

            async def rest() -> int:
                return sum([len(delta.ids) // 4 async for delta in begun])

            with pytest.raises(ImpError, match="the engine goes on"):
                await asyncio.wait_for(rest(), 10)
            (answer,) = await ask(engine, constrained(engine, check_schema(SCHEMA)))
            json.loads(text_of(answer.ids))
        finally:
            make.door.set()

    with_engine(body, make_constraint=make)


def test_past_the_second_the_process_ends_and_says_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    last = RequestFailed(7, 400, "grammar_unsupported", "too much", is_too_costly=True)

    class Handler:
        def __init__(self, found: RequestFailed | None) -> None:
            self.found = found

        def find_stuck(self, stuck_s: float) -> RequestFailed | None:
            assert stuck_s == 30.0
            return self.found

    class Loop:
        def __init__(self, found: RequestFailed | None) -> None:
            self.requests = Handler(found)

    class Outbox:
        def put(self, message: Any) -> None:
            said.append(message)

        def close(self) -> None:
            said.append("sent")

    monkeypatch.setattr(os, "_exit", said.append)
    child._leave_if_lost(Loop(None), Outbox(), 30.0)  # type: ignore[arg-type]
    assert said == []
    child._leave_if_lost(Loop(last), Outbox(), 30.0)  # type: ignore[arg-type]
    assert said == [last, "sent", child.EXIT_STUCK]


def test_its_client_is_told_that_the_grammar_is_too_costly() -> None:
    """What remembers it is the client's side (api/checks.py), so it outlives the process."""

    async def body() -> None:
        from imp_server.config import Config

        engine = ProcessEngine("nowhere", "m", Config())
        engine._state = "ready"
        for submitted in (False, True):
            wanted = constrained(engine, FAKE)  # type: ignore[arg-type]
            asked = asyncio.ensure_future(engine.submit(wanted))
            await asyncio.sleep(0)
            kind = Rejected if submitted else RequestFailed
            engine._take(kind(wanted.key, 400, "grammar_unsupported", "too much", is_too_costly=True))
            with pytest.raises(GrammarTooCostly, match="too much"):
                await asked

    asyncio.run(body())
