"""A verdict is a number, whatever was checked before, and a refusal always says where."""

from __future__ import annotations

import json
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import pytest
from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.core.turns import ENDLESS, Budget
from imp_server.grammar.check import check_regex, check_schema
from imp_server.grammar.engine import GrammarSpace
from jsonschema.validators import Draft202012Validator

from tests.grammar.judging import BYTES
from tests.grammar.suite import groups
from tests.grammar.test_hostile import HOSTILE
from tests.grammar.test_limits import EITHER, REFUSED, clauses

N_OF_SUITE = 250


class Told(NamedTuple):
    """Of a check: the refusal (empty: served), its place, and what it took."""

    message: str
    pointer: str
    n_units: int
    n_bytes: int


def told(schema: Any) -> Told:
    budget, message, pointer = Budget(), "", ""
    with budget.spent():
        try:
            check_schema(schema)
        except GrammarRefused as refused:
            message, pointer = refused.message, refused.pointer
    return Told(message, pointer, ENDLESS - budget.n_units, ENDLESS - budget.n_bytes)


@cache
def of_suite() -> dict[str, Any]:
    """Every schema of the newest draft, as far as it is wanted here."""
    return {group.name: group.schema for group in islice(groups(), N_OF_SUITE)}


@cache
def first() -> dict[str, Told]:
    """In a process that knows what these have left behind."""
    return {name: told(schema) for name, schema in of_suite().items()}


def test_what_was_checked_before_makes_no_difference() -> None:
    before = first()
    space = GrammarSpace(BYTES)
    for name, schema in reversed(of_suite().items()):
        assert told(schema) == before[name], name
        if before[name].message == "" and before[name].n_units < 2_000:
            space.matcher(check_schema(schema))  # what an engine leaves behind makes none, either
    assert len(before) == N_OF_SUITE and any(t.message for t in before.values())


def dear() -> dict[str, Any]:
    """Schemas near the limits, and beyond them."""
    texts = {name: {"type": "string", "pattern": h.what} for name, h in EITHER.items() if h.kind == "regex"}
    schemas = {name: h.what for name, h in EITHER.items() if h.kind == "schema"}
    return HOSTILE | texts | schemas | REFUSED | {"clauses": clauses(26, 15)}


DEAR = [name for name in dear() if name != "not a number"]


@pytest.mark.parametrize("name", DEAR)
def test_a_refusal_names_a_place_that_is_there(name: str) -> None:
    found = told(dear()[name])
    if found.message:
        assert_placed(dear()[name], found)


def test_each_refusal_of_the_suite_names_its_place() -> None:
    refused = {name: found for name, found in first().items() if found.message}
    assert len(refused) > 10
    for name, found in refused.items():
        assert_placed(of_suite()[name], found)


def assert_placed(schema: Any, found: Told) -> None:
    assert f"#{found.pointer}" in found.message, found
    part = schema
    for key in found.pointer.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        part = part[int(key)] if isinstance(part, list) else part[key]


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (False, ""),
        ({"type": "object", "required": ["a"], "properties": {"a": {"minimum": 3, "maximum": 2, "type": "number"}}},
         "/properties/a"),
        ({"type": "array", "minItems": 2, "prefixItems": [{}, {"type": "string", "pattern": "^a+$", "const": "b"}]},
         "/prefixItems/1"),
        ({"type": "object", "required": ["a"], "properties": {"a": {"type": "array", "minItems": 1, "items": False}}},
         "/properties/a"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, ""),
    ],
)  # fmt: skip
def test_what_has_no_value_is_named_as_far_inside_as_it_is_known(schema: Any, pointer: str) -> None:
    with pytest.raises(GrammarUnsatisfiable) as caught:
        check_schema(schema)
    assert caught.value.pointer == pointer
    assert caught.value.message.endswith(f"(at #{pointer})")


def test_no_schema_at_all_says_so_too() -> None:
    schema: Any
    for schema in ([], float("nan"), {"minimum": float("nan")}):
        with pytest.raises(GrammarRefused, match="at #"):
            check_schema(schema)


