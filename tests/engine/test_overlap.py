"""The overlapped loop against the plain one, on a device with a queue: launched steps run when they are collected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, product
from typing import Any

import pytest
from imp_server.backends.base import KvSpec, Pending, Step
from imp_server.core import GenerateRequest, OutputPlan, SamplingParams, pack_ids
from imp_server.decode.ngram import NgramDrafter
from imp_server.engine.messages import Cancel, Submit
from imp_server.engine.overlapped import OverlappedLoop
from imp_server.schedule.rows import PlanBuilder, Row
from imp_server.schedule.scheduler import Scheduler

from tests.asked import made
from tests.engine.any_request import plans, words
from tests.engine.by_chance import Engine
from tests.engine.hash_model import HashModel
from tests.engine.test_time_changes_nothing import EAGER, grouped, told
from tests.engine.tiny_engine import Answer

PROMPT = [5, 9, 31, 60, 7, 7, 12, 44, 2, 80, 33]
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=3)


class Device(HashModel):
    """Owner of what happened, in order: launches and runs by number of the step."""

    def __init__(self, windows: Sequence[int] = (0,), **fields: Any) -> None:
        super().__init__(grouped(windows), **fields)
        self.events: list[tuple[str, int]] = []
        self.n_launched = 0

    def launch(self, step: Step) -> Pending:
        number = self.n_launched
        self.n_launched += 1
        self.events.append(("launch", number))
        pending = super().launch(step)
        run = pending.run  # type: ignore[attr-defined]

        def told_run() -> None:
            self.events.append(("run", number))
            run()

        self._queue._waiting[-1] = told_run
        return pending


def engine(device: HashModel, *, overlap: bool = True, n_blocks: int = 64, **fields: Any) -> Engine:
    n_groups = len(device.architecture.cache_groups)
    return Engine(device, words(), n_blocks=[n_blocks] * n_groups, context=96, overlap=overlap, **fields)


def request(key: int, n_tokens: int = 20, sampling: SamplingParams = GREEDY, **fields: Any) -> GenerateRequest:
    plan = {"max_tokens": n_tokens} | fields.pop("plan", {})
    prompt = fields.pop("prompt", PROMPT)
    return made(GenerateRequest, key, pack_ids(prompt), OutputPlan(**plan), sampling, **fields)


def answers(wanted: Sequence[GenerateRequest], *, overlap: bool, **fields: Any) -> tuple[Any, dict[str, float]]:
    device = Device()
    own = engine(device, overlap=overlap, **fields)
    found = own.run(wanted)
    assert not device.faults
    counters, _ = own.loop.stats()
    own.close()
    return {key: [told(one) for one in choices] for key, choices in found.items()}, dict(counters)


def test_how_long_the_device_waited_for_the_host_is_counted_by_what_it_waited_for() -> None:
    """A step with drafts is launched once the one before was read; others run ahead."""

    def exposed(prompt: list[int], **fields: Any) -> dict[str, float]:
        own = engine(Device(), **fields)
        ticks = count()
        own.loop._clock = lambda: float(next(ticks))
        own.run([request(1, prompt=prompt)])
        counters = dict(own.loop.stats()[0])
        own.close()
        return counters

    ahead = exposed(PROMPT)
    assert ahead['overlap_exposed_us_total{work="drafts"}'] == 0
    drafted = exposed(PROMPT * 4, drafters=[NgramDrafter(EAGER)], gates=False)
    assert drafted["spec_drafted_total"] > 0 and drafted['overlap_exposed_us_total{work="drafts"}'] >= 1e6
    assert not any("exposed" in name for name in answers([request(1)], overlap=False)[1])


def steps(own: Engine, wanted: Sequence[GenerateRequest]) -> Iterator[OverlappedLoop]:
    """The loop after each of its steps, until all is done."""
    own.answers |= {each.key: [Answer() for _ in range(each.options.n)] for each in wanted}
    own._inbox += [Submit(each) for each in wanted]
    with own._in_charge():
        for _ in range(500):
            own._turn()
            assert isinstance(own.loop, OverlappedLoop)
            yield own.loop
            if not (own.loop.has_work or own._inbox or own.loop.requests._starting):
                return
    raise AssertionError("the work doesn't end")


# --- the order -----------------------------------------------------------------------------------


def test_a_step_is_launched_before_the_one_in_front_has_run() -> None:
    device = Device()
    own = engine(device)
    own.run([request(1, 6)])
    order = device.events
    assert order[:4] == [("launch", 0), ("launch", 1), ("run", 0), ("launch", 2)]
    assert [n for what, n in order if what == "run"] == list(range(device.n_launched)), "each once, in order"
    assert device.n_launched == 6, "none behind the last token, which is known to be the last"
    counters, _ = own.loop.stats()
    assert counters["overlap_ahead_total"] == 5 and counters["overlap_void_chunks_total"] == 0


def test_rows_that_need_their_token_hold_nobody() -> None:
    """One of two rows is under mirostat, whose state the host keeps."""
    mirostat = SamplingParams(temperature=1.0, mirostat=2, mirostat_tau=3.0, seed=5)
    wanted = [request(1, 24), request(2, 24, mirostat)]
    ways = [answers(wanted, overlap=overlap) for overlap in (False, True)]
    assert ways[0][0] == ways[1][0]
    assert ways[1][1]['overlap_waits_total{reason="host_sampling"}'] > 0


# --- in flight -----------------------------------------------------------------------------------


def alone(wanted: GenerateRequest) -> Any:
    return answers([wanted], overlap=False)[0][wanted.key]


@pytest.mark.parametrize("n_steps", [1, 2, 5])
def test_abort_in_flight(n_steps: int) -> None:
    """The row's blocks are another's at once, while a step that writes to them is under way."""
    device = Device((0, 20))
    own = engine(device, n_blocks=8, n_rows=1)
    first, second = request(1, 60), request(2, 30, SAMPLED, prompt=PROMPT[::-1] * 3)
    for n, loop in enumerate(steps(own, [first, second])):
        if n == n_steps:
            assert loop._under_way, "there is something to be aborted"
            own._inbox.append(Cancel(1))
    assert told(own.answers[2][0])[0] == alone(second)[0][0] and not device.faults
    assert own.loop.stats()[0]["overlap_void_chunks_total"] >= 1
    assert not own.scheduler.idle_fault()


@pytest.mark.parametrize("plan", [{"end_ids": tuple(range(0, 97, 7))}, {"stop": (b"a", b"q", b"7")}])
def test_stop_in_flight(plan: dict[str, Any]) -> None:
    wanted = [request(n, 40, SamplingParams(temperature=2.0, seed=n), plan=plan) for n in range(1, 6)]
    plain, overlapped = (answers(wanted, overlap=overlap, keeps=True) for overlap in (False, True))
    assert plain[0] == overlapped[0]
    assert any(one[0][1] == "stop" for one in plain[0].values())
    assert overlapped[1]["overlap_void_chunks_total"] > 0, "a step was under way behind the end"


def test_late_masks() -> None:
    """The mask behind a token is asked for while the row's next step is under way, and may come too late for it."""
    plan = next(plan for plan in plans() if "grammar" in plan)
    wanted = [request(n, 40, SamplingParams(temperature=1.0, seed=n), plan=plan) for n in range(1, 4)]
    plain, overlapped = (answers(wanted, overlap=overlap) for overlap in (False, True))
    assert plain[0] == overlapped[0] and overlapped[1]["overlap_ahead_total"] > 0
    device = Device()
    own = engine(device)
    work, own.jobs.work = own.jobs.work, lambda *_: None  # type: ignore[method-assign]
    for n, _ in enumerate(steps(own, wanted)):
        if n % 3 == 2:
            work()
    assert {key: [told(one) for one in choices] for key, choices in own.answers.items()} == plain[0]
    assert not device.faults


