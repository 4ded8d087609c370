"""What is known of grammars: bounded in memory, one for all that a schema is part of, and quick to look up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pytest
from imp_server.api.checks import REFUSED, Checks, KnownVerdicts, Unanswered
from imp_server.core import GrammarRefused, GrammarTooCostly, ResponseFormat, Tool, ToolChoice
from imp_server.core.limits import Limit
from imp_server.grammar.check import schema_plan
from imp_server.grammar.proving import ProofJob, Prover, Refusal, Verdict
from imp_server.grammar.values.schema.closing import KEYWORD
from imp_server.workers.client import Workers
from imp_server.workers.jobs import JobBroken, Jobs

from tests.asked import changed
from tests.live.toy_server import TOOLS_CHATML
from tests.text.asking import chat, message
from tests.text.tools.spelled import FORMATS, model_of
from tests.toy import byte_model

MODEL = byte_model(TOOLS_CHATML, context_length=1 << 16)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    found = Workers()
    yield found
    found.close()


def tool(name: str, *, is_plain: bool = False) -> Tool:
    """One that can't be told without a proof, unless `is_plain`."""
    kinds: list[dict[str, Any]] = [{"type": "string"}, {"type": "integer", "minimum": 0}, {"enum": ["a", "b"]}]
    properties = {f"{name}_{i}": kinds[i % 3] for i in range(8)}
    schema = {"type": "object", "properties": properties, "required": [f"{name}_0"]}
    return Tool(name, "does it", schema if is_plain else {**schema, "minProperties": 2})


def prepared(checks: Checks, request: Any, model: Any = MODEL) -> Any:
    finish = model.begin_chat(request, 1)

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
    verdicts = KnownVerdicts(most_bytes=100_000)
    for i in range(2000):
        verdicts.put(i.to_bytes(16, "big"), Verdict(Refusal("refused", "x" * 100) if i % 2 else None))
        verdicts.get((0).to_bytes(16, "big"))
    assert verdicts.n_bytes <= 100_000 and len(verdicts) < 500
    assert verdicts.get((0).to_bytes(16, "big")) == Verdict(), "what is used stays"
    assert verdicts.get((3).to_bytes(16, "big")) is None
    assert verdicts.get((1999).to_bytes(16, "big")) == Verdict(Refusal("refused", "x" * 100))


def test_what_an_engine_gives_up_is_refused_from_then_on(workers: Workers) -> None:
    """And its letter is served, where it was closed by us."""
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {}}}
    wanted = ResponseFormat("json_schema", schema=schema | {KEYWORD: "closed"}, param="response_format")
    request = changed(chat(message("user", "hi")), response_format=wanted)
    checks = Checks(Jobs(workers))
    grammar = prepared(checks, request).request.plan.grammar
    assert grammar is not None
    checks.give_up(grammar, GrammarTooCostly("too much at #/properties/a", pointer="/properties/a"))
    before = checks.verdicts.n_bytes
    with pytest.raises(GrammarTooCostly, match="/properties/a") as caught:
        prepared(checks, request)
    assert caught.value.param == "response_format" and checks.verdicts.n_bytes == before
    by_default = changed(request, response_format=ResponseFormat("json_schema", schema=schema, param="response_format"))
    assert prepared(checks, by_default).opened == ("response_format",)


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


def asking(*tools: Tool, mode: Literal["auto", "none", "required"] = "auto") -> Any:
    return msgspec.structs.replace(chat(message("user", "hi")), tools=tools, tool_choice=ToolChoice(mode))


class Noted(Checks):
    """Owner of what its jobs were asked: the plans of each, and how many of them were known."""

    def __init__(self, workers: Workers) -> None:
        super().__init__(Jobs(workers, n_quick=1))
        self.asked: list[tuple[int, int]] = []
        run = self.jobs.run

        async def noted(function: str, data: bytes, *rest: Any) -> bytes:
            job = msgspec.msgpack.decode(data, type=ProofJob)
            self.asked.append((len(job.plans), len(job.apart)))
            return await run(function, data, *rest)

        jobs: Any = self.jobs
        jobs.run = noted


