"""What a tool's schema makes this process do before any check is bounded: nothing doubles with the references in it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from imp_server.core import GrammarRefused
from imp_server.text.tools.spelling import BoundTool, lit, parameters
from imp_server.text.tools.written_as import written_as


def test_references_to_references_are_not_followed_without_end() -> None:
    doubling: dict[str, Any] = {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 100}}, "type": "object"}
    began = time.process_time()
    assert written_as({"$ref": "#/$defs/a"}, doubling) == "json"
    either = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, *[{"allOf": [{"$ref": "#/$defs/a"}] * 50}] * 50]}}}
    assert written_as({"$ref": "#/$defs/a"}, either) == "json"
    assert time.process_time() - began < 1


def test_ordinary_references_are() -> None:
    root = {"$defs": {"s": {"type": "string"}, "n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/s"}]}}}
    assert written_as({"$ref": "#/$defs/s"}, root) == "text"
    assert written_as({"$ref": "#/$defs/n"}, root) == "text_or_null"


def test_definitions_are_spread_over_so_many_parameters_only() -> None:
    def tool(n: int) -> BoundTool:
        definitions = {f"d{i}": {"type": "string", "description": "x" * 1000} for i in range(100)}
        properties = {f"p{i}": {"type": "integer"} for i in range(n)}
        return BoundTool("t", {"type": "object", "$defs": definitions, "properties": properties}, True)

    assert len(parameters(tool(10), lambda schema, may_be_null: lit("x"), b"")) == 10
    with pytest.raises(GrammarRefused, match="too many parameters") as refused:
        parameters(tool(1000), lambda schema, may_be_null: lit("x"), b"")
    assert refused.value.pointer == "/$defs"
