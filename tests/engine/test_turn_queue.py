"""Questions of many rows on one thread: each gets its turns, none waits for another to be done."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import defaultdict
from concurrent.futures import Future
from functools import partial
from threading import Condition, Event
from typing import Any

import pytest
from imp_server.core import GrammarPlan, GrammarTooCostly, OutputPlan, SamplingParams
from imp_server.core.limits import Limit
from imp_server.core.turns import OutOfTurn, kept, spend, turn
from imp_server.engine.child import SWITCH_INTERVAL_S
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.constrained import masking, turn_queue
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.constrained.heap_freezer import EVERY, HeapFreezer
from imp_server.engine.constrained.turn_queue import LONG_TURN, SLICE, TURN, TurnQueue
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
    others = [queue.submit(partial(order.append, f"other {i}")) for i in range(2)]
    ready.set()
    assert first.result(20) == "done" and all(other.done() for other in others)
    assert order == ["long", "long", "other 0", "long", "other 1", *["long"] * 3], "its further turns are twice as long"
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
                queue.submit(partial(order.append, f"new {i}"))
        if n_turns[name] < 6:
            kept()
            spend(1000)

    jobs = [queue.submit(partial(hard, name)) for name in n_turns]
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


def test_who_is_cancelled_gets_no_turn() -> None:
    queue = TurnQueue("test", turn_units=10)
    ready = Event()
    queue.submit(lambda: ready.wait(20))
    called: list[int] = []
    waiting = queue.submit(lambda: called.append(1))
    assert waiting.cancel()
    ready.set()
    queue.submit(lambda: None).result(20)
    assert not called
    queue.stop()


def drain(queue: TurnQueue, jobs: list[Future[Any]]) -> None:
    for job in jobs:
        job.result(20)
    queue.stop()


class Work:
    """Questions of so many turns each; every turn takes a millisecond of pretended time."""

    def __init__(self, **options: Any) -> None:
        self.now_s = 0.0
        self.order: list[str] = []
        self.door = Event()
        self.queue = TurnQueue("test", turn_units=100, clock=lambda: self.now_s, **options)
        self.jobs: list[Future[Any]] = [self.queue.submit(lambda: self.door.wait(20))]

    def ask(self, name: str, n_turns: int, owner: str) -> Future[str]:
        done = 0

        def answer() -> str:
            nonlocal done
            self.order.append(name)
            self.now_s += 0.001
            done += 1
            if done < n_turns:
                kept()
                spend(1000)
            return name

        job = self.queue.submit(answer, owner)
        self.jobs.append(job)
        return job

    def go(self) -> list[str]:
        self.door.set()
        drain(self.queue, self.jobs)
        return self.order


def test_owners_share_alike_however_much_each_asks() -> None:
    work = Work()
    for i in range(40):
        work.ask(f"hog {i}", 5, "hog")
    work.ask("mine", 5, "me")
    order = work.go()
    at = [i for i, name in enumerate(order) if name == "mine"]
    assert len(at) == 5 and at[-1] <= 11, f"every other turn is mine: {order[:12]}"
    assert order.count("hog 0") == 5


def test_a_flood_of_new_questions_starves_nobody_who_has_sunk() -> None:
    """New ones that sink once would keep everything longer from its turns, if levels alone counted."""
    work = Work()
    work.ask("mine", 8, "me")
    for i in range(100):
        work.ask(f"flood {i}", 2, f"owner {i % 4}")
    order = work.go()
    assert max(i for i, name in enumerate(order) if name == "mine") < 40


def test_who_comes_back_is_treated_as_who_waits() -> None:
    """Neither has he saved up turns, nor does he pay for what he had while nobody else wanted any."""
    work = Work()
    first = work.ask("early", 50, "early")
    work.door.set()
    first.result(20)
    work.door.clear()
    work.jobs.append(work.queue.submit(lambda: work.door.wait(20)))
    work.order.clear()
    for owner in ("early", "late"):
        for i in range(3):
            work.ask(f"{owner} {i}", 3, owner)
    order = work.go()
    early = [name.startswith("early") for name in order]
    assert abs(sum(early[:8]) - 4) <= 1


def test_a_new_question_gets_a_small_slice_at_once() -> None:
    queue = TurnQueue("test")
    units: list[int] = []

    def endless() -> None:
        used = 0
        try:
            while True:
                spend()
                used += 1
        finally:
            units.append(used)

    job = queue.submit(endless)
    while len(units) < 4:
        time.sleep(0.001)
    job.cancel()
    queue.stop()
    assert units[:2] == [SLICE, TURN] and units[2] >= LONG_TURN


def test_sunk_work_rests_while_others_run_and_new_work_does_not() -> None:
    took = {}
    for rests in (False, True):
        queue = TurnQueue("test", turn_units=10, rests=partial(bool, rests))
        n_turns = 0

        def sunk() -> None:
            nonlocal n_turns
            n_turns += 1
            time.sleep(0.01)
            if n_turns < 12:
                kept()
                spend(1000)

        begun = time.monotonic()
        job = queue.submit(sunk)
        while n_turns < 3:
            time.sleep(0.001)
        asked = time.monotonic()
        queue.submit(lambda: None).result(20)
        assert time.monotonic() - asked < 0.05
        job.result(20)
        took[rests] = time.monotonic() - begun
        queue.stop()
    assert took[True] > 1.2 * took[False]


class Beside:
    """A queue beside rows of others, in pretended time: it goes on while the thread works, and while it rests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.now_s = 0.0
        self.had_s: defaultdict[str, float] = defaultdict(float)
        self.is_over = Event()
        beside = self

        class Rested(Condition):
            def wait(self, timeout: float | None = None) -> bool:
                if timeout is None:
                    return super().wait(0.001)
                beside.now_s += timeout
                return True

        monkeypatch.setattr(turn_queue, "Condition", Rested)
        self.queue = TurnQueue("test", turn_units=10, rests=lambda: True, clock=lambda: self.now_s, **options)

    def work(self, owner: str, seconds: float) -> None:
        self.now_s += seconds
        self.had_s[owner] += seconds
        if self.now_s > 60.0:
            self.is_over.set()

    def shares(self) -> dict[str, float]:
        assert self.is_over.wait(20)
        self.queue.stop()
        return {owner: had_s / self.now_s for owner, had_s in self.had_s.items()}


