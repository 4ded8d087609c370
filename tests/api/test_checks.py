"""What is known of grammars: bounded in memory, one for all that a schema is part of, and quick to look up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from imp_server.api.checks import REFUSED, Checks, Unanswered, Verdicts
from imp_server.core import GrammarRefused, GrammarTooCostly, ResponseFormat, Tool, ToolChoice
from imp_server.core.limits import Limit
from imp_server.grammar.check import schema_plan
from imp_server.grammar.proving import ProofJob, Prover, Refusal, Verdict
from imp_server.workers.client import Workers
from imp_server.workers.jobs import JobBroken, Jobs

from tests.asked import changed
from tests.live.toy_server import TOOLS_CHATML
from tests.text.asking import chat, message
from tests.toy import byte_model

MODEL = byte_model(TOOLS_CHATML, context_length=1 << 16)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    found = Workers()
    yield found
    found.close()


def tool(name: str) -> Tool:
    kinds: list[dict[str, Any]] = [{"type": "string"}, {"type": "integer", "minimum": 0}, {"enum": ["a", "b"]}]
    properties = {f"{name}_{i}": kinds[i % 3] for i in range(8)}
    return Tool(name, "does it", {"type": "object", "properties": properties, "required": [f"{name}_0"]})


def prepared(checks: Checks, request: Any) -> Any:
    finish = MODEL.begin_chat(request, 1)

    async def learn() -> Any:
        ended: dict[bytes, Refusal] = {}
        while True:
            try:
                return checks.attempt(finish, ended)
            except Unanswered as unanswered:
                ended |= await checks.answer(unanswered.questions, "")

    return asyncio.run(learn())


def test_a_request_seen_before_costs_a_fraction_of_its_check(workers: Workers) -> None:
    request = msgspec.structs.replace(
        chat(message("user", "hi")), tools=tuple(tool(f"tool{i}") for i in range(20)), tool_choice=ToolChoice("auto")
    )
    checks = Checks(Jobs(workers))
    plan = prepared(checks, request).request.plan
    assert plan.grammar == MODEL.prepare_chat(request, 1).request.plan.grammar

    def cpu_s(once: Any) -> float:
        began = time.process_time()
        once()
        return time.process_time() - began

    finish = MODEL.begin_chat(request, 1)
    again = min(cpu_s(lambda: checks.attempt(finish)) for _ in range(3))
    checked = min(
        cpu_s(lambda: MODEL.begin_chat(request, 1)) + cpu_s(lambda: MODEL.prepare_chat(request, 1)) for _ in "ab"
    )
    assert again < checked / 4


def test_verdicts_stay_within_their_memory() -> None:
    verdicts = Verdicts(most_bytes=100_000)
    for i in range(2000):
        verdicts.put(i.to_bytes(16, "big"), Verdict(Refusal("refused", "x" * 100) if i % 2 else None))
        verdicts.get((0).to_bytes(16, "big"))
    assert verdicts.n_bytes <= 100_000 and len(verdicts) < 500
    assert verdicts.get((0).to_bytes(16, "big")) == Verdict(), "what is used stays"
    assert verdicts.get((3).to_bytes(16, "big")) is None
    assert verdicts.get((1999).to_bytes(16, "big")) == Verdict(Refusal("refused", "x" * 100))


def test_what_an_engine_gives_up_is_refused_from_then_on(workers: Workers) -> None:
    wanted = ResponseFormat("json_schema", schema={"type": "object", "properties": {"a": {}}}, param="response_format")
    request = changed(chat(message("user", "hi")), response_format=wanted)
    checks = Checks(Jobs(workers))
    grammar = prepared(checks, request).request.plan.grammar
    assert grammar is not None
    checks.give_up(grammar, GrammarTooCostly("too much at #/properties/a", pointer="/properties/a"))
    before = checks.verdicts.n_bytes
    with pytest.raises(GrammarTooCostly, match="/properties/a") as caught:
        prepared(checks, request)
    assert caught.value.param == "response_format" and checks.verdicts.n_bytes == before


def test_of_several_plans_only_the_one_that_broke_its_process_is_refused(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = Checks(Jobs(workers, n_quick=1))
    run = checks.jobs.run

    async def broken(function: str, data: bytes, *rest: Any) -> bytes:
        if b"tool2_0" in data:
            raise JobBroken("cpu")
        return await run(function, data, *rest)

    monkeypatch.setattr(checks.jobs, "run", broken)
    tools = tuple(tool(f"tool{i}") for i in range(4))
    request = msgspec.structs.replace(chat(message("user", "hi")), tools=tools, tool_choice=ToolChoice("required"))
    with pytest.raises(GrammarTooCostly, match="at #") as caught:
        prepared(checks, request)
    assert caught.value.param == "tools[2].function.parameters"
    assert len(checks.verdicts) == 3, "what was ended from outside is no verdict"


def test_the_first_of_several_refusals_is_told_whatever_is_known(workers: Workers) -> None:
    def bad(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {name: {"$ref": f"#/nowhere/{name}"}}, "required": [name]}

    def both(prover: Prover) -> None:
        for name in ("first", "second"):
            prover.prove(schema_plan(bad(name)))
        prover.settle()

    def second(prover: Prover) -> None:
        prover.prove(schema_plan(bad("second")))
        prover.settle()

    async def ask(checks: Checks, what: Any) -> str:
        while True:
            try:
                checks.attempt(what)
            except Unanswered as unanswered:
                await checks.answer(unanswered.questions, "")
            except GrammarRefused as refused:
                return refused.message + refused.pointer

    checks = Checks(Jobs(workers))
    assert "second" in asyncio.run(ask(checks, second))
    assert "first" in asyncio.run(ask(checks, both))
    assert checks.counters[REFUSED] == 2


def test_parts_that_take_too_much_together_are_proved_as_a_whole(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jobs_asked(most_units: int) -> list[tuple[int, int]]:
        """(plans, plans that envelopes leave out) of each job."""
        monkeypatch.setattr("imp_server.api.checks.CHECK", Limit(most_units, 1 << 40))
        checks, asked = Checks(Jobs(workers, n_quick=1)), list[tuple[int, int]]()
        run = checks.jobs.run

        async def noted(function: str, data: bytes, *rest: Any) -> bytes:
            job = msgspec.msgpack.decode(data, type=ProofJob)
            asked.append((len(job.plans), len(job.apart)))
            return await run(function, data, *rest)

        monkeypatch.setattr(checks.jobs, "run", noted)
        assert prepared(checks, request).request.plan.grammar is not None
        assert prepared(checks, request).request.plan.grammar is not None
        return asked

    request = msgspec.structs.replace(
        chat(message("user", "hi")), tools=(tool("one"), tool("two")), tool_choice=ToolChoice("auto")
    )
    assert jobs_asked(100_000) == [(2, 0), (1, 2)]
    assert jobs_asked(1_000) == [(2, 0), (1, 2), (1, 0)]