def test_lengths_are_counted_not_unrolled() -> None:
    for schema in ({"minLength": 5000}, {"minLength": 100_000}, {"minLength": 5000, "pattern": "^[a-z ]+$"}):
        check_schema({"type": "object", "properties": {"a": {"type": "string", **schema}}, "required": ["a"]})


def test_a_long_chain_of_conditions_is_decided_by_its_tag() -> None:
    chain = [{"if": {"properties": {"kind": {"const": f"k{i}"}}}, "then": {"required": [f"f{i}"]}} for i in range(100)]
    tag = {"kind": {"enum": [f"k{i}" for i in range(100)]}}
    schema = {"type": "object", "properties": tag, "required": ["kind"], "allOf": chain}
    for whole in (schema, {"type": "object", "properties": {"a": schema}}):
        plan = check_schema(whole)
    m = GrammarSpace(BYTES).matcher(plan)
    for value, good in (
        ({"a": {"kind": "k3", "f3": 1}}, True),
        ({"a": {"f99": 1, "kind": "k99"}}, True),
        ({"a": {"kind": "k3", "f4": 1}}, False),
    ):
        state = m.advance_bytes(m.start, json.dumps(value).encode())
        assert (state is not None and m.is_done(state)) == good


def test_lookaheads_of_a_whole_match_are_an_intersection() -> None:
    check_regex(r"(?=.*[A-Z])(?=.*[0-9])(?=.*[a-z]).{8,64}")
    budget = Budget()
    with budget.spent():
        check_regex(r"(?=.*[A-Z])(?=.*[0-9]).{8,64}")
    assert ENDLESS - budget.n_units < 30_000


def test_negated_counts_are_what_lies_between_them() -> None:
    """Thirty of them are thirty-one ranges, not 2^30 choices."""
    schema = {"type": "array", "allOf": [{"not": {"minItems": 3 * i, "maxItems": 3 * i + 1}} for i in range(1, 31)]}
    m = GrammarSpace(BYTES).matcher(check_schema(schema))
    for n in (0, 2, 3, 4, 5, 90, 91, 92):
        state = m.advance_bytes(m.start, json.dumps([0] * n).encode())
        assert (state is not None and m.is_done(state)) == (n % 3 == 2 or n < 3), n


def test_all_names_of_a_rule_are_known() -> None:
    letters = {"type": "object", "propertyNames": {"pattern": "^[a-z]$"}}
    check_schema(letters | {"minProperties": 26})
    with pytest.raises(GrammarUnsatisfiable):
        check_schema(letters | {"minProperties": 27})


def test_two_thousand_constant_arrays_are_told_apart_by_their_items() -> None:
    m = GrammarSpace(BYTES).matcher(check_schema({"enum": [[i, f"{i}"] for i in range(2000)]}))
    for value, good in (([0, "0"], True), ([1999, "1999"], True), ([17, "18"], False), ([2000, "2000"], False)):
        state = m.advance_bytes(m.start, json.dumps(value).encode())
        assert (state is not None and m.is_done(state)) == good


def test_listed_numbers_are_told_apart_however_they_are_spelled() -> None:
    """One trie for all of them, where several watches name several numbers."""
    numbers = [0, 1, 10, 100, -1, 1.5, 1.05, 15, 0.5]
    pairs = [
        {"properties": {"n": {"enum": [n, numbers[i - 1]]}, "t": {"const": str(i)}}} for i, n in enumerate(numbers)
    ]
    schema = {"type": "object", "required": ["n", "t"], "oneOf": [p | {"required": ["n", "t"]} for p in pairs]}
    m = GrammarSpace(BYTES).matcher(check_schema(schema))
    validator = Draft202012Validator(schema)
    spelled = ["0", "-0", "0.0", "1", "1.0", "1.00", "10", "10.0", "100", "-1", "-1.0", "1.5", "1.50", "1.05", "15",
               "0.5", "0.50", "1.005", "2", "105", "-1.5"]  # fmt: skip
    seen = set()
    for text in spelled:
        for t in ("0", "1", "4", "5"):
            whole = f'{{"n":{text},"t":"{t}"}}'
            state = m.advance_bytes(m.start, whole.encode())
            read = state is not None and m.is_done(state)
            assert read == validator.is_valid(json.loads(whole)), whole
            seen.add(read)
    assert seen == {True, False}
