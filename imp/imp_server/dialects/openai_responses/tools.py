"""The tools of a Responses request: functions, custom tools and namespaces become Tools, what is hosted is skipped.

Clients send tools that only a hosted service can run (`web_search`, `mcp` ...) with every request and
work without them, so an unknown type is never an error; only forcing one is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imp_server.core import InvalidRequest, Tool, ToolChoice
from imp_server.dialects.free_form import free_form_tool
from imp_server.dialects.intents import Body, present

Wire = tuple[str, str | None]
"""(name, namespace) as the client knows the tool."""


@dataclass(frozen=True, slots=True)
class ToolTable:
    """Which name the model sees for each tool of the client. Names are bare while they are unique."""

    tools: tuple[Tool, ...]
    wire: Mapping[str, Wire]
    model: Mapping[Wire, str]
    free_form: frozenset[str] = frozenset()
    """Names, as the model sees them, of the tools that take text."""

    def model_name(self, name: str, namespace: str | None) -> str:
        """Of a call in the history; a tool that is no longer offered keeps its own name."""
        return self.model.get((name, namespace)) or self.model.get((name, None)) or name

    def wire_name(self, name: str) -> Wire:
        return self.wire.get(name, (name, None))


_OWN = ("function", "custom")
"""What the client runs itself."""


def _offered(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str | None, str]]:
    """(tool, its namespace, where the request has it)."""
    for i, tool in enumerate(tools):
        path = f"tools[{i}]"
        if tool["type"] in _OWN:
            yield tool, None, path
        elif tool["type"] == "namespace":
            for j, inner in enumerate(present(tool, "tools", ())):
                if inner.get("type") in _OWN:
                    yield inner, tool["name"], f"{path}.tools[{j}]"


def tool_table(body: Body) -> ToolTable:
    found = list(_offered(present(body, "tools", ())))
    names = [tool["name"] for tool, _, _ in found]
    tools: list[Tool] = []
    wire: dict[str, Wire] = {}
    free_form: set[str] = set()
    for tool, namespace, path in found:
        name = tool["name"]
        shown = f"{namespace}__{name}" if namespace and names.count(name) > 1 else name
        if shown in wire:
            message = f'the tool "{name}" is defined twice; give each tool its own name'
            raise InvalidRequest(message, param="tools", code="duplicate_tool")
        wire[shown] = (name, namespace)
        if tool["type"] == "custom":
            free_form.add(shown)
            tools.append(free_form_tool(shown, tool, path))
        else:
            tools.append(_function(shown, tool, path))
    return ToolTable(tuple(tools), wire, {sent: shown for shown, sent in wire.items()}, frozenset(free_form))


def _function(shown: str, tool: Mapping[str, Any], path: str) -> Tool:
    return Tool(
        name=shown,
        description=present(tool, "description", ""),
        parameters=present(tool, "parameters", {}),
        strict=present(tool, "strict", False),
        param=f"{path}.parameters",
    )


def tool_choice(body: Body, table: ToolTable) -> ToolChoice:
    """Raises InvalidRequest when the request forces a tool that isn't there or can't run here."""
    choice = present(body, "tool_choice", "auto")
    parallel = present(body, "parallel_tool_calls", True)
    if choice == "required" and not table.tools:
        raise InvalidRequest(
            'tool_choice is "required" but tools has no function; add one or use "auto"',
            param="tool_choice",
            code="unknown_tool",
        )
    if isinstance(choice, str):
        return ToolChoice(mode=choice, parallel=parallel)  # type: ignore[arg-type]  # enum of the document
    if choice["type"] in _OWN:
        name = _known(choice, table)
        return ToolChoice(mode="required", names=(name,), parallel=parallel, named=True)
    return _allowed(choice, table, parallel)


def _known(choice: Mapping[str, Any], table: ToolTable) -> str:
    name = table.model_name(choice["name"], choice.get("namespace"))
    if name not in table.wire:
        raise InvalidRequest(
            f'tool_choice names "{choice["name"]}", which is not in tools', param="tool_choice", code="unknown_tool"
        )
    return name


def _allowed(choice: Mapping[str, Any], table: ToolTable, parallel: bool) -> ToolChoice:
    names = tuple(_known(tool, table) for tool in choice["tools"] if tool.get("type", "function") in _OWN)
    if names:
        return ToolChoice(mode=choice["mode"], names=names, parallel=parallel)
    if choice["mode"] == "required":
        raise InvalidRequest(
            "tool_choice requires a tool but allows no function", param="tool_choice.tools", code="unknown_tool"
        )
    return ToolChoice(mode="none")


def echo(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The `tools` of the resource: functions with every key the SDK requires, others as sent."""
    return [_echo_function(tool) if tool["type"] == "function" else dict(tool) for tool in tools]


def _echo_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    filled = {"description": None, "parameters": None} | dict(tool)
    return filled | {"strict": present(tool, "strict", False)}