def test_preemption_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row loses its memory while a step that computes for it is under way."""
    in_flight = []

    def note(self: Scheduler, row: Row, planned: PlanBuilder) -> None:
        in_flight.append(row.is_under_way)
        preempt(self, row, planned)

    preempt = Scheduler._preempt
    monkeypatch.setattr(Scheduler, "_preempt", note)
    drafting = SamplingParams(temperature=1.0, mirostat=2, mirostat_tau=3.0, seed=5)  # it waits for its token
    wanted = [request(1, 60, drafting), request(2, 60, SAMPLED), request(3, 60)]
    found, counters = answers(wanted, overlap=True, n_blocks=7)
    assert found == {each.key: alone(each) for each in wanted}
    assert counters["preemptions_total"] > 0 and any(in_flight)


def test_pools_change_only_between_steps() -> None:
    device = Device()
    own = engine(device)
    wanted = request(1, 12)
    want = alone(wanted)
    for n, loop in enumerate(steps(own, [wanted])):
        if n == 2:
            assert loop._under_way
            with pytest.raises(RuntimeError, match="under way"):
                device.allocate(KvSpec((9,), "f32"))
    assert [told(own.answers[1][0])] == want
    smaller = engine(device, n_blocks=6)
    assert [told(one) for one in smaller.run([wanted])[1]] == want and not device.faults


def test_what_is_under_way_at_the_end_is_dropped() -> None:
    own = engine(Device())
    own.answers[1] = [Answer()]
    failed: list[Any] = []
    own.loop.parts.emit = failed.append
    run = steps(own, [request(1, 40)])
    for _ in range(4):
        assert next(run)._under_way is not None
    own.loop._life._emit = own.loop.requests._emit = failed.append
    own.loop.close()


# --- the same ids --------------------------------------------------------------------------------

LAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
}
PENALTIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "repeat_last_n": 9},
}
_GRAMMARS = [plan for plan in plans() if "grammar" in plan]
ALL = list(product(LAWS, PENALTIES, (False, True), (False, True), (None, 2), (1, 3), (64, 8)))
"""Law, penalties, grammar, drafts, logprobs, choices, blocks (few of them: rows are preempted)."""


def same(combination: tuple[Any, ...]) -> float:
    """Raises AssertionError; rows that went ahead."""
    law, penalties, constrained, drafts, logprobs, n, n_blocks = combination
    sampling = [SamplingParams(**LAWS[law], **PENALTIES[penalties], seed=seed) for seed in range(3)]
    wanted = [
        request(key, 30, own, n=n, logprobs=logprobs, plan=_GRAMMARS[key % len(_GRAMMARS)] if constrained else {})
        for key, own in enumerate(sampling, 1)
    ]
    fields = {"n_blocks": n_blocks, "drafters": [NgramDrafter(EAGER)] if drafts else [], "gates": False}
    plain, overlapped = (answers(wanted, overlap=overlap, **fields) for overlap in (False, True))
    assert plain[0] == overlapped[0], combination
    return overlapped[1]["overlap_ahead_total"]


@pytest.mark.parametrize("first", range(4))
def test_both_loops_give_the_same_ids(first: int) -> None:
    assert sum(same(combination) for combination in ALL[first * 5 :: 23]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("combination", ALL, ids=str)
def test_both_loops_give_the_same_ids_in_every_combination(combination: tuple[Any, ...]) -> None:
    same(combination)
