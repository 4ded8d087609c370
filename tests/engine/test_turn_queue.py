"""Questions of many rows on one thread: each gets its turns, none waits for another to be done."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from threading import Event
from typing import Any

import pytest
from imp_server.core import GrammarPlan, GrammarTooCostly, OutputPlan, SamplingParams
from imp_server.core.turns import OutOfTurn, kept, spend, turn
from imp_server.engine.child import SWITCH_INTERVAL_S
from imp_server.engine.heap_freezer import EVERY, HeapFreezer
from imp_server.engine.inline import InlineEngine
from imp_server.engine.matching import Grammars
from imp_server.engine.turn_queue import TurnQueue
from imp_server.grammar.check import check_schema

from tests.engine.test_constrained import FAKE, IDS, SCHEMA, Fake, text_of
from tests.engine.tiny_engine import END, Tiny, ask, request, vocabulary, with_engine


def test_a_turn_within_a_turn_takes_from_it() -> None:
    with turn(10):
        spend(3)
        with pytest.raises(OutOfTurn), turn(5):
            spend(6)
        spend(1)
        with pytest.raises(OutOfTurn):
            spend(1)
    spend(1_000_000)


def test_a_long_question_lets_others_have_their_turns() -> None:
    queue = TurnQueue("test", turn_units=100)
    order: list[str] = []
    ready = Event()
    steps = 0

    def long() -> str:
        nonlocal steps
        ready.wait(20)
        order.append("long")
        while steps < 10:
            spend(90)
            steps += 1
            kept()
        return "done"

    first = queue.submit(long)
    others = [queue.submit(lambda i=i: order.append(f"other {i}")) for i in range(2)]
    ready.set()
    assert first.result(20) == "done" and all(other.done() for other in others)
    assert order == ["long", "other 0", "long", "other 1", *["long"] * 8]
    queue.stop()


def test_a_new_question_waits_for_one_turn_of_hard_ones_and_these_are_never_starved() -> None:
    queue = TurnQueue("test", turn_units=100)
    order: list[str] = []
    n_turns = dict.fromkeys("abcdefgh", 0)

    def hard(name: str) -> None:
        order.append(name)
        n_turns[name] += 1
        if n_turns[name] == 3:
            for i in range(3 * (name == "d")):
                queue.submit(lambda i=i: order.append(f"new {i}"))
        if n_turns[name] < 6:
            kept()
            spend(200)

    jobs = [queue.submit(lambda name=name: hard(name)) for name in n_turns]
    for job in jobs:
        job.result(20)
    at = order.index("new 0")
    assert order[at : at + 5 : 2] == ["new 0", "new 1", "new 2"]
    assert order[at - 1] == "d" and order[at + 1] == "e" and order[at + 3] == "f"
    assert set(n_turns.values()) == {6}
    queue.stop()


def test_turns_grow_where_nothing_is_kept() -> None:
    queue = TurnQueue("test", turn_units=100)
    n_tries = 0

    def whole() -> str:
        nonlocal n_tries
        n_tries += 1
        spend(700)
        return "done"

    assert queue.submit(whole).result(20) == "done"
    assert n_tries == 4
    queue.stop()


def test_who_never_gets_done_is_refused_and_who_is_cancelled_gets_no_turn() -> None:
    queue = TurnQueue("test", turn_units=10, most=200)

    def endless() -> None:
        while True:
            kept()
            spend()

    with pytest.raises(GrammarTooCostly):
        queue.submit(endless).result(20)
    ready = Event()
    queue.submit(lambda: ready.wait(20))
    called: list[int] = []
    waiting = queue.submit(lambda: called.append(1))
    assert waiting.cancel()
    ready.set()
    queue.submit(lambda: None).result(20)
    assert not called
    queue.stop()


class Endless(Fake):
    """Its masks are never done, though each turn keeps something."""

    def mask(self, state: int) -> Any:
        while True:
            for _ in range(50):
                sum(range(400))  # what a unit stands for
                spend()
            kept()


def test_an_endless_mask_stalls_neither_free_nor_constrained_rows() -> None:
    """Rows of other grammars, new ones among them, are answered while the hostile row's mask is still being made."""
    real = Grammars(vocabulary())
    schemas = [SCHEMA, {"type": "array", "items": {"enum": ["red", 7]}, "minItems": 2, "maxItems": 3}]

    def make(plan: GrammarPlan) -> Any:
        return Endless() if plan.digest == FAKE.digest else real(plan)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        hostile = asyncio.ensure_future(
            ask(engine, request(engine, IDS[:20], plan=OutputPlan(end_ids=(END,), max_tokens=9, grammar=FAKE)))
        )
        for seed, schema in enumerate(schemas):
            plan = OutputPlan(end_ids=(END,), max_tokens=120, grammar=check_schema(schema))
            sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=seed)
            (answer,) = await ask(engine, request(engine, IDS[:20], plan=plan, sampling=sampling))
            json.loads(text_of(answer.ids))
        (free,) = await ask(engine, request(engine, IDS[:9], 20))
        assert len(free.ids) == 20 and not hostile.done()
        hostile.cancel()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as the engine's process does
    try:
        with_engine(body, make_constraint=make)
    finally:
        sys.setswitchinterval(interval)


def test_what_is_kept_is_taken_out_of_the_collectors_way() -> None:
    settled = HeapFreezer()
    queue = TurnQueue("test", between=settled)
    gc.unfreeze()
    try:
        queue.submit(kept).result(20)
        assert queue.submit(gc.get_freeze_count).result(20) == 0
        queue.submit(lambda: [kept() for _ in range(EVERY)]).result(20)
        assert queue.submit(gc.get_freeze_count).result(20) > 1000
    finally:
        gc.unfreeze()
        queue.stop()
