"""What is told without a proof is what the proof would say, and its start costs no more than was counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import msgspec
import pytest
from imp_server.core import GrammarRefused
from imp_server.core.limits import QUESTION, Limit
from imp_server.core.turns import ENDLESS, Budget
from imp_server.grammar.check import check_schema, prove_schema, schema_plan
from imp_server.grammar.engine import GrammarSpace
from imp_server.grammar.frames.space import Space
from imp_server.grammar.frames.warm_up import warm_up
from imp_server.grammar.languages.envelope import Alt, Branch, Free, Lit, Node, Raw, Seq, Value, Words
from imp_server.grammar.machines.memo import alone
from imp_server.grammar.plain import FORMATS, MAX_NAMES, MAX_TEXT, Told, plain_envelope, plain_schema
from imp_server.grammar.plan import PlanPayload, begin, make_plan
from imp_server.grammar.proving import ProofJob, Verdict, prove, proved, verdict_at_once
from imp_server.grammar.values.schema.closing import with_closing

from tests.grammar.judging import BYTES
from tests.grammar.real_styles import Writer
from tests.grammar.suite import groups

WORDS = ["a", "b", "path", "query", "unit", "x" * 60, "", "é", "line\n", 'q"']
BOUNDS = [-7, 0, 0.5, 1, 3, 3.25, 1000, 10**12, 1e-9]
KEYWORDS: dict[str, list[Any]] = {
    "minLength": [0, 1, 5, 300],
    "maxLength": [0, 1, 5, 300, 90_000],
    "format": [*sorted(FORMATS), "int32", "unheard-of"],
    "minimum": BOUNDS,
    "maximum": BOUNDS,
    "exclusiveMinimum": BOUNDS,
    "exclusiveMaximum": BOUNDS,
    "minItems": [0, 1, 3, 16],
    "maxItems": [0, 1, 3, 900],
    "additionalProperties": [True, False, {"type": "string"}],
    "description": ["what it is"],
    "default": [None, {"a": 1}],
}
ODD: list[Any] = [
    {"type": "string", "pattern": "^[a-z]{2,9}$"},
    {"type": "string", "pattern": "^a$", "minLength": 2},
    {"type": "integer", "multipleOf": 3, "minimum": 1, "maximum": 2},
    {"type": "number", "multipleOf": 0.25},
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 2},
    {"not": {"type": "string"}},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "minProperties": 2},
    {"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1},
    {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]},
    {"type": "array", "prefixItems": [{"const": 1}, False], "minItems": 2},
    {"allOf": [{"type": "string"}, {"minLength": 3}], "maxLength": 2},
    {"type": "object", "properties": {"id": {"type": "string", "format": "regex"}}, "required": ["id"]},
]
"""Some have no value."""
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]


class Drawn:
    """Owner of the definitions of one schema, which may ask for what can't be."""

    def __init__(self, seed: int, odd: float = 0.0) -> None:
        """`odd`: the share of subschemas that aren't plain."""
        self._rng, self._odd = random.Random(seed), odd
        self._parts: dict[str, Any] = {}

    def schema(self) -> Any:
        root = self._object(0)
        return {**root, "$defs": self._parts} if self._parts else root

    def _sub(self, depth: int) -> Any:
        rng = self._rng
        if rng.random() < self._odd:
            return rng.choice(ODD)
        makers: list[Callable[[int], Any]] = [self._typed, self._typed, self._listed, lambda _: rng.choice([True, {}])]
        if depth < 4:
            makers += [self._typed, self._object, self._object, self._array, self._either, self._defined]
        found = rng.choice(makers)(depth)
        return {**found, "description": "text"} if found and found is not True and rng.random() < 0.2 else found

    def _typed(self, depth: int) -> Any:
        rng = self._rng
        types = rng.choice([rng.choice(TYPES), rng.sample(TYPES, 2)])
        return {"type": types} | {key: rng.choice(KEYWORDS[key]) for key in rng.sample(sorted(KEYWORDS), 2)}

    def _listed(self, depth: int) -> Any:
        rng = self._rng
        values = rng.sample([*WORDS, 1, 2, 40, True, None, 1.5], 3)
        said: dict[str, Any] = rng.choice([{"enum": values}, {"enum": WORDS[:3]}, {"const": values[0]}])
        return {**said, "type": "string"} if rng.random() < 0.4 else said

    def _object(self, depth: int) -> Any:
        rng = self._rng
        names = rng.sample(WORDS, rng.randrange(5))
        found = {"type": "object", "properties": {name: self._sub(depth + 1) for name in names}}
        asked = {"required": rng.sample(names, rng.randrange(len(names) + 1)), "additionalProperties": False}
        return found | {key: value for key, value in asked.items() if rng.random() < 0.6}

    def _array(self, depth: int) -> Any:
        found = {"type": "array", "items": self._sub(depth + 1)}
        return found | {key: self._rng.choice(KEYWORDS[key]) for key in ("minItems",) if self._rng.random() < 0.5}

    def _either(self, depth: int) -> Any:
        return {self._rng.choice(["anyOf", "oneOf"]): [self._sub(depth + 1), self._sub(depth + 1)]}

    def _defined(self, depth: int) -> Any:
        name = f"part{len(self._parts)}"
        self._parts[name] = True
        self._parts[name] = self._sub(depth + 1)
        return {"$ref": f"#/$defs/{self._rng.choice(sorted(self._parts))}"}


