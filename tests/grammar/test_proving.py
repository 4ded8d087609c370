"""A verdict asked by plan is the verdict of the check, here and in a worker process, and keeps its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from imp_server.core import GrammarPlan, GrammarRefused
from imp_server.core.turns import ENDLESS, Budget
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
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.warm_up import warm_up as warm_start
from imp_server.grammar.languages.envelope import Alt, Branch, Free, Lit, Seq, Value
from imp_server.grammar.machines.memo import alone
from imp_server.grammar.plan import PlanPayload, begin, make_plan
from imp_server.grammar.proving import ProofJob, Verdict, definition_plan, prove, proved, verdict_key
from imp_server.grammar.values.schema.closing import with_closing

BAD = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"]}
GOOD = {"type": "object", "properties": {"a": {"type": "integer"}}}


def words(kind: str, text: str) -> GrammarPlan:
    return make_plan(kind, PlanPayload(text=text))


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
    (make_plan("choice", PlanPayload(choices=())), lambda: check_choices(())),
    (make_plan("choice", PlanPayload(choices=("a", "b"))), lambda: check_choices(("a", "b"))),
    (definition_plan("regex", "["), lambda: check_definition("regex", "[")),
    (definition_plan("lark", 'start: "a"'), lambda: check_definition("lark", 'start: "a"')),
    (
        make_plan("envelope", PlanPayload(node=Seq((Lit(b"<"), Value(BAD))))),
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


def test_keys_tell_apart_what_may_differ() -> None:
    plans = [plan for plan, _ in CASES]
    assert len({verdict_key(plan.kind, plan.digest) for plan in plans}) == len(plans)


def verdicts_of(job: ProofJob) -> list[Verdict]:
    return msgspec.msgpack.decode(proved(msgspec.msgpack.encode(job)), type=list[Verdict])


def calls(schemas: list[dict[str, Any]]) -> GrammarPlan:
    """As free text in which any of the functions may be called."""
    options = tuple(Seq((Lit(b"f%d(" % i), Value(schema), Lit(b")"))) for i, schema in enumerate(schemas))
    return make_plan("envelope", PlanPayload(node=Free((Branch(b"<call>", Alt(options)),), may_end=True)))


def test_an_envelope_costs_its_own_frames_where_its_schemas_are_proved_apart() -> None:
    schemas = [{**GOOD, "title": str(i), "properties": {f"p{i}": {"type": "string", "pattern": "^[a-z]{1,9}$"}}}
               for i in range(20)]  # fmt: skip
    plan, parts = calls(schemas), tuple(schema_plan(schema) for schema in schemas)
    [whole] = verdicts_of(ProofJob((plan,)))
    *_, around = verdicts_of(ProofJob((*parts, plan), apart=frozenset(p.digest for p in parts)))
    assert whole.refusal is None and whole.apart == ()
    assert around.refusal is None and around.apart == tuple(p.digest for p in parts)
    assert 0 < around.n_units < whole.n_units / 20 and around.n_bytes < whole.n_bytes / 20


def test_a_verdict_does_not_depend_on_what_was_proved_before() -> None:
    plans = [schema_plan({"type": "string", "pattern": "^([ab]{1,20}c){3}$", "title": str(i)}) for i in range(3)]
    first, *others = verdicts_of(ProofJob(tuple(plans)))
    assert first.n_units > 100 and all(other == first for other in others)


PARTS: list[list[dict[str, Any]]] = [
    [GOOD, {"type": "object", "properties": {"b": {"enum": ["x", "y", None]}}, "required": ["b"]}],
    [{"type": "object", "properties": {"s": {"type": "string", "pattern": "^(a|b){3,40}$"}}}],
    [with_closing({"type": "object", "properties": {f"{n}{i}": {"type": "integer", "minimum": i} for i in range(9)},
                   "required": [f"{n}0"]}, True) for n in "abcdef"],
    [{"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#"}, "maxItems": 3}}}] * 3,
    [{"oneOf": [{"type": "object", "properties": {"t": {"const": c}, c: {}}, "required": ["t", c]} for c in "abcd"]},
     {"type": "object", "properties": {"u": {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3]}}}}],
    [{"type": "object", "minProperties": 2, "patternProperties": {"^x": {"type": "number", "multipleOf": 0.5}}}],
]  # fmt: skip


@pytest.mark.parametrize("schemas", PARTS)
def test_an_envelope_starts_within_what_its_parts_took(schemas: list[dict[str, Any]]) -> None:
    plan, parts = calls(schemas), tuple(schema_plan(schema) for schema in schemas)
    found = verdicts_of(ProofJob((*parts, plan), apart=frozenset(p.digest for p in parts)))
    assert not any(verdict.refusal for verdict in found)
    costs = {part.digest: verdict for part, verdict in zip(parts, found, strict=False)}
    told = [found[-1], *(costs[digest] for digest in found[-1].apart)]
    budget = Budget()
    with budget.spent(), alone():
        space = Space(n_locals=64)
        warm_start(space, begin(plan, space).start)
    assert ENDLESS - budget.n_units <= sum(verdict.n_units for verdict in told)
    assert ENDLESS - budget.n_bytes <= sum(verdict.n_bytes for verdict in told)