@pytest.mark.parametrize("form", FORMATS)
def test_plain_tools_are_told_without_a_process(workers: Workers, form: str) -> None:
    checks, model = Noted(workers), model_of(form)
    for mode in ("auto", "required"):
        request = asking(*(tool(f"tool{i}", is_plain=True) for i in range(3)), mode=mode)
        plan = prepared(checks, request, model).request.plan
        assert plan.grammar == model.prepare_chat(request, 1).request.plan.grammar is not None
    patterns = {"cohere": [(1, 3)], "minicpm": [(1, 4), (1, 4)]}  # the number of a call; how an unwrapped text begins
    assert checks.asked == patterns.get(form, [])


def test_one_tool_changed_of_twenty_pays_for_one(workers: Workers) -> None:
    checks = Noted(workers)
    tools = [tool(f"tool{i}") for i in range(20)]
    prepared(checks, asking(*tools))
    assert sum(n for n, _ in checks.asked) == 20, "what stands around them is counted"
    checks.asked.clear()
    prepared(checks, asking(*tools[:-1], tool("other")))
    prepared(checks, asking(*tools[1:], tools[0]))
    assert [n for n, _ in checks.asked] == [1]


def with_parts(number: int, steps: list[int]) -> Tool:
    """Plain but for some of its properties."""
    properties: dict[str, Any] = {
        f"n{number}_{i}": {"type": "integer", "multipleOf": step} for i, step in enumerate(steps)
    }
    properties["text"] = {"type": "string"}
    return Tool(f"tool{number}", "does it", {"type": "object", "properties": properties})


@pytest.mark.parametrize("form", ["hermes", "qwen_xml"])
def test_what_of_plain_tools_is_not_plain_is_proved_once_wherever_it_stands(workers: Workers, form: str) -> None:
    """Also in a notation whose grammar has a value for each parameter."""
    checks, model = Noted(workers), model_of(form)
    tools = [with_parts(i, [2, 3, 4 + i][: 3 - i % 2]) for i in range(6)]
    prepared(checks, asking(*tools), model)
    prepared(checks, asking(*tools[:-1], with_parts(40, [2, 3, 44])), model)
    assert [n for n, _ in checks.asked] == [5, 1]


def test_a_part_that_has_no_value_is_told_as_part_of_its_schema(workers: Workers) -> None:
    nothing = {"type": "integer", "multipleOf": 2, "minimum": 3, "maximum": 3}
    optional = Tool("one", "does it", {"type": "object", "properties": {"a": nothing, "b": {"type": "string"}}})
    required = Tool("two", "does it", {**optional.parameters, "required": ["a"]})
    assert prepared(Noted(workers), asking(optional, mode="required")).request.plan.grammar is not None
    with pytest.raises(GrammarRefused, match="at #/properties/a") as caught:
        prepared(Noted(workers), asking(optional, required, mode="required"))
    assert (caught.value.param, caught.value.pointer) == ("tools[1].function.parameters", "/properties/a")


def test_parts_that_take_too_much_together_are_proved_as_a_whole(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jobs_asked(most_units: int) -> list[tuple[int, int]]:
        monkeypatch.setattr("imp_server.api.checks.CHECK", Limit(most_units, 1 << 40))
        checks = Noted(workers)
        for _ in range(2):
            assert prepared(checks, request).request.plan.grammar is not None
        return checks.asked

    wanted = ResponseFormat("regex", text="[a-z]+", param="response_format")
    request = changed(asking(tool("one"), tool("two")), response_format=wanted)
    assert jobs_asked(100_000) == [(2, 0), (1, 2), (1, 2)], "tools, the answer's pattern, both as one reply"
    assert jobs_asked(1_000) == [(2, 0), (1, 2), (1, 2), (1, 0)]
