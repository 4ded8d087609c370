"""Unions whose branches a tag, or the names that are there, tell apart: each can be written, the cost is a sum."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.core.turns import ENDLESS, Budget
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace, Matcher
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.exclusive import Exclusive
from imp_server.grammar.values.extents import Extents
from imp_server.grammar.values.formula import ONE, Formula
from imp_server.grammar.values.schema.document import Document
from imp_server.grammar.values.schema.expand import Expander
from jsonschema import Draft202012Validator

from tests.grammar.judging import BYTES, reads
from tests.grammar.schemas import schemas, values
from tests.grammar.test_masks import VOCABULARY, allowed


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string"}


def tagged(n: int, tag: Any = lambda i: {"const": f"k{i}"}) -> list[Any]:
    return [closed(type=tag(i), data=closed(**{f"u{i}": TEXT})) for i in range(n)]


def texts(n: int, tag: Any = lambda i: f"k{i}") -> list[Any]:
    """Of the first, a middle and the last branch, tag first and last; then with the tag of another one."""
    found: list[Any] = []
    for i in (0, n // 2, n - 1):
        data = {f"u{i}": "x"}
        found += [{"type": tag(i), "data": data}, {"data": data, "type": tag(i)}]
        found += [{"type": tag(i - 1), "data": data}, {"data": data, "type": tag(i - 1)}]
    return found


def deep(depth: int) -> Any:
    """Levels of three branches, told apart by their only names."""
    leaves = [{"type": "null"}, {"type": "null"}, {"type": "integer"}]
    below: list[Any] = [closed(**{f"l0{c}": leaf}) for c, leaf in zip("abc", leaves)]
    for level in range(1, depth):
        below = [closed(**{f"l{level}{c}": {"oneOf": below}}) for c in "abc"]
    return {"oneOf": below}


def deep_value(path: str, leaf: Any) -> Any:
    for level, letter in enumerate(reversed(path)):
        leaf = {f"l{level}{letter}": leaf}
    return leaf


def present(n: int, plain: bool) -> Any:
    """One of the names is there (plain), or one of those that are there is a string."""
    names = [f"p{i}" for i in range(n)]
    branches = [{"required": [name], **({} if plain else {"properties": {name: TEXT}})} for name in names]
    properties = dict.fromkeys(names, TEXT if plain else True)
    return {"type": "object", "properties": properties, "additionalProperties": False, "oneOf": branches}


RECURSIVE = {
    "$defs": {
        "e": {
            "oneOf": [
                *(
                    closed(op={"const": f"o{i}"}, args={"type": "array", "items": {"$ref": "#/$defs/e"}})
                    for i in range(30)
                ),
                {"type": "number"},
            ]
        }
    },
    "$ref": "#/$defs/e",
}
SHARED = {
    "$defs": {
        "base": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
        **{
            f"d{i}": {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"type": {"const": f"k{i}"}, f"v{i}": TEXT},
                                                           "required": ["type", f"v{i}"]}]}
            for i in range(40)
        },
    },
    "oneOf": [{"$ref": f"#/$defs/d{i}"} for i in range(40)],
}  # fmt: skip
CONSTANTS = [True, False, None, 0, "0", 1, 2.5]
UNIONS: dict[str, tuple[Any, list[Any]]] = {
    "22 of anyOf": ({"anyOf": tagged(22)}, texts(22)),
    "22 of oneOf": ({"oneOf": tagged(22)}, texts(22)),
    "200 of oneOf": ({"oneOf": tagged(200)}, texts(200)),
    "300 of oneOf, more than one row of results": ({"oneOf": tagged(300)}, texts(300)),
    "integers": ({"oneOf": tagged(40, lambda i: {"const": i})}, texts(40, lambda i: i)),
    "sets": ({"oneOf": tagged(40, lambda i: {"enum": [f"a{i}", f"b{i}"]})}, texts(40, lambda i: f"b{i}")),
    "two branches share a constant": (
        {"oneOf": tagged(40, lambda i: {"enum": [f"k{i}", f"k{4 if i == 3 else i}"]})},
        [*texts(40), {"type": "k4", "data": {"u3": "x"}}, {"type": "k4", "data": {"u4": "x"}}],
    ),
    "all types of constants": (
        {"oneOf": [closed(t={"const": c}, **{f"v{i}": TEXT}) for i, c in enumerate(CONSTANTS)]},
        [x for i, c in enumerate(CONSTANTS) for x in ({"t": c, f"v{i}": ""}, {f"v{i}": "", "t": CONSTANTS[i - 1]})],
    ),
    "inside a header": (
        {"oneOf": [closed(m=closed(kind={"const": f"k{i}"}, v=TEXT), **{f"b{i}": TEXT}) for i in range(40)]},
        [{"m": {"kind": "k7", "v": ""}, "b7": ""}, {"b7": "", "m": {"v": "", "kind": "k7"}},
         {"b7": "", "m": {"v": "", "kind": "k8"}}],
    ),
    "in definitions": (
        SHARED,
        [{"id": 1, "type": "k7", "v7": "x"}, {"v7": "x", "type": "k7", "id": 1}, {"id": 1, "type": "k7", "v8": "x"}],
    ),
    "first items": (
        {"oneOf": [{"type": "array", "prefixItems": [{"const": f"k{i}"}, closed(**{f"v{i}": TEXT})], "minItems": 2}
                   for i in range(30)]},
        [["k7", {"v7": "x"}], ["k7", {"v8": "x"}], ["k29", {"v29": "x"}], ["k7"]],
    ),
    "recursive": (
        RECURSIVE,
        [{"op": "o3", "args": [1, {"args": [{"op": "o29", "args": []}], "op": "o4"}]}, {"op": "o30", "args": []},
         {"args": [{"args": [{"args": [2], "op": "o1"}], "op": "o2"}], "op": "o3"}],
    ),
    "six levels": (
        deep(6),
        [deep_value(path, leaf) for path in ("aaaaaa", "cbacbc", "bbbbbc") for leaf in (None, 3, "x")],
    ),
    "which of 18 is a string": (
        present(18, False), [{"p0": "x"}, {"p17": "x"}, {"p0": 1, "p17": "x"}, {"p0": "x", "p17": "x"}, {}, {"p3": 1}]
    ),
    "which of 100 is a string": (
        present(100, False), [{"p0": "x"}, {"p99": "x"}, {"p0": 1, "p99": "x"}, {"p99": "x", "p0": 1, "p50": 2},
                              {"p0": "x", "p99": "x"}, {"p1": 1, "p7": "x", "p8": "x"}, {}, {"p3": 1}]
    ),
    "which of 100 is there": (present(100, True), [{"p0": "x"}, {"p99": "x"}, {"p7": "x", "p99": "x"}, {}]),
}  # fmt: skip


@pytest.mark.parametrize("name", UNIONS)
def test_each_branch_can_be_written(name: str) -> None:
    schema, instances = UNIONS[name]
    validator = Draft202012Validator(schema)
    shared = GrammarSpace(BYTES)
    m = shared.matcher(check_schema(schema))
    budget = Budget()
    with budget.spent():
        verdicts = {json.dumps(v): reads(m, json.dumps(v)) for v in instances}
    assert verdicts == {json.dumps(v): validator.is_valid(v) for v in instances}
    assert True in verdicts.values() and False in verdicts.values()
    assert not shared.space.solver.gave_up
    assert ENDLESS - budget.n_units < 150_000


@pytest.mark.parametrize("name", UNIONS)
def test_walks_through_them_are_valid(name: str) -> None:
    schema, _ = UNIONS[name]
    m = GrammarSpace(VOCABULARY).matcher(check_schema(schema))
    walked = walk(m, random.Random(name))
    assert Draft202012Validator(schema).is_valid(json.loads(walked)), walked


def walk(m: Matcher, rng: random.Random) -> bytes:
    state, out = m.start, b""
    for _ in range(20):
        ids = allowed(m, state) - set(VOCABULARY.end_ids)
        if not ids:
            break
        token = rng.choice(sorted(ids, key=lambda i: (len(VOCABULARY.token_bytes[i]), i))[: rng.choice([8, 400])])
        after = m.advance(state, token)
        assert after is not None
        state, out = after, out + VOCABULARY.token_bytes[token]
    return out + m.way_out(state)


def test_disjoint_branches_are_a_sum() -> None:
    """None of these is left to be counted; where two overlap those two are."""
    for name in (
        "22 of oneOf",
        "all types of constants",
        "inside a header",
        "in definitions",
        "first items",
        "six levels",
    ):
        assert _counted(_settled(UNIONS[name][0])) == [], name
    tags = [["a"], ["b", "c"], ["c", "d"], ["e"]]
    assert _counted(_settled({"oneOf": [closed(type={"enum": tag}, data=TEXT) for tag in tags]})) == [2]
    assert _counted(_settled(UNIONS["which of 18 is a string"][0])) == [18]


def _settled(schema: Any) -> Formula:
    return Expander(Document(schema), Algebra(), "x").root()


def _counted(f: Formula) -> list[int]:
    return [len(f.args)] * (f.op == ONE) + [n for a in f.args for n in _counted(a)]


unions = st.builds(
    lambda keyword, branches, beside: {**beside, keyword: branches},
    st.sampled_from(["oneOf", "anyOf"]),
    st.lists(schemas, min_size=2, max_size=5),
    st.sampled_from(
        [{}, {"type": "object"}, {"required": ["a"]}, {"additionalProperties": False, "properties": {"a": {}}}]
    ),
)  # fmt: skip


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck), database=None)
@given(unions, st.lists(values, min_size=8, max_size=12))
def test_what_is_apart_has_no_value_in_common(schema: Any, instances: list[Any]) -> None:
    algebra = Algebra()
    expander = Expander(Document(schema), algebra, "x")
    branches = next(branches for keyword, branches in schema.items() if keyword in ("oneOf", "anyOf"))
    extents = Extents(algebra.formulas)
    try:
        found = [extents.of(expander.formula(b, expander.document.start)) for b in branches]
    except (GrammarRefused, GrammarUnsatisfiable):
        return
    for i, a in enumerate(found):
        for j in range(i):
            if extents.are_apart(a, found[j]):
                both = Draft202012Validator({"allOf": [branches[i], branches[j]]})
                assert not any(both.is_valid(v) for v in instances)
    assert Exclusive(algebra.formulas).settled(algebra.formulas.true) is algebra.formulas.true
