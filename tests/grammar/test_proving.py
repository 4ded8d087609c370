"""A verdict asked by plan is the verdict of the check, here and in a worker process, and keeps its words."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from imp_server.core import GrammarPlan, GrammarRefused
from imp_server.grammar.check import (
    check_choices,
    check_definition,
    check_envelope,
    check_gbnf,
    check_lark,
    check_regex,
    check_schema,
    schema_plan,
)
from imp_server.grammar.envelope import Lit, Seq, Value
from imp_server.grammar.plan import Normal, make_plan
from imp_server.grammar.proving import ProofJob, Verdict, definition_plan, prove, proved, verdict_key, warm_up

BAD = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"]}
GOOD = {"type": "object", "properties": {"a": {"type": "integer"}}}


def words(kind: str, text: str) -> GrammarPlan:
    return make_plan(kind, Normal(text=text))


CASES: list[tuple[GrammarPlan, Callable[[], Any]]] = [
    (schema_plan(GOOD), lambda: check_schema(GOOD)),
    (schema_plan(BAD, key_order="schema"), lambda: check_schema(BAD, key_order="schema")),
    (schema_plan({"$ref": "#/nowhere"}), lambda: check_schema({"$ref": "#/nowhere"})),
    (schema_plan({"pattern": "("}), lambda: check_schema({"pattern": "("})),
    (words("regex", "a+"), lambda: check_regex("a+")),
    (words("regex", "a("), lambda: check_regex("a(")),
    (words("gbnf", 'root ::= "a"'), lambda: check_gbnf('root ::= "a"')),
    (words("gbnf", "root ::= b"), lambda: check_gbnf("root ::= b")),
    (words("lark", 'start: "a"'), lambda: check_lark('start: "a"')),
    (words("lark", "start: b"), lambda: check_lark("start: b")),
    (make_plan("choice", Normal(choices=())), lambda: check_choices(())),
    (make_plan("choice", Normal(choices=("a", "b"))), lambda: check_choices(("a", "b"))),
    (definition_plan("regex", "["), lambda: check_definition("regex", "[")),
    (definition_plan("lark", 'start: "a"'), lambda: check_definition("lark", 'start: "a"')),
    (
        make_plan("envelope", Normal(node=Seq((Lit(b"<"), Value(BAD))))),
        lambda: check_envelope(Seq((Lit(b"<"), Value(BAD)))),
    ),
]


def told(ask: Callable[[], Any]) -> tuple[str, ...] | None:
    try:
        ask()
    except GrammarRefused as error:
        return type(error).__name__, error.message, error.pointer, error.code, str(error.at)
    return None


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_plan_is_judged_as_its_check_judges(number: int) -> None:
    plan, check = CASES[number]
    expected = told(check)
    assert told(lambda: prove(plan)) == expected
    [verdict] = msgspec.msgpack.decode(proved(msgspec.msgpack.encode(ProofJob((plan,)))), type=list[Verdict])

    def remembered() -> None:
        if verdict.refusal is not None:
            raise verdict.refusal.error()

    assert told(remembered) == expected


def test_half_of_the_cases_are_refused() -> None:
    assert sum(told(check) is not None for _, check in CASES) == 9


def test_an_envelope_is_not_asked_where_a_part_of_it_is_refused() -> None:
    whole = make_plan("envelope", Normal(node=Value(GOOD)))
    job = ProofJob((schema_plan(GOOD), schema_plan(BAD), whole))
    good, bad, last = msgspec.msgpack.decode(proved(msgspec.msgpack.encode(job)), type=list[Verdict])
    assert good == Verdict() and bad.refusal is not None and not last.asked


def test_keys_tell_apart_what_may_differ() -> None:
    plans = [plan for plan, _ in CASES]
    assert len({verdict_key(plan, work) for plan in plans for work in (10, 20)}) == 2 * len(plans)


def test_known_schemas_are_not_proved_again() -> None:
    schemas = [{**GOOD, "title": str(i), "properties": {f"p{i}": {"type": "string", "pattern": "^[a-z]{1,9}$"}}}
               for i in range(20)]  # fmt: skip
    node = Seq(tuple(Value(schema) for schema in schemas))
    known = {schema_plan(schema).digest for schema in schemas}
    warm_up()
    took = {}
    for name, digests in (("all", ()), ("none", known)):
        began = time.process_time()
        check_envelope(node, known=digests)
        took[name] = time.process_time() - began
    assert took["none"] < 0.8 * took["all"]
