"""if/then about a tag: decided by the tag's values, wherever the schema stands, each branch writable in any order."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imp_server.core import GrammarRefused, GrammarUnsatisfiable
from imp_server.grammar.check import check_schema
from imp_server.grammar.engine import GrammarSpace
from jsonschema import Draft202012Validator

from tests.grammar.judging import BYTES, reads

TEXT = {"type": "string"}


def chain(n: int, otherwise: bool, shut: bool) -> Any:
    """n branches on `name`: each demands a member of its own, and perhaps no others, or forbids it where it fails."""
    parts: list[Any] = [
        {"type": "object", "properties": {"name": {"enum": [f"k{i}" for i in range(n)]}}, "required": ["name"]}
    ]
    for i in range(n):
        then: dict[str, Any] = {"properties": {"name": {}, f"v{i}": TEXT}, "required": [f"v{i}"]}
        part = {
            "if": {"required": ["name"], "properties": {"name": {"const": f"k{i}"}}},
            "then": then | ({"additionalProperties": False} if shut else {}),
        }
        parts.append(part | ({"else": {"not": {"required": [f"v{i}"]}}} if otherwise else {}))
    return {"allOf": parts}


def nested_else(n: int) -> Any:
    schema: Any = {"properties": {"v": {"const": "other"}}, "required": ["v"]}
    for i in reversed(range(n)):
        condition = {"properties": {"name": {"const": f"k{i}"}}, "required": ["name"]}
        schema = {"if": condition, "then": {"properties": {"v": {"const": i}}, "required": ["v"]}, "else": schema}
    return {"type": "object", "properties": {"name": TEXT}, "required": ["name"], **schema}


VALUES: list[Any] = [
    {"name": "k1", "v1": "x"}, {"v1": "x", "name": "k1"}, {"name": "k1", "v2": "x"}, {"name": "k1"},
    {"name": "k1", "v1": "x", "w": 1}, {"v5": "y", "name": "k5"}, {"name": "zz"},
]  # fmt: skip
PLACES: dict[str, Any] = {
    "root": lambda s: s,
    "property": lambda s: {"type": "object", "properties": {"a": s, "b": TEXT}},
    "item": lambda s: {"type": "array", "items": s},
    "any property": lambda s: {"type": "object", "additionalProperties": s},
    "reference": lambda s: {"$defs": {"c": s}, "properties": {"a": {"$ref": "#/$defs/c"}}, "type": "object"},
}
FRAMES = {
    "root": "%s",
    "property": '{"a":%s,"b":""}',
    "item": "[%s]",
    "any property": '{"z":%s}',
    "reference": '{"a":%s}',
}


def judge(schema: Any, texts: list[str]) -> None:
    shared = GrammarSpace(BYTES)
    m = shared.matcher(check_schema(schema))
    validator = Draft202012Validator(schema)
    verdicts = {text: reads(m, text) for text in texts}
    assert verdicts == {text: validator.is_valid(json.loads(text)) for text in texts}
    assert True in verdicts.values() and False in verdicts.values()
    assert validator.is_valid(json.loads(m.way_out(m.start)))
    assert not shared.space.solver.gave_up


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("otherwise", "shut"), itertools.product((False, True), repeat=2))
def test_a_chain_has_exactly_its_verdicts(place: str, otherwise: bool, shut: bool) -> None:
    schema = PLACES[place](chain(12, otherwise, shut))
    judge(schema, [FRAMES[place] % json.dumps(value) for value in VALUES])


@pytest.mark.parametrize("otherwise", [False, True])
def test_a_long_chain(otherwise: bool) -> None:
    values = [*VALUES, {"name": "k49", "v49": ""}, {"v49": "", "name": "k49"}, {"v49": "", "name": "k48"}]
    texts = [FRAMES["property"] % json.dumps(value) for value in values]
    judge(PLACES["property"](chain(50, otherwise, False)), texts)


def test_a_chain_of_elses() -> None:
    values = [
        {"name": "k3", "v": 3},
        {"v": 3, "name": "k3"},
        {"name": "zz", "v": "other"},
        {"v": "other", "name": "k3"},
    ]
    judge(nested_else(30), [json.dumps(value) for value in [*values, {"v": 3, "name": "k4"}, {"name": "zz", "v": 3}]])


def test_a_tag_that_may_be_missing() -> None:
    """An `if` about a property that isn't there holds."""
    patterns = {"US": "^[0-9]{5}$", "NL": "^[0-9]{4}$", "CA": "^[A-Z]{3}$"}
    schema = {
        "type": "object",
        "properties": {"country": {"enum": [*patterns, None]}},
        "allOf": [
            {"if": {"properties": {"country": {"const": c}}}, "then": {"properties": {"zip": {"pattern": p}}}}
            for c, p in patterns.items()
        ],
    }
    pairs: list[tuple[Any, Any]] = [("US", "12345"), ("NL", "1234"), ("US", "1234"), (None, "any"), ("CA", "any")]
    values = [v for c, z in pairs for v in ({"country": c, "zip": z}, {"zip": z, "country": c})]
    values += [{"zip": "12345"}, {"zip": 1}, {}, {"country": "US"}]
    judge(schema, [json.dumps(value) for value in values])


