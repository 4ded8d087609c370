"""Faults that constrained decoding has had elsewhere; each is impossible here."""

from __future__ import annotations

import time
from typing import Any

import pytest
from imp_server.core import GrammarRefused, GrammarUnsatisfiable

from tests.grammar.judging import accepts, matcher

OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False}

CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("a declared name never goes through the catch-all", OPEN, ['{"a":1}', '{"b":"x","a":1}'], ['{"a":"wrong"}']),
    ("nor spelled with an escape", OPEN, ['{"b":1}'], ['{"\\u0061":"wrong"}', '{"a":1,"\\u0061":2}']),
    ("no key comes twice", OPEN, ['{"b":1,"c":1}'], ['{"b":1,"b":2}', '{"a":1,"a":1}', '{"b":1,"\\u0062":1}']),
    (
        "anyOf of required beside properties",
        CLOSED | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":1}', '{"b":1,"a":1}'],
        ["{}", '{"c":1}'],
    ),
    ("the same binds objects alone", {"anyOf": [{"required": ["a"]}], "type": "object"}, ['{"a":3}'], ["3", "{}"]),
    (
        "allOf is an intersection",
        {
            "$defs": {"base": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}},
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"name": {"type": "string"}}, "required": ["name"]}],
        },
        ['{"name":"x","id":1}'],
        ['{"id":1}', '{"name":"x"}', '{"name":"x","id":"1"}', "[]"],
    ),
    ("required without properties", {"type": "object", "required": ["a"]}, ['{"a":1,"b":2}'], ["{}"]),
    (
        "a name both declared and matched by a pattern",
        {"properties": {"ax": {"type": "integer"}}, "patternProperties": {"^a": {"minimum": 5}}},
        ['{"ax":7}', '{"ab":9}'],
        ['{"ax":3}', '{"ax":7.5}', '{"ab":2}'],
    ),
    (
        "propertyNames beside additionalProperties",
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "integer"}},
        ['{"ab":1}'],
        ['{"ab":"x"}', '{"A":1}'],
    ),
    ("pattern is searched", {"type": "string", "pattern": "cat"}, ['"a cat sat"', '"cat"'], ['"dog"']),
    ("patternProperties, too", {"patternProperties": {"x": {"type": "null"}}}, ['{"axb":null}'], ['{"axb":1}']),
    (
        "pattern and lengths",
        {"type": "string", "pattern": "^a*$", "minLength": 2, "maxLength": 3},
        ['"aa"', '"aaa"'],
        ['"a"', '"aaaa"', '"bb"'],
    ),
    (
        "pattern without type binds strings alone",
        {"pattern": "^a", "maxLength": 2},
        ['"ab"', "5", "[]"],
        ['"b"', '"abc"'],
    ),
    (
        "escapes in bounded strings",
        {"type": "string", "maxLength": 2},
        ['"\\n\\""', '"\\\\\\u00e9"', '"\\ud83d\\ude00x"'],
        ['"abc"'],
    ),
    ("control characters are escaped", {"type": "string"}, ['"\\u0001"', '"\x7f"', '"\\/"'], ['"\x01"', '"\n"']),
    ("lone surrogates stay out", {"type": "string"}, ['"\\ud83d\\ude00"'], ['"\\ud83d"', '"\\ude00"', '"\\ud83dx"']),
    ("exclusive bounds", {"type": "number", "exclusiveMinimum": 0}, ["0.1", "1000"], ["0", "-1", "0.0"]),
    ("bounds on decimals", {"type": "number", "minimum": 1, "maximum": 5}, ["1", "4.99", "5.0"], ["5.7", "0.9"]),
    ("bounds below zero", {"type": "integer", "minimum": -5, "maximum": 3}, ["-5", "-1", "0", "3"], ["-6", "4", "1.5"]),
    ("the dot is a dot", {"type": "number", "minimum": 0.5}, ["0.5"], ["0,5", "0x5"]),
    ("no leading zeros", {"type": "integer", "minimum": 3}, ["3", "30"], ["03", "01", "+3"]),
    ("multipleOf on integers", {"type": "integer", "multipleOf": 3}, ["9", "-3", "0"], ["4", "10"]),
    ("multipleOf on decimals", {"type": "number", "multipleOf": 0.5}, ["1.5", "2", "2.0"], ["1.25", "0.3"]),
    (
        "oneOf of overlapping ranges",
        {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]},
        ["2", "6"],
        ["3", "4", "5"],
    ),
    ("code points, not bytes", {"enum": ["é", "日本"]}, ['"é"', '"日本"', '"\\u00e9"'], ['"Ã©"', '"日"']),
    ("classes of code points", {"pattern": "^[а-я]{2}$", "type": "string"}, ['"да"'], ['"d"', '"д"']),
    ("brackets are no space", {"type": "string", "pattern": r"^\S+$"}, ['"[x]"'], ['"a b"', '""']),
    ("shorthand classes", {"type": "string", "pattern": r"^\d+$"}, ['"042"'], ['"4x"', '""']),
    (
        "nested objects with alternating patterns",
        {"type": "object", "properties": {"o": {"type": "object", "properties": {"s": {"pattern": "^(a|b)+$"}}}}},
        ['{"o":{"s":"abab"}}'],
        ['{"o":{"s":"c"}}'],
    ),
    ("empty properties", {"type": "object", "properties": {}}, ["{}", '{"x":1}'], ["[]"]),
    (
        "a pointer into an array",
        {
            "properties": {
                "x": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
                "y": {"$ref": "#/properties/x/anyOf/1"},
            }
        },
        ['{"y":3}'],
        ['{"y":null}'],
    ),
    (
        "required and optional in all orders of presence",
        {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"], "additionalProperties": False},
        ['{"b":1}', '{"a":1,"b":1}', '{"c":1,"b":1,"a":1}'],
        ['{"a":1}', '{"a":1,"c":1}'],
    ),
    ("any value", {"properties": {"a": {}}, "required": ["a"]}, ['{"a":[{}]}', '{"a":null}'], ["{}"]),
    (
        "patternProperties in a closed object",
        {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        ['{"x1":1}', "{}"],
        ['{"y":1}', '{"x1":"1"}'],
    ),
    (
        "dependentRequired",
        {"dependentRequired": {"a": ["b"]}},
        ['{"b":1}', '{"a":1,"b":1}', '{"b":1,"a":1}'],
        ['{"a":1}'],
    ),
    ("uniqueItems over an enum", {"items": {"enum": ["a", "b"]}, "uniqueItems": True}, ['["b","a"]'], ['["a","a"]']),
    (
        "if and then on a discriminator",
        {
            "properties": {"k": {"enum": ["n", "s"]}},
            "required": ["k", "v"],
            "if": {"properties": {"k": {"const": "n"}}},
            "then": {"properties": {"v": {"type": "integer"}}},
            "else": {"properties": {"v": {"type": "string"}}},
        },
        ['{"k":"n","v":1}', '{"v":"x","k":"s"}', '{"v":1,"k":"n"}'],
        ['{"k":"n","v":"x"}', '{"v":1,"k":"s"}'],
    ),
    ("not enum", {"type": "string", "not": {"enum": ["a", "bc"]}}, ['"b"', '"bcd"', '""'], ['"a"', '"bc"']),
    ("contains", {"type": "array", "contains": {"type": "integer"}}, ['["x",1]'], ['["x"]', "[]"]),
    (
        "counts over optional properties",
        {
            "properties": {"a": {}, "b": {}, "c": {}},
            "additionalProperties": False,
            "minProperties": 2,
            "maxProperties": 2,
        },
        ['{"a":1,"c":1}'],
        ['{"a":1}', '{"a":1,"b":1,"c":1}', "{}"],
    ),
    (
        "a true calendar",
        {"format": "date"},
        ['"2024-02-29"', '"2023-02-28"', "1"],
        ['"2023-02-29"', '"2023-02-30"', '"2023-13-01"'],
    ),
    (
        "const by structure",
        {"const": {"a": [1, {"b": None}], "c": "x"}},
        ['{"c": "x", "a": [1.0, {"b": null}]}'],
        ['{"a":[1]}'],
    ),
]


@pytest.mark.parametrize("name, schema, good, bad", CASES, ids=[c[0] for c in CASES])
def test_fault(name: str, schema: Any, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert accepts(schema, text), text
    for text in bad:
        assert not accepts(schema, text), text


def test_a_declared_key_is_never_a_trap() -> None:
    """After the beginning of a used name the quote or a longer name stays possible, never `\\"` alone."""
    m = matcher({"properties": {"a": {"type": "integer"}, "b": {}}, "additionalProperties": True})
    state = m.advance_bytes(m.start, b'{"b": 2, "a')
    assert state is not None
    assert m.advance_bytes(state, b'"') is not None
    again = m.advance_bytes(m.start, b'{"a": 2, "a')
    assert again is not None
    assert m.advance_bytes(again, b'"') is None
    assert m.advance_bytes(again, b'b":1}') is not None
    assert m.is_done(m.advance_bytes(again, m.way_out(again)) or m.start)


@pytest.mark.parametrize(
    "schema, pointer",
    [
        ({"$ref": "#/$defs/Name"}, "/$ref"),
        ({"properties": {"x": {"$ref": "https://example.com/other.json"}}}, "/properties/x/$ref"),
        ({"properties": {"x": {"pattern": "(a)\\1"}}}, "/properties/x/pattern"),
        ({"items": {"type": "text"}}, "/items/type"),
        ({"allOf": []}, "/allOf"),
        ({"minLength": -1}, "/minLength"),
        ({"required": "a"}, "/required"),
        ({"multipleOf": 0}, "/multipleOf"),
    ],
)
def test_what_cant_be_enforced_is_refused_by_keyword_and_pointer(schema: Any, pointer: str) -> None:
    with pytest.raises(GrammarRefused) as refusal:
        matcher(schema)
    assert refusal.value.pointer == pointer
    assert pointer.rpartition("/")[2] in refusal.value.message


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": []},
        False,
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
        {
            "$ref": "#/$defs/t",
            "$defs": {"t": {"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}}, "required": ["n"]}},
        },
        {"type": "object", "minProperties": 2, "properties": {"a": {}}, "additionalProperties": False},
        {"not": {}},
    ],
)
def test_unsatisfiable_is_said_before_anything_streams(schema: Any) -> None:
    with pytest.raises(GrammarUnsatisfiable):
        matcher(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 1_000_000},
        {"type": "string", "maxLength": 100_000, "minLength": 90_000},
        {"type": "array", "maxItems": 1_000_000, "items": {"type": "integer"}},
        {"type": "string", "pattern": "^[a-z]{0,5000}$", "maxLength": 2000},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "number",
            "minimum": 0,
            "exclusiveMinimum": True,
        },
    ],
)
def test_large_bounds_cost_nothing(schema: Any) -> None:
    began_s = time.process_time()
    m = matcher(schema)
    assert any(m.advance_bytes(m.start, bytes([first])) is not None for first in b'"[1')
    assert time.process_time() - began_s < 1.0, "a hundred times what it takes"
