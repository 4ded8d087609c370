"""Schemas made to hurt: each is compiled or refused within the work budget, the same way every time."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from imp_server.core import GrammarRefused
from imp_server.grammar.check import check_schema
from jsonschema.validators import Draft202012Validator

from tests.grammar.judging import matcher, reads


def nested(depth: int, keyword: str) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"allOf": [schema]} if keyword == "allOf" else {"properties": {"a": schema}, "required": ["a"]}
    return schema


def clauses(n: int) -> Any:
    """A random 3-SAT instance over Boolean properties, too tight to be satisfied easily."""
    rng = random.Random(1)

    def literal() -> Any:
        name = f"x{rng.randrange(n)}"
        return {"properties": {name: {"const": rng.random() < 0.5}}, "required": [name]}

    bools = {"type": "object", "additionalProperties": {"type": "boolean"}}
    return bools | {"allOf": [{"anyOf": [literal() for _ in range(3)]} for _ in range(5 * n)]}


CHAIN = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(3000)} | {"a3000": {}}
DOUBLING = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(60)} | {"a60": {"type": "integer"}}
HOSTILE: dict[str, Any] = {
    "deep objects": nested(5000, "properties"),
    "deep allOf": nested(5000, "allOf"),
    "a chain of references": {"$ref": "#/$defs/a0", "$defs": CHAIN},
    "references that double": {"$ref": "#/$defs/a0", "$defs": DOUBLING},
    "a reference to itself": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    "a large enum": {"enum": [f"v{i}" for i in range(20_000)]},
    "many properties": {"properties": {f"p{i}": {} for i in range(5000)}},
    "many unique items": {"type": "array", "uniqueItems": True, "minItems": 3000},
    "a long minimum": {"type": "string", "minLength": 10**7},
    "an overlapping oneOf": {
        "oneOf": [{"type": "object", "properties": {f"p{i}{j}": {"type": "null"} for j in range(9)}} for i in range(20)]
    },
    "a contradiction by counting": {
        "type": "object",
        "allOf": [{"oneOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)],
        "maxProperties": 19,
    },
    "clauses": clauses(20),
    "unevaluated beside alternatives": {
        "unevaluatedProperties": False,
        "anyOf": [{"properties": {f"p{i}": {}}} for i in range(20)],
    },
    "a regex of optional parts": {"type": "string", "pattern": "^(a?){500}a{500}$"},
    "patterns that multiply": {"type": "string", "allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(3, 14)]},
    "names that obey many patterns": {
        "propertyNames": {"allOf": [{"pattern": f"{chr(97 + i)}.{{{i}}}{chr(98 + i)}"} for i in range(12)]},
        "type": "object",
        "minProperties": 2,
    },
    "keys of many patterns": {
        "type": "object",
        "patternProperties": {f"{chr(97 + i)}.{{{i % 7}}}{chr(98 + i)}": {"minLength": i} for i in range(20)},
        "additionalProperties": False,
        "minProperties": 3,
    },
    "tiny steps over a wide range": {"type": "number", "multipleOf": 1e-300, "minimum": 1e300},
    "not a number": {"minimum": float("nan")},
    "lone surrogates": {"enum": ["\ud800"], "properties": {"\ud800": {}}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_check_is_bounded(name: str) -> None:
    began = time.process_time()
    outcomes = []
    for _ in range(2):
        try:
            outcomes.append(check_schema(HOSTILE[name]).digest)
        except GrammarRefused as refusal:
            outcomes.append(refusal.message)
    assert outcomes[0] == outcomes[1]
    # far above what any of them takes: this catches an exponential, not a slow machine
    assert time.process_time() - began < 20


PROVABLE: dict[str, Any] = {
    "one of many formats": {
        "oneOf": [
            {"type": "string", "format": name}
            for name in ("date", "email", "uri", "ipv6", "uuid", "hostname", "duration", "date-time")
        ]
    },
    "one of some words and every regex": {"oneOf": [{"enum": ["", "x y", "10.0.0.1"]}, {"format": "regex"}]},
    "no format": {
        "type": "string",
        "allOf": [{"not": {"format": name}} for name in ("date", "uri", "ipv6", "hostname")],
    },
    "names of many rules": {
        "type": "object",
        "propertyNames": {"allOf": [{"pattern": f"{chr(97 + i)}.{{{i}}}{chr(98 + i)}"} for i in range(5)]},
        "minProperties": 2,
    },
    "one of eight patterns": {
        "oneOf": [{"type": "string", "pattern": f"{chr(97 + i)}..{chr(98 + i)}"} for i in range(8)]
    },
    "many texts in one": {
        "type": "string",
        "allOf": [{"pattern": f"{chr(97 + i)}.{{{i}}}{chr(98 + i)}"} for i in range(9)],
    },
}


@pytest.mark.parametrize("name", PROVABLE)
def test_large_products_are_proved_by_words_of_their_parts(name: str) -> None:
    """None of them could be explored as a whole."""
    m = matcher(PROVABLE[name])
    text = m.way_out(m.start)
    assert reads(m, text) and Draft202012Validator(
        PROVABLE[name], format_checker=Draft202012Validator.FORMAT_CHECKER
    ).is_valid(json.loads(text))
