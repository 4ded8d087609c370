"""Which tools a reply may or must call, how often, and the envelope of a reply that is nothing but calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imp_server.core import ChatRequest, GrammarRefused, InputGrammar, InvalidRequest, Tool
from imp_server.grammar.binding import Binder
from imp_server.grammar.languages.definitions import GRAMMAR_KEYWORD
from imp_server.grammar.languages.envelope import Lit, Node, Repeat, Seq
from imp_server.grammar.proving import Prover, definition_plan
from imp_server.text.tools.base import ToolFormat
from imp_server.text.tools.spelling import BoundTool, TagBytes, one_of

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def offered_tools(chat: ChatRequest) -> tuple[Tool, ...]:
    """The tools that the reply may call. Raises InvalidRequest if the choice names one that isn't offered."""
    choice = chat.tool_choice
    if choice.mode == "none" or not chat.tools:
        if choice.mode == "required":
            raise InvalidRequest("tool_choice asks for a call, but there are no tools", param="tool_choice")
        return ()
    known = {tool.name for tool in chat.tools}
    for name in choice.names:
        if name not in known:
            raise InvalidRequest(
                f"tool_choice names '{name}', which isn't among the tools ({', '.join(sorted(known))})",
                param="tool_choice",
                code="unknown_tool",
            )
    return tuple(t for t in chat.tools if not choice.names or t.name in choice.names)


def bound_tools(chat: ChatRequest, tools: Sequence[Tool], binder: Binder) -> list[BoundTool]:
    """Tools with the schema their arguments must satisfy.

    Forced and strict tools are enforced or refused; of the others one with a schema that can't be enforced
    accepts any object, so that it doesn't sink the request.
    """
    forced = chat.tool_choice.mode == "required"
    places = {id(tool): index for index, tool in enumerate(chat.tools)}
    return [_bound(tool, places[id(tool)], binder, strict=forced or tool.strict) for tool in tools]


def check_inputs(tools: Sequence[Tool], prover: Prover) -> None:
    """Raises GrammarRefused for the grammar of a free-form tool, offered or not, that can't be enforced."""
    for tool in tools:
        if (grammar := tool.input_grammar) is not None:
            try:
                prover.prove(definition_plan(grammar.syntax, grammar.definition))
            except GrammarRefused as refused:
                refused.param = grammar.param
                raise


def _bound(tool: Tool, index: int, binder: Binder, *, strict: bool) -> BoundTool:
    if tool.input_grammar is not None:
        return BoundTool(tool.name, _with_input_grammar(tool.parameters, tool.input_grammar), True)
    param = tool.param or f"tools[{index}].function.parameters"
    try:
        schema = binder.call(object_schema(tool.parameters), param)
    except GrammarRefused as refused:
        if not strict:
            return BoundTool(tool.name, ANY_OBJECT)
        refused.param = refused.param or param
        raise
    return BoundTool(tool.name, schema, strict)


def _with_input_grammar(parameters: Mapping[str, Any], grammar: InputGrammar) -> dict[str, Any]:
    bound = {GRAMMAR_KEYWORD: {"syntax": grammar.syntax, "definition": grammar.definition}}
    return {**parameters, "properties": {"input": {**parameters["properties"]["input"], **bound}}}


def object_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments are an object, whatever the schema leaves open. No properties at all: exactly {}."""
    schema = dict(parameters)
    if not schema or (schema.get("properties") == {} and len(set(schema) - {"type", "properties", "required"}) == 0):
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if "type" not in schema and not {"$ref", "anyOf", "oneOf", "allOf"} & set(schema):
        schema["type"] = "object"
    return schema


def may_call_often(chat: ChatRequest) -> bool:
    return chat.tool_choice.parallel and not chat.tool_choice.named


def forced_calls(chat: ChatRequest, form: ToolFormat, tools: Sequence[BoundTool], tag: TagBytes, template: str) -> Node:
    """Nothing but calls: because they are forced, or an alternative to a bound answer."""
    many = may_call_often(chat)
    sections = [s for s in form.sections(tools, tag, template, many) if s.forced]
    if chat.tool_choice.mode == "auto":
        sections = [s._replace(opener=s.marker + s.opener) for s in sections]
    node = one_of([Seq((Lit(s.opener), s.rest)) for s in sections])
    return Repeat(node, 1, None, b"\n") if many and all(s.repeats for s in sections) else node
