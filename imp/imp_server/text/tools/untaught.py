"""Tools for chat templates that know none: the prompt teaches the Hermes notation, the history is spelled in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from imp_server.core import Message, TextPart, ToolCall


def instruction(tools: Sequence[dict[str, Any]]) -> str:
    """`tools` as templates get them."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"You can call functions. They are, one JSON object per line:\n<tools>\n{listed}\n</tools>\n"
        "For each call write a JSON object between tags:\n<tool_call>\n"
        '{"name": <function name>, "arguments": <object with its arguments>}\n</tool_call>'
    )


def teach(messages: Sequence[Message], text: str) -> tuple[list[Message], int]:
    """The messages with `text` in the first system message, and how many were put in front (0 or 1)."""
    if messages and messages[0].role == "system":
        first = messages[0]
        taught = msgspec.structs.replace(first, parts=(*first.parts, TextPart(""), TextPart(text)))
        return [taught, *messages[1:]], 0
    return [Message("system", (TextPart(text),)), *messages], 1


def spell_calls(message: Message) -> Message:
    """An assistant message whose calls stand in its text."""
    parts = [p for p in message.parts if not isinstance(p, TextPart) or p.text]
    parts += [TextPart(_spelled(call)) for call in message.tool_calls]
    return msgspec.structs.replace(message, parts=tuple(parts), tool_calls=())


def spell_result(message: Message) -> Message:
    """A tool's result as a user message."""
    parts = (TextPart("<tool_response>"), *message.parts, TextPart("</tool_response>"))
    return Message("user", parts)


def _spelled(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments.strip() or "{}"}}}\n</tool_call>'


class ToolHistory(msgspec.Struct, frozen=True):
    """What of tools the template can show by itself."""

    calls: bool
    results: bool

    def spell(self, messages: Sequence[Message]) -> tuple[list[Message], list[int]]:
        """The messages to render, and for each original one the index of the one it is in now.

        Results in a row become one user message, because many templates want roles to alternate.
        """
        out: list[Message] = []
        where: list[int] = []
        in_results = False
        for message in messages:
            if message.role == "tool" and not self.results:
                result = spell_result(message)
                if in_results:
                    out[-1] = msgspec.structs.replace(out[-1], parts=(*out[-1].parts, *result.parts))
                else:
                    out.append(result)
                in_results = True
            else:
                in_results = False
                out.append(spell_calls(message) if message.tool_calls and not self.calls else message)
            where.append(len(out) - 1)
        return out, where
