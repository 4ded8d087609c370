"""Calls of a tool hold what it declares; closing its schema only ever takes keys away."""

from __future__ import annotations

import itertools
import random
from typing import Any

import jsonschema
import pytest
from imp_server.core import ChatRequest, Message, TextPart, Tool, ToolChoice
from imp_server.grammar.check import Rules
from imp_server.text.tools.declared import declared_only
from imp_server.text.tools.enforce import bound_tools, offered_tools

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SHUT = {"additionalProperties": False}
LEFT_OPEN = [
    {"type": "object"},
    {"type": "object", "properties": {}},
    CITY | {"additionalProperties": True},
    CITY | {"additionalProperties": {"type": "integer"}},
    CITY | {"required": ["city", "country"]},
    CITY | {"patternProperties": {"^x": {}}},
    CITY | {"minProperties": 3},
    CITY | {"anyOf": [{"required": ["country"]}, {"required": ["zip"]}]},
    CITY | {"oneOf": [CITY, {}]},
    CITY | {"not": CITY},
    CITY | {"if": CITY, "then": {"required": ["zip"]}},
    CITY | {"properties": {"self": {"$ref": "#"}}, "required": []},
    {"type": "object", "oneOf": [CITY]},
    {"allOf": [CITY, {"properties": {"zip": {}}}]},
]


@pytest.mark.parametrize("schema", LEFT_OPEN)
def test_what_may_mean_more_stays_open(schema: dict[str, Any]) -> None:
    assert declared_only(schema) == schema


def test_objects_are_closed_wherever_they_stand() -> None:
    nested = {
        "type": "object",
        "properties": {"at": CITY, "all": {"type": "array", "items": CITY}, "any": {"anyOf": [CITY]}},
    }
    shut = declared_only(nested)
    assert shut == {
        "type": "object",
        "properties": {
            "at": CITY | SHUT,
            "all": {"type": "array", "items": CITY | SHUT},
            "any": {"anyOf": [CITY | SHUT]},
        },
        **SHUT,
    }
    assert nested["properties"]["at"] == CITY and "additionalProperties" not in nested


def test_definitions_are_closed_where_each_use_stands_alone() -> None:
    def schema(use: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "properties": {"at": use}, "$defs": {"city": CITY}}

    alone = {"$ref": "#/$defs/city", "description": "where"}
    assert declared_only(schema(alone))["$defs"]["city"] == CITY | SHUT
    shared: list[dict[str, Any]] = [
        {"$ref": "#/$defs/city", "properties": {"zip": {}}},
        {"allOf": [{"$ref": "#/$defs/city"}, {"properties": {"zip": {}}}]},
        {"oneOf": [{"$ref": "#/$defs/city"}, {"type": "null"}]},
        {"anyOf": [{"$ref": "#/$defs/city"}], "properties": {"zip": {}}},
        {"not": {"$ref": "#/$defs/city"}},
    ]
    for use in shared:
        assert declared_only(schema(use))["$defs"]["city"] == CITY, use


def test_a_parameter_may_be_called_like_a_keyword() -> None:
    schema = {"type": "object", "properties": {"not": {"type": "string"}, "$ref": {"type": "string"}}}
    assert declared_only(schema) == schema | SHUT


def _random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["integer", "string", "object", "object", "anyOf", "oneOf", "not", "allOf", "ref", "array"]
    kind = rng.choice(kinds if depth < 3 else kinds[:2])

    def inner() -> dict[str, Any]:
        return _random_schema(rng, depth + 1)

    def members() -> dict[str, Any]:
        names = rng.sample("abc", rng.randint(0, 2))
        more: dict[str, Any] = {"required": [names[0]]} if names and rng.random() < 0.4 else {}
        return {"properties": {name: inner() for name in names}, **more}

    match kind:
        case "object":
            extra: list[dict[str, Any]] = [{}, {}, {}, {"anyOf": [inner(), members()]}, {"oneOf": [inner(), inner()]}]
            return {"type": "object", **members(), **rng.choice([*extra, {"not": members()}, {"$ref": "#/$defs/d"}])}
        case "anyOf" | "oneOf" | "allOf":
            return {kind: [inner(), inner()]}
        case "not":
            return {"not": inner()}
        case "ref":
            return {"$ref": "#/$defs/d"}
        case "array":
            return {"type": "array", "items": inner(), **rng.choice([{}, {"contains": inner()}])}
        case _:
            return {"type": kind}


def _random_value(rng: random.Random, depth: int = 0) -> Any:
    if depth < 3 and rng.random() < 0.7:
        if rng.random() < 0.2:
            return [_random_value(rng, depth + 1) for _ in range(rng.randint(0, 2))]
        return {name: _random_value(rng, depth + 1) for name in rng.sample("abcd", rng.randint(0, 3))}
    return rng.choice([1, "x"])


def test_whatever_the_closed_schema_allows_the_tools_own_allows() -> None:
    rng = random.Random(5)
    seen = dict.fromkeys(itertools.product((True, False), (True, False)), 0)
    for _ in range(4000):
        schema = {"type": "object", **_random_schema(rng, 1), "$defs": {"d": _random_schema(rng, 2)}}
        if schema["$defs"]["d"].get("$ref"):
            continue  # a definition that is itself
        closed = declared_only(schema)
        if closed == schema:
            continue
        own, shut = jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(closed)
        for value in (_random_value(rng) for _ in range(12)):
            try:
                outcome = (shut.is_valid(value), own.is_valid(value))
            except RecursionError:
                break  # a definition that leads to itself
            seen[outcome] += 1
            assert outcome != (True, False), (schema, value)
    assert seen[(True, True)] > 100 and seen[(False, True)] > 100


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_operator_may_leave_them_open(mode: Any) -> None:
    user = Message("user", (TextPart("hi"),))
    chat = ChatRequest((user,), tools=(Tool(name="weather", parameters=CITY),), tool_choice=ToolChoice(mode))
    assert bound_tools(chat, offered_tools(chat))[0].schema == CITY | SHUT
    assert bound_tools(chat, offered_tools(chat), Rules(extra_arguments=True))[0].schema == CITY


def test_a_schema_that_nothing_satisfies_when_closed_is_served_as_it_is() -> None:
    item = {"type": "object", "properties": {"x": {"const": 1}}}
    three = {"type": "array", "items": item, "uniqueItems": True, "minItems": 3, "maxItems": 3}
    parameters = {"type": "object", "properties": {"all": three}, "required": ["all"]}
    chat = ChatRequest((), tools=(Tool(name="t", parameters=parameters),), tool_choice=ToolChoice("required"))
    assert declared_only(parameters) != parameters
    assert bound_tools(chat, offered_tools(chat))[0].schema == parameters