def test_sunk_work_of_all_owners_together_has_a_thirteenth_of_the_time_beside_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = Beside(monkeypatch)

    def endless(owner: str) -> None:
        if beside.is_over.is_set():
            return
        beside.work(owner, 0.01)
        kept()
        spend(10_000)

    for owner in "abcdefgh":
        beside.queue.submit(partial(endless, owner), owner)
    assert 0.07 < sum(beside.shares().values()) < 0.085


@pytest.mark.parametrize("are_new", [False, True])
def test_rows_whose_every_mask_is_a_little_dear_sink_too(monkeypatch: pytest.MonkeyPatch, are_new: bool) -> None:
    """Each question is done within its slice, and the next one comes at once; from owners of many, or from new ones."""
    beside = Beside(monkeypatch, running=lambda: {"others"})

    def ask_one(row: int, number: int) -> None:
        owner = f"{row}" if not are_new else f"{row} {number // 20}"

        def answer() -> None:
            beside.work("dear", 0.002)
            if not beside.is_over.is_set():
                ask_one(row, number + 1)

        beside.queue.submit(answer, owner)

    for row in range(8):
        ask_one(row, 0)
    assert 0.1 < beside.shares()["dear"] < 1 / 13 + turn_queue.SHARED[0] + 0.01


def test_who_asks_little_is_answered_at_once_beside_those_who_ask_much(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside(monkeypatch, running=lambda: {"others"})
    waited_s: list[float] = []

    def dear(owner: str) -> None:
        if beside.is_over.is_set():
            return
        beside.work(owner, 0.002)
        if len(waited_s) < 400 and int(beside.now_s * 10) > len(waited_s):
            asked_s = beside.now_s
            waited_s.append(60.0)
            at = len(waited_s) - 1
            beside.queue.submit(lambda: polite(at, asked_s), "polite")
        beside.queue.submit(lambda: dear(owner), owner)

    def polite(at: int, asked_s: float) -> None:
        waited_s[at] = beside.now_s - asked_s
        beside.work("polite", 0.0003)

    for owner in "abcdefgh":
        beside.queue.submit(partial(dear, owner), owner)
    assert beside.shares()["polite"] > 0
    assert len(waited_s) > 300 and max(waited_s[20:300]) < 0.02, "behind the first rush"


@pytest.mark.parametrize(("cost_s", "share"), [(0.0006, 0.95), (0.006, 0.35)])
def test_tokens_earn_what_common_masks_cost(monkeypatch: pytest.MonkeyPatch, cost_s: float, share: float) -> None:
    """Rows that take a token for each mask have all their masks at once, unless these are dear."""
    beside = Beside(monkeypatch, running=lambda: {"others"})

    def mask() -> None:
        beside.work("row", cost_s)
        beside.queue.earn("row")
        if not beside.is_over.is_set():
            beside.queue.submit(mask, "row")

    beside.queue.submit(mask, "row")
    had = beside.shares()["row"]
    assert had > share if cost_s < turn_queue.TOKEN_S else had < share


def test_who_used_up_his_own_share_is_not_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all rows ask much, resting between their questions would help nobody."""
    beside = Beside(monkeypatch, running=lambda: {"a", "b"})

    def small(owner: str) -> None:
        beside.work(owner, 0.002)
        if not beside.is_over.is_set():
            beside.queue.submit(lambda: small(owner), owner)

    for owner in "ab":
        beside.queue.submit(partial(small, owner), owner)
    assert sum(beside.shares().values()) > 0.9


def test_an_owner_alone_pays_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows hold up nobody but each other."""
    beside = Beside(monkeypatch, running=lambda: {"alone"})

    def small() -> None:
        beside.work("alone", 0.002)
        if not beside.is_over.is_set():
            beside.queue.submit(small, "alone")

    beside.queue.submit(small, "alone")
    assert beside.shares()["alone"] > 0.99


def test_a_thread_that_never_comes_back_is_replaced_twice(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    queue = TurnQueue("imp-mask", clock=lambda: now_s)
    doors = [Event() for _ in range(3)]
    stuck = []
    for i, door in enumerate(doors):
        begun = Event()

        def never(begun: Event = begun, door: Event = door) -> str:
            begun.set()
            door.wait(20)
            return "too late"

        stuck.append(queue.submit(never, about=10 + i))
        assert begun.wait(5)
        now_s += 29
        assert queue.find_stuck(30) is None and queue.find_stuck(0) is None
        now_s += 2
        assert queue.find_stuck(30) == (10 + i, i < 2)
        with pytest.raises(GrammarTooCostly):
            stuck[-1].result(0)
        if i < 2:
            assert queue.submit(lambda: "served").result(5) == "served"
            assert queue.find_stuck(30) is None
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[1] for line in lines] == ["imp-mask", "imp-mask-2", "imp-mask-3"]
    assert "(2 of 2)" in lines[1] and "none is left" in lines[2]
    waiting = queue.submit(lambda: "later")
    for door in doors:
        door.set()
    assert waiting.result(5) == "later", "the last one came back"
    queue.stop()


class Endless(Fake):
    """Its masks are never done, though each turn keeps something. Units are all that it takes, so others wait for as
    many of them on any machine, and for hardly any time."""

    def mask(self, state: int) -> Any:
        while True:
            spend(50)
            kept()


def test_an_endless_mask_stalls_neither_free_nor_constrained_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of other grammars, new ones among them, are answered while the hostile row's mask is still being made."""
    monkeypatch.setattr(masking, "QUESTION", Limit(10**18, 10**18))
    real = Grammars(vocabulary())
    schemas = [SCHEMA, {"type": "array", "items": {"enum": ["red", 7]}, "minItems": 2, "maxItems": 3}]

    def make(plan: GrammarPlan) -> Any:
        return Endless() if plan.digest == FAKE.digest else real(plan)

    async def body(engine: InlineEngine, _: Tiny) -> None:
        hostile = asyncio.ensure_future(
            ask(engine, request(engine, IDS[:20], plan=OutputPlan(end_ids=(END,), max_tokens=9, grammar=FAKE)))
        )
        for seed, schema in enumerate(schemas):
            plan = OutputPlan(end_ids=(END,), max_tokens=120, steers=True, grammar=check_schema(schema))
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

    def keep_many() -> None:
        for _ in range(EVERY):
            kept()

    try:
        queue.submit(kept).result(20)
        assert queue.submit(gc.get_freeze_count).result(20) == 0
        queue.submit(keep_many).result(20)
        assert queue.submit(gc.get_freeze_count).result(20) > 1000
    finally:
        gc.unfreeze()
        queue.stop()