def start_cost(plan: Any) -> Limit:
    budget = Budget()
    with budget.spent(), alone():
        space = Space(n_locals=64)
        warm_up(space, begin(plan, space).start)
    return Limit(ENDLESS - budget.n_units, ENDLESS - budget.n_bytes)


def assert_as_proved(schema: Any, cost: Told, key_order: Literal["any", "schema"] = "any") -> None:
    plan = schema_plan(schema, key_order=key_order)
    prove_schema(plan, schema, "digits", key_order)
    told = start_cost(plan)
    assert told.n_units <= cost.n_units and told.n_bytes <= cost.n_bytes, (schema, told, cost)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_whatever_is_plain_is_proved_and_starts_within_its_cost(first: int) -> None:
    n_plain = 0
    for seed in range(first, first + 100):
        schema = Drawn(seed).schema()
        for asked in (schema, with_closing(schema, True)):
            if (cost := plain_schema(asked)) is not None:
                n_plain += 1
                assert_as_proved(asked, cost, "schema" if seed % 2 else "any")
    assert n_plain > 20


def test_whatever_is_plain_of_real_and_of_odd_schemas_is_proved() -> None:
    schemas = [group.schema for group in groups()] + [Writer(seed).schema() for seed in range(60)]
    plain = [(schema, cost) for schema in schemas if (cost := plain_schema(schema)) is not None]
    assert len(plain) > 30
    for schema, cost in plain:
        assert_as_proved(schema, cost)


def verdict_of(plan: Any) -> Verdict | None:
    """As whoever has learnt what isn't plain."""
    try:
        return verdict_at_once(plan, lambda part: verdict_at_once(part, verdict_of) or verdict_proved(part))
    except GrammarRefused:
        return None


@lru_cache
def verdict_proved(plan: Any) -> Verdict:
    [found] = msgspec.msgpack.decode(proved(msgspec.msgpack.encode(ProofJob((plan,)))), type=list[Verdict])
    return found


def test_plain_around_parts_that_are_not_is_proved_and_starts_within_the_cost_of_both() -> None:
    n_told = n_refused = 0
    for seed in range(80):
        schema = with_closing(Drawn(seed, odd=0.25).schema(), seed % 3 > 0)
        if plain_schema(schema) is None and (found := verdict_of(schema_plan(schema))) is not None:
            n_told += 1
            assert_as_proved(schema, Told(found.n_units, found.n_bytes, found.shortest))
        elif plain_schema(schema) is None:
            n_refused += 1
    assert n_told > 10 and n_refused > 10


def wide(sub: Any, n: int = MAX_NAMES) -> Any:
    return {"type": "object", "properties": {f"name{i}": sub for i in range(n)}, "required": [f"name{n - 1}"]}


def nested(n: int) -> Any:
    return {"type": "object", "properties": {"a": nested(n - 1)}, "required": ["a"]} if n else {"type": "string"}


LARGEST = {
    "names": wide({"type": "string", "maxLength": 300}),
    "formats": wide({"anyOf": [{"type": "string", "format": "uri"}, {"type": "null"}]}, 40),
    "every format": {"type": "object", "properties": {f: {"type": "string", "format": f} for f in FORMATS}},
    "words": wide({"enum": [f"word {i} of many" for i in range(30)]}),
    "depth": nested(15),
    "numbers": {"type": "object", "properties": {f"n{i}": {"type": "number", "minimum": -i / 8, "maximum": 10.0**i}
                                                 for i in range(14)}},
    "references": {"$defs": {"p": wide({"type": "number"}, 3)}, **wide({"$ref": "#/$defs/p"}, 60)},
    "lists": {"type": "array", "minItems": 16,
              "items": {"type": "array", "minItems": 16, "items": {"type": "boolean"}}},
    "anything": wide({}),
    "long texts": {"type": "object", "properties": {f"a{i}": {"type": "string", "minLength": 99_940 + i}
                                                    for i in range(60)}},
    "scalars": {"type": ["null", "boolean", "number", "string"], "maxLength": 70_000},
}  # fmt: skip


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_of_their_kind_are_cheap(name: str) -> None:
    schema = with_closing(LARGEST[name], True)
    for asked in (LARGEST[name], schema):
        cost = plain_schema(asked)
        assert cost is not None
        assert_as_proved(asked, cost)
    budget = QUESTION.budget()
    m = GrammarSpace(BYTES).matcher(check_schema(schema))
    with budget.spent():
        m.mask(m.start)
    assert QUESTION.n_units - budget.n_units < QUESTION.n_units / 10


