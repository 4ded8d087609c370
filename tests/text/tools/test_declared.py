"""Calls of a tool hold what it declares, by the same closing as answers (grammar/values/schema/closing.py)."""

from __future__ import annotations

from typing import Any

import pytest
from imp_server.core import ChatRequest, Message, TextPart, Tool, ToolChoice
from imp_server.grammar.binding import Binder
from imp_server.grammar.check import Rules, check_envelope, check_schema
from imp_server.grammar.engine import GrammarSpace
from imp_server.text.tools.enforce import bound_tools, offered_tools
from imp_server.text.tools.spelling import BoundTool, lit, parameters

from tests.grammar.judging import BYTES, plan_accepts, reads

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def bound(schema: dict[str, Any], mode: Any = "required", rules: Rules = Rules()) -> BoundTool:  # noqa: B008
    user = Message("user", (TextPart("hi"),))
    chat = ChatRequest((user,), tools=(Tool(name="t", parameters=schema),), tool_choice=ToolChoice(mode))
    return bound_tools(chat, offered_tools(chat), Binder(rules))[0]


def accepts(tool: BoundTool, text: str) -> bool:
    return plan_accepts(check_schema(tool.schema), text)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_operator_may_leave_them_open(mode: Any) -> None:
    assert not accepts(bound(CITY, mode), '{"city":"x","zip":1}')
    assert accepts(bound(CITY, mode, Rules(extra_arguments=True)), '{"city":"x","zip":1}')
    assert accepts(bound(CITY, mode), '{"city":"x"}')


def test_objects_inside_are_closed_too() -> None:
    tool = bound({"type": "object", "properties": {"at": CITY, "all": {"type": "array", "items": CITY}}})
    assert accepts(tool, '{"at":{"city":"x"},"all":[{"city":"y"}]}')
    assert not accepts(tool, '{"at":{"city":"x","zip":1}}') and not accepts(tool, '{"all":[{"city":"y","zip":1}]}')


def test_a_schema_that_nothing_satisfies_when_closed_is_served_as_it_is() -> None:
    item = {"type": "object", "properties": {"x": {"const": 1}}}
    three = {"type": "array", "items": item, "uniqueItems": True, "minItems": 3, "maxItems": 3}
    tool = bound({"type": "object", "properties": {"all": three}, "required": ["all"]})
    assert accepts(tool, '{"all":[{"x":1},{},{"z":1}]}')


def test_parameters_that_are_spelled_one_by_one_are_closed_inside() -> None:
    tool = bound({"type": "object", "properties": {"at": {"$ref": "#/$defs/city"}}, "$defs": {"city": CITY}})
    (parameter,) = parameters(tool, lambda schema, nullable: lit("unused"), b";")
    m = GrammarSpace(BYTES).matcher(check_envelope(parameter.value))
    assert reads(m, '{"city":"x"};') and not reads(m, '{"city":"x","zip":1};')
