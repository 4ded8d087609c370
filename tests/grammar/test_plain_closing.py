"""The one walk for plain schemas closes what closing.py closes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from imp_server.core import GrammarRefused
from imp_server.grammar.values.algebra import Algebra
from imp_server.grammar.values.schema.closing import Closing
from imp_server.grammar.values.schema.document import Document
from imp_server.grammar.values.schema.expand import Expander
from imp_server.grammar.values.schema.plain_closing import MAX_PLACES, plainly_closed

from tests.grammar.suite import groups
from tests.grammar.test_closing import CASES


def keys_among(schema: Any, closed: Any) -> Any:
    """The second schema (closing.py) that closing a plain one amounts to: what its objects' keys are among."""
    if not isinstance(schema, dict):
        return True
    others = schema.get("additionalProperties", closed.get("additionalProperties", True))
    rest = others if "additionalProperties" not in schema else keys_among(others, closed["additionalProperties"])
    properties = {name: keys_among(s, closed["properties"][name]) for name, s in schema.get("properties", {}).items()}
    if rest is True:
        properties = {name: sub for name, sub in properties.items() if sub is not True}
    items = keys_among(schema.get("items"), closed.get("items"))
    found = {"properties": properties} if properties else {}
    found |= {} if rest is True else {"additionalProperties": rest}
    return found | ({} if items is True else {"items": items}) or True


def opened_again(schema: Any, closed: Any) -> Any:
    """Without what closing added."""
    if not isinstance(closed, dict):
        return closed
    found = {k: v for k, v in closed.items() if k in schema}
    for keyword in ("items", "additionalProperties"):
        if keyword in found:
            found[keyword] = opened_again(schema[keyword], closed[keyword])
    if "properties" in found:
        found["properties"] = {n: opened_again(schema["properties"][n], s) for n, s in closed["properties"].items()}
    return found


def tool_like(n: int) -> dict[str, Any]:
    leaf: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "number"}, "y": {}}, "required": ["x"]}
    return {
        "type": "object",
        "description": "d",
        "properties": {f"p{n}": {"enum": ["a", 1]}, "l": {"type": "array", "items": leaf}, "m": {
            "additionalProperties": leaf}, "o": leaf | {"title": "t"}, "e": {"properties": {}},
            "u": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
        "required": [f"p{n}", "o"],
    }  # fmt: skip


SCHEMAS = [schema for schema, _, _ in CASES] + [g.schema for g in groups()] + [tool_like(i) for i in range(3)]


def test_a_plain_schema_is_closed_where_any_other_way_closes_it() -> None:
    n_plain = n_changed = 0
    for schema in SCHEMAS:
        schema = json.loads(json.dumps(schema))
        closed = plainly_closed(schema) if isinstance(schema, dict) else None
        if closed is None:
            continue
        try:
            second = Closing(Expander(Document(schema), Algebra(), "x")).schema
        except GrammarRefused:
            continue
        assert keys_among(schema, closed) == second, schema
        assert opened_again(schema, closed) == schema
        n_plain, n_changed = n_plain + 1, n_changed + (closed != schema)
    assert n_plain > 50 and n_changed > 5
    assert plainly_closed(tool_like(0)) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}, "minProperties": 2},
        {"properties": {"a": {}}, "required": ["b"]},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {}}, "not": {"required": ["a"]}},
        {"properties": {"a": {"enum": [{"b": 1}]}}},
        {"properties": {"a": {"const": []}}},
        {"patternProperties": {"a": {}}},
        {"items": [{"properties": {"a": {}}}]},
        {"items": {"properties": {"a": {}}}, "uniqueItems": True},
        {"uniqueItems": {}},
        {"properties": []},
        {"properties": {"a": {}}, "unknown": 1},
        {"properties": {str(i): {} for i in range(MAX_PLACES)}},
    ],
)
def test_what_is_not_plain_is_left_to_the_other_way(schema: dict[str, Any]) -> None:
    assert plainly_closed(schema) is None