def test_tags_of_all_types() -> None:
    tags: list[Any] = [True, False, None, 0, 1, "0", 2.5]
    schema = {
        "type": "object",
        "required": ["t"],
        "allOf": [
            {"if": {"properties": {"t": {"const": tag}}}, "then": {"required": [f"v{i}"]}} for i, tag in enumerate(tags)
        ],
    }
    values = [{"t": tag, f"v{i + more}": 0} for i, tag in enumerate(tags) for more in (0, 1)]
    judge(schema, [json.dumps(value) for value in [*values, {"t": []}, {"t": {"x": 1}}, {"t": 7}, {"v0": 0, "t": 1}]])


def test_negations_of_constants() -> None:
    schema = {"allOf": [{"not": {"properties": {"a": {"const": f"k{i}"}}, "required": ["a"]}} for i in range(30)]}
    judge(schema, [json.dumps(v) for v in ({"a": "z"}, {"a": "k3"}, {}, {"b": 1, "a": "k29"}, {"a": 3})])


def test_pigeons_are_refused_quickly() -> None:
    """More constants than names to hold them: an answer within the units of a check, of either kind."""
    names = [f"a{i}" for i in range(10)]
    schema = {
        "type": "object",
        "allOf": [{"not": {"properties": {n: {"not": {"const": k}} for n in names}}} for k in range(11)],
    }
    with pytest.raises(GrammarRefused):
        check_schema(schema)


CONSTANTS: list[Any] = [0, "a", None, True]
about_a_tag: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda c: {"const": c}, st.sampled_from(CONSTANTS)),
    st.builds(lambda cs: {"enum": cs}, st.lists(st.sampled_from(CONSTANTS), min_size=1, max_size=2)),
    st.builds(lambda c: {"not": {"const": c}}, st.sampled_from(CONSTANTS)),
    st.sampled_from([{"type": "string"}, {"type": ["null", "array"]}]),
)
objects: st.SearchStrategy[Any] = st.builds(
    lambda properties, more: {"properties": properties, **more},
    st.dictionaries(st.sampled_from("tu"), about_a_tag, min_size=1),
    st.sampled_from(
        [{}, {"required": ["t"]}, {"required": ["u"]}, {"additionalProperties": False}, {"maxProperties": 1}]
    ),
)
parts = st.one_of(
    st.builds(lambda i, t, e: {"if": i, "then": t, "else": e}, objects, objects, objects | st.just(True)),
    st.builds(lambda s: {"not": s}, objects),
    st.builds(lambda k, ss: {k: ss}, st.sampled_from(["anyOf", "oneOf"]), st.lists(objects, min_size=2, max_size=3)),
    objects,
)
ALL = [
    {name: value for name, value in (("t", t), ("u", u)) if value != "missing"}
    for t in ("missing", *CONSTANTS, "z", [])
    for u in ("missing", *CONSTANTS, "z")
]


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(parts, min_size=2, max_size=5))
def test_random_conditions_on_two_tags(conditions: list[Any]) -> None:
    """Against the validator on all values, with their members in both orders."""
    schema = {"type": "object", "allOf": conditions}
    validator = Draft202012Validator(schema)
    valid = [value for value in ALL if validator.is_valid(value)]
    try:
        m = GrammarSpace(BYTES).matcher(check_schema(schema))
    except GrammarUnsatisfiable:
        assert not valid
        return
    except GrammarRefused:
        return
    for value in ALL:
        for members in ([*value.items()], [*value.items()][::-1]):
            assert reads(m, json.dumps(dict(members))) == validator.is_valid(value), members
    assert validator.is_valid(json.loads(m.way_out(m.start)))
