"""What grammars may cost: every hostile input is answered within a second and 64 MB, and says where it was given up."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from imp_server.core import GrammarRefused, GrammarTooCostly
from imp_server.core.limits import CHECK, Limit, bounded
from imp_server.core.turns import ENDLESS, Budget, OutOfTurn, OverBudget, charge, n_charged, spend, turn
from imp_server.grammar.check import check_regex, check_schema
from imp_server.grammar.values.schema.closing import with_closing

from tests.grammar.hostile import Cost, Hostile, cost_apart, gbnf, grammars, lark, regexes, schemas

MOST_S, MOST_QUESTION_S, MOST_MB = 1.0, 0.25, 64
LETTERS = "abcdefghijklmnop"


def doubling(depth: int, level: dict[str, Any]) -> Any:
    text = json.dumps(level)
    levels = {f"d{i}": json.loads(text.replace("NEXT", f"#/$defs/d{i + 1}")) for i in range(depth)}
    return {"$defs": levels | {f"d{depth}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


NEXT = {"$ref": "NEXT"}
TWO = {"type": "object", "properties": {"a": NEXT, "b": NEXT}, "required": ["a", "b"]}
DOUBLING: dict[str, Any] = {
    "two items": {"type": "array", "prefixItems": [NEXT, NEXT], "minItems": 2, "maxItems": 2},
    "two members": TWO,
    "members by a pattern": {"type": "object", "patternProperties": {"^.$": NEXT}, "required": ["a", "b"]},
    "members of any name": {"type": "object", "additionalProperties": NEXT, "minProperties": 2},
    "contained items": {"type": "array", "contains": NEXT, "minContains": 2},
    "dependent members": {"type": "object", "required": ["k"], "dependentSchemas": {"k": TWO}},
}
ARRAYS = {"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000, "items": {"type": "integer"}}}
NAMES = [f"a{i}" for i in range(10)]
REFUSED: dict[str, Any] = {
    **{f"doubling, {name}": doubling(40, level) for name, level in DOUBLING.items()},
    "long arrays": {"type": "array", "minItems": 1000, "items": ARRAYS},
    "many members in many": {
        "type": "object",
        "minProperties": 1000,
        "additionalProperties": {"type": "object", "minProperties": 2000},
    },
    "long texts in long arrays": {"type": "array", "minItems": 4000, "items": {"type": "string", "minLength": 90_000}},
}


def served_or_refused(hostile: Hostile) -> Cost:
    """The cost of an input, within the limits whatever became of it.

    The least of three tries: beside others' work, which has the caches, the same takes up to three times the CPU time.
    """
    for n_left in (2, 1, 0):
        found = cost_apart(hostile)
        assert found.outcome in ("served", "refused") and found.n_mb < MOST_MB, (found, hostile)
        if max(found.check_s, found.start_s) < MOST_S and found.question_s < MOST_QUESTION_S:
            break
        assert n_left, (found, hostile)
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_nobody_can_write_is_refused_for_its_size(name: str) -> None:
    found = served_or_refused(Hostile("schema", REFUSED[name]))
    assert "has more than 1048576 bytes" in found.message and found.check_s < MOST_S / 2


@pytest.mark.parametrize("level", DOUBLING)
def test_as_an_option_such_a_value_hurts_nobody(level: str) -> None:
    option = doubling(40, DOUBLING[level])
    definitions = option.pop("$defs")
    schema = {"$defs": definitions, "type": "object", "properties": {"x": option, "y": {"type": "integer"}}}
    assert served_or_refused(Hostile("schema", schema)).outcome == "served"


PIGEONS = [{"not": {"properties": {a: {"not": {"const": j}} for a in NAMES}}} for j in range(11)]
EITHER: dict[str, Hostile] = {
    "pigeons": Hostile("schema", {"type": "object", "allOf": PIGEONS}),
    "lookaheads": Hostile("regex", "".join(f"(?=.*{c}.*[{c}x]{{9}})" for c in LETTERS[:10]) + ".*"),
    "lookaheads in a loop": Hostile("regex", "(?:" + "".join(f"(?=.*{c}.{{9}}{c})" for c in LETTERS) + ".)*"),
    "counts in counts": Hostile("regex", "(a{1000}){1000}"),
    "counts in counts of either": Hostile("regex", "((a|ab){30,900}){20,900}"),
    "texts that are read in many ways": Hostile("regex", "(.*a){20}.{300}"),
    "a long enum": Hostile("schema", {"enum": [f"{i}" * 20 for i in range(20_000)]}),
    "a long constant": Hostile("schema", {"const": {f"k{i}": list(range(40)) for i in range(1000)}}),
    "a step of many digits": Hostile(
        "schema", {"type": "integer", "multipleOf": 10**4000 + 1, "minimum": -(10**4000), "exclusiveMaximum": 1e308}
    ),
    "a large object": Hostile("schema", {"properties": {f"p{i}": {"maxLength": i} for i in range(2000)}}),
    "rules that double": Hostile(
        "gbnf", "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(60)) + 'r60 ::= "a"\nroot ::= r0\n'
    ),
    "rules in counts": Hostile("gbnf", 'root ::= a{900}\na ::= b{900}\nb ::= c{900}\nc ::= "x"\n'),
    "counted alternatives": Hostile("gbnf", "root ::= " + "(" * 40 + '"a" | "b"?' + "){2,900}" * 40 + "\n"),
    "lark rules in counts": Hostile("lark", 'start: a~900\na: b~900\nb: c~900\nc: "x"\n'),
    "lark terminals that double": Hostile(
        "lark", "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(60)) + 'T60: "a"\n'
    ),
}


ELEVEN: dict[str, Any] = {
    "anyOf": [{"type": "object", "properties": {k: NEXT}, "additionalProperties": False} for k in LETTERS[:11]]
}


def test_what_applies_through_references_is_gathered_once() -> None:
    """Each level was gathered anew for every name: 133,000 units, and for 120 levels 1.5 s."""
    budget = Budget()
    with budget.spent():
        check_schema(with_closing(doubling(20, ELEVEN), True))
    assert ENDLESS - budget.n_units < 40_000
    found = served_or_refused(Hostile("schema", with_closing(doubling(120, ELEVEN), True)))
    assert found.check_s < MOST_S / 2


@pytest.mark.parametrize("name", EITHER)
def test_work_is_given_up_within_its_limits(name: str) -> None:
    served_or_refused(EITHER[name])


def test_a_verdict_is_a_number() -> None:
    """The same with every try, whatever the machine does meanwhile."""

    def units(pattern: str) -> tuple[int, int, str]:
        budget = CHECK.budget()
        try:
            with bounded(budget, "pattern"):
                check_regex(pattern)
        except GrammarTooCostly as refused:
            return budget.n_units, budget.n_bytes, refused.message
        return budget.n_units, budget.n_bytes, ""

    for n in (3, 11):
        pattern = "".join(f"(?=.*{c}.*[{c}x]{{{n}}})" for c in LETTERS[: n - 1]) + ".*"
        check_schema({"type": "object"})  # what all have in common is made once
        assert units(f"{pattern}a")[2] == units(f"{pattern}b")[2]


def test_a_refusal_says_where() -> None:
    pattern = "".join(f"(?=.*{c}.*[{c}x]{{9}})" for c in LETTERS[:10])
    deep = {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": pattern}}
    schema = {"type": "object", "properties": {"deep": deep}, "required": ["deep"]}
    with pytest.raises(GrammarRefused, match="lookarounds take too many states") as caught:
        check_schema(schema)
    assert caught.value.pointer == "/properties/deep/items/pattern"
    assert "at #/properties/deep/items/pattern" in caught.value.message


# --- the meter ----------------------------------------------------------------------------------


def test_a_budget_outlives_turns() -> None:
    budget = Budget(25, 1000)
    for _ in range(2):
        with pytest.raises(OutOfTurn), turn(9), budget.spent():
            spend(10)
    assert budget.n_units == 5
    with pytest.raises(OverBudget) as caught, turn(9), budget.spent():
        spend(6)
    assert caught.value.what == "work"


def test_bytes_are_a_limit_of_their_own() -> None:
    before = n_charged()
    outer, inner = Budget(100, 50), Budget(100, 80)
    with outer.spent(), inner.spent():
        charge(30)
    with pytest.raises(OverBudget) as caught, outer.spent(), inner.spent():
        charge(30)
    assert caught.value.what == "memory"
    assert (outer.n_bytes, inner.n_bytes) == (-10, 20) and n_charged() - before == 60


def test_turns_inside_budgets_and_budgets_inside_turns_end_at_the_nearer_one() -> None:
    for n_turn, n_budget, wanted in ((5, 50, OutOfTurn), (50, 5, OverBudget)):
        with pytest.raises(wanted), turn(n_turn), Limit(n_budget, 1).budget().spent():
            spend(6)
        with pytest.raises(wanted), Limit(n_budget, 1).budget().spent(), turn(n_turn):
            spend(6)
    spend(1 << 40)  # outside of both work is free


# --- drawn --------------------------------------------------------------------------------------

QUICK = settings(
    max_examples=8,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


@QUICK
@given(schemas())
def test_hostile_schemas(what: Any) -> None:
    served_or_refused(Hostile("schema", what))


@QUICK
@given(regexes())
def test_hostile_regexes(what: str) -> None:
    served_or_refused(Hostile("regex", what))


@QUICK
@given(gbnf())
def test_hostile_gbnf(what: str) -> None:
    served_or_refused(Hostile("gbnf", what))


@QUICK
@given(lark())
def test_hostile_lark(what: str) -> None:
    served_or_refused(Hostile("lark", what))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(QUICK, max_examples=1500)
@given(grammars())
def test_many_hostile_grammars(hostile: Hostile) -> None:
    served_or_refused(hostile)


# --- rehearsed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["(.*[ab].{30}c)+", "(.*[ab].{300}c)+", ".*a.{300}"])
def test_a_text_whose_every_token_leads_to_new_states_is_served(pattern: str) -> None:
    """No mask makes those states."""
    assert served_or_refused(Hostile("regex", pattern)).outcome == "served"
    text = {"type": "string", "pattern": f"^{pattern}$"}
    assert served_or_refused(Hostile("schema", {"type": "object", "properties": {"a": text}})).outcome == "served"


BEHIND = "(?:" + "".join(f"(?<={c}.{{6}})" for c in "rutlcmf") + ")*z"
AHEAD = "x(?:" + "".join(f"(?=.*{c}.*[{c}x])" for c in "unpumwl") + "|y)+"
UNBOUND: dict[str, Any] = {
    "behind": {"type": "string", "pattern": BEHIND},
    "ahead": {"type": "string", "pattern": AHEAD},
    "names": {"type": "object", "patternProperties": {".*a.{300}": {}}, "additionalProperties": False},
}


@pytest.mark.parametrize("name", UNBOUND)
def test_texts_whose_words_lead_to_ever_more_states_are_refused(name: str) -> None:
    """No bound is known for their masks: they took 0.2 to 0.5 s and gave up."""
    assert served_or_refused(Hostile("schema", UNBOUND[name])).outcome == "refused"


FEW = [".*a.{12}b", r"[a-z]{3,40}@[a-z]+\.com", r"(\w+\s){3,30}", "(a?){50}a{50}", "(?:(?!foo).){1,500}", r"\bfoo\b.*"]


@pytest.mark.parametrize("pattern", FEW)
def test_texts_whose_tokens_lead_to_few_states_are_served(pattern: str) -> None:
    check_regex(pattern)


def clauses(n: int, n_rows: int) -> Any:
    """A name is written, and then: which of the others may follow?"""
    rng = Random(7)

    def literal() -> Any:
        name = f"x{rng.randrange(n)}"
        return {"properties": {name: {"const": rng.random() < 0.5}}, "required": [name]}

    rows = [{"anyOf": [literal() for _ in range(3)]} for _ in range(n_rows)]
    return {"type": "object", "additionalProperties": {"type": "boolean"}, "allOf": rows}


def test_the_way_out_of_a_name_is_rehearsed() -> None:
    served_or_refused(Hostile("schema", clauses(26, 13)))
    check_schema({"type": "object", "properties": {"text": {"minLength": 1000}}, "required": ["text"]})
    assert served_or_refused(Hostile("schema", clauses(8, 6))).outcome == "served"