NOT_PLAIN: list[Any] = [
    False,
    {"type": "string", "pattern": "a"},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "string", "minLength": True},
    {"type": "string", "format": "uri", "maxLength": 3},
    {"type": "string", "format": "regex"},
    {"type": "integer", "minimum": 1.2, "maximum": 1.8},
    {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    {"type": "number", "exclusiveMinimum": 1, "maximum": 1},
    {"type": "number", "minimum": 1e300},
    {"type": "number", "minimum": 1e-30},
    {"type": "number", "multipleOf": 2},
    {"minimum": 3},
    {"type": "string", "minimum": 3},
    {"type": "array", "minItems": 2, "maxItems": 1},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "items": [{}]},
    {"type": "array", "items": {"type": "array", "items": {"type": "array", "minItems": 16}, "minItems": 16},
     "minItems": 16},
    {"type": "object", "required": ["a"]},
    {"type": "object", "required": "a", "properties": {"a": {}}},
    {"type": "object", "properties": {"a": False}},
    {"type": "object", "properties": {"\ud800": {}}},
    {"type": "object", "properties": {"a": {}}, "minProperties": 1},
    {"type": "object", "properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}},
    {"type": "string", "enum": ["a", 1]},
    {"enum": ["a"], "maxLength": 0, "type": "string"},
    {"enum": []},
    {"enum": ["\ud800"]},
    {"const": [1]},
    {"type": "strnig"},
    {"type": []},
    {"anyOf": [{"type": "string"}, {"type": "string"}]},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "maxLength": 3},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": "#"},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {}},
    {"type": "string", "$defs": {"a": {"$id": "x", "type": "string"}}},
    {"$schema": "https://example.org/own", "type": "string"},
    {"x-unknown": 1},
    nested(40),
    wide({}, MAX_NAMES + 1),
    wide(wide(wide({"type": "string"}, 10), 10), 10),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(NOT_PLAIN)))
def test_what_has_to_be_proved_is_not_plain(number: int) -> None:
    assert plain_schema(NOT_PLAIN[number]) is None


def known(schema: Any) -> Told | None:
    return plain_schema(schema)


TEXT = {"type": "string", "maxLength": 40}
ENVELOPES: list[Node] = [
    Free((Branch(b"<c>", Seq((Lit(b"f("), Value(wide({"type": "string"}, 9)), Lit(b")")))),), may_end=True),
    Seq((Lit(b"<p>"), Raw(b"</p>"), Alt((Lit(b"<q>"), Seq(()))), Raw(b"</q>", {"enum": ["a", "b"]}))),
    Seq((Raw(b"</p>", TEXT), Raw(b"</p>", {"type": "string", "format": "uri"}))),
    Seq((Raw(b"</p>", {"anyOf": [TEXT, {"const": "null"}]}),)),
]


@pytest.mark.parametrize("number", range(len(ENVELOPES)))
def test_plain_envelopes_are_proved_and_start_within_their_cost(number: int) -> None:
    plan, cost = make_plan("envelope", PlanPayload(node=ENVELOPES[number])), plain_envelope(ENVELOPES[number], known)
    assert cost is not None
    prove(plan)
    told = start_cost(plan)
    assert told.n_units <= cost.n_units and told.n_bytes <= cost.n_bytes
    assert verdict_at_once(plan, lambda asked: verdict_at_once(asked, lambda _: None)) == Verdict(None, *cost)


@pytest.mark.parametrize(
    "node",
    [
        Seq((Lit(b"x"), Words("regex", "a+"))),
        Raw(b"</p>", {"type": "string", "pattern": "a"}),
        Raw(b"</p>", {"type": "integer"}),
        Raw(b""),
        Raw(b"</p>", {"enum": ["</p>"]}),
        Raw(b"</p>", {"enum": ["a<x>b"]}, never=(b"<x>",)),
        Raw(b"\n</p>\n", {"enum": ["\n</p>\n"]}),
        Raw(b"-", {"type": "string", "format": "date"}),
        Raw(b"-", {"anyOf": [{"type": "string", "format": "date"}, {"const": "null"}]}),
        Raw(b"</p>", {"enum": ["</p>"], "examples": [0] * MAX_TEXT}),
        Raw(b"</p>", {"type": "string", "minLength": 2000}),
        Raw(b"<" + b"ab" * 2000 + b">"),
        Value({"type": "string", "pattern": "a"}),
        Free((Branch(b"", Lit(b"x")),)),
    ],
)
def test_other_envelopes_are_not_plain(node: Node) -> None:
    assert plain_envelope(node, known) is None
    assert verdict_at_once(make_plan("envelope", PlanPayload(node=node)), lambda _: None) is None


def test_a_schema_nested_beyond_reading_is_no_matter_of_counting() -> None:
    plan = make_plan("json_schema", PlanPayload(schema='{"items":' * 5_000 + "{}" + "}" * 5_000))
    assert verdict_at_once(plan, lambda _: None) is None
