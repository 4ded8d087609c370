"""Every name of a constraint means the same one thing, and two that differ are refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from imp_server.core import GrammarRefused, InvalidRequest, ResponseFormat
from imp_server.dialects.response_formats import response_format_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "default": None}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


def meaning(body: dict[str, Any]) -> ResponseFormat:
    return msgspec.structs.replace(response_format_of(body), name="", param="")


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": JSON_SCHEMA},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_object", "value": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA, "value": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}},
        {"response_format": {"type": "text"}, "guided_json": SCHEMA},
        {"response_format": JSON_SCHEMA, "guided_json": SCHEMA},
    ],
)
def test_a_schema_by_any_name(body: dict[str, Any]) -> None:
    assert meaning(body) == ResponseFormat("json_schema", schema=SCHEMA, param="")


@pytest.mark.parametrize(
    ("kind", "bodies"),
    [
        ("regex", [{"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}]),
        ("grammar", [{"grammar": "a+"}]),
        ("lark", [{"guided_grammar": "a+"}, {"structured_outputs": {"grammar": "a+"}}]),
        ("regex", [{"response_format": {"type": "regex", "pattern": "a+"}}, {"regex": "a+"}]),
        ("grammar", [{"response_format": {"type": "grammar", "gbnf": "a+"}}, {"ebnf": "a+"}]),
    ],
)
def test_a_text_by_any_name(kind: Any, bodies: list[dict[str, Any]]) -> None:
    for body in bodies:
        assert meaning(body) == ResponseFormat(kind, text="a+", param="")


def test_the_other_kinds() -> None:
    body: dict[str, Any]
    for body in ({"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}):
        assert meaning(body) == ResponseFormat("choice", choices=("a", "b"), param="")
    for body in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        assert meaning(body) == ResponseFormat("json_object", param="")
    for body in ({}, {"grammar": ""}, {"structured_outputs": {"json_object": False}}):
        assert meaning(body).kind == "text"
    assert response_format_of({"json_schema": {}}).schema == {"type": "object"}
    assert response_format_of({"structured_outputs": {"regex": "a"}}).param == "structured_outputs.regex"


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        {"response_format": JSON_SCHEMA, "json_schema": {"type": "object"}},
        {"guided_choice": ["a"], "grammar": 'root ::= "a"'},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"guided_regex": "a", "structured_outputs": {"regex": "b"}},
        {"regex": "a", "ebnf": 'root ::= "a"'},
        {"response_format": {"type": "json_object", "schema": SCHEMA, "value": {"type": "object"}}},
    ],
)
def test_two_that_differ_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="send one of them") as caught:
        response_format_of(body)
    assert caught.value.code == "unsupported_value"


@pytest.mark.parametrize("text", ["{", "[1]", "3", "[" * 100_000])
def test_schema_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        response_format_of({"guided_json": text})
    assert caught.value.param == "guided_json"
