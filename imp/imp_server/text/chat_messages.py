"""Messages as the dicts that chat templates read, with every string of the client's guarded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from imp_server.core import ChatRequest, Message, Tool, message_text
from imp_server.text.guard import Guard, SpecialTexts, strings_of
from imp_server.text.template_traits import TemplateTraits


def request_strings(chat: ChatRequest) -> Iterator[str]:
    """Every string that can reach a template."""
    for message in chat.messages:
        yield message_text(message)
        yield from (message.reasoning or "", message.name or "", message.tool_call_id or "")
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)
            yield from strings_of(_arguments(call.arguments))
    for tool in chat.tools:
        yield from strings_of(tool_dict(tool))
    yield from strings_of(chat.template_kwargs)


class MessageDicts:
    """Builds the dicts of one request. `hard`: texts that no client may spell; `soft`: those that an assistant
    message may (its reasoning tags are read by templates)."""

    def __init__(self, guard: Guard, hard: SpecialTexts, soft: SpecialTexts, traits: TemplateTraits) -> None:
        self._guard, self._hard, self._soft, self._traits = guard, hard, soft, traits

    def message(self, message: Message, edges: tuple[str, str] = ("", "")) -> dict[str, Any]:
        """`edges` are put around the content, inside the blanks at its ends; without content, around the first
        call's name."""
        specials = self._hard if message.role == "assistant" else self._soft
        content: Any = self._guard.protect(message_text(message), specials)
        core = content.strip()
        if core and any(edges):
            lead = len(content) - len(content.lstrip())
            content = content[:lead] + edges[0] + core + edges[1] + content[lead + len(core) :]
        if self._traits.typed_content and core:
            content = [{"type": "text", "text": content}]
        found: dict[str, Any] = {"role": message.role, "content": content}
        if message.reasoning:
            reasoning = self._guard.protect(message.reasoning, self._hard)
            found |= dict.fromkeys(self._traits.reasoning_keys, reasoning)
        if message.tool_calls:
            found["tool_calls"] = [self._call(c.id, c.name, c.arguments) for c in message.tool_calls]
            if not core:
                function = found["tool_calls"][0]["function"]
                function["name"] = edges[0] + function["name"] + edges[1]
            if not core and self._traits.null_content:
                found["content"] = None
        if message.tool_call_id:
            found["tool_call_id"] = self._guard.protect(message.tool_call_id, self._soft)
        if message.name:
            found["name"] = self._guard.protect(message.name, self._soft)
        return found

    def tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]]:
        guarded: list[dict[str, Any]] = self._guard.protect_all([tool_dict(t) for t in tools], self._soft)
        return guarded

    def _call(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        value: Any = arguments if self._traits.arguments_as_text else _arguments(arguments)
        if not isinstance(value, dict) and not self._traits.cut_arguments:
            value = {"arguments": arguments}
        return {
            "id": self._guard.protect(call_id, self._soft),
            "type": "function",
            "function": {
                "name": self._guard.protect(name, self._soft),
                "arguments": self._guard.protect_all(value, self._hard),
            },
        }


def tool_dict(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    function["parameters"] = dict(tool.parameters) or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _arguments(text: str) -> Any:
    """The arguments as a value; the text itself if it isn't JSON, as when the call was cut."""
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
