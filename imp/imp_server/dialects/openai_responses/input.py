"""Responses input items -> messages. An assistant turn is spread over reasoning, message and call items here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imp_server.core import InvalidRequest, MediaPart, Message, Part, Role, TextPart, ToolCall
from imp_server.dialects.free_form import wrapped
from imp_server.dialects.intents import present
from imp_server.dialects.openai_responses.tools import ToolTable
from imp_server.dialects.sealed import unseal

Item = Mapping[str, Any]

_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT = {"input_text", "output_text", "text", "summary_text", "reasoning_text"}
_SUMMARY = "Summary of the conversation so far:\n\n"


def parts(content: str | Sequence[Item], path: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part(part: Item, path: str) -> Part:
    if part["type"] in _TEXT:
        return TextPart(part["text"], cache_mark=bool(part.get("prompt_cache_breakpoint")))
    if part["type"] == "refusal":
        return TextPart(part["refusal"])
    return MediaPart(part["type"].removeprefix("input_"), path)


def reasoning_text(item: Item) -> str:
    """From the plain text, else from our own seal (another server's is skipped), else from the summary."""
    if content := present(item, "content", ()):
        return "".join(part.get("text", "") for part in content)
    if text := unseal("reasoning", present(item, "encrypted_content", "")):
        return text
    return "\n\n".join(part.get("text", "") for part in present(item, "summary", ()))


@dataclass(slots=True)
class _Turn:
    """An assistant turn that is still being collected."""

    reasoning: str = ""
    parts: tuple[Part, ...] = ()
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message | None:
        """None when the turn never got past its reasoning: a template can't show that."""
        if not self.parts and not self.calls:
            return None
        return Message("assistant", self.parts, self.reasoning or None, tuple(self.calls))


@dataclass(slots=True)
class InputItems:
    """Collects items in order; owner of the turn under way."""

    table: ToolTable
    must_answer: bool = False
    """The conversation is known whole, so that a result belongs to a call in it."""
    messages: list[Message] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    """call id -> tool, for the results: some templates print it."""
    _turn: _Turn = field(default_factory=_Turn)

    def add(self, item: Item, path: str) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            self._message(item, path)
        elif kind == "reasoning":
            if self._turn.parts or self._turn.calls:
                self._flush()
            self._turn.reasoning += reasoning_text(item)
        elif kind in {"function_call", "custom_tool_call"}:
            self._call(item, custom=kind == "custom_tool_call")
        elif kind in {"function_call_output", "custom_tool_call_output"}:
            self._flush()
            output = parts(present(item, "output", ""), f"{path}.output")
            call_id = item.get("call_id")
            if self.must_answer and call_id is not None and call_id not in self._names:
                message = f"no tool call {call_id[:100]!r} in the conversation that previous_response_id continues"
                raise InvalidRequest(message, param=f"{path}.call_id", code="invalid_history")
            self.messages.append(Message("tool", output, tool_call_id=call_id, name=self._names.get(call_id or "")))
        elif kind == "compaction":
            self._compaction(item, path)
        # anything else is a record of a hosted tool: nothing that the model could read

    def _message(self, item: Item, path: str) -> None:
        role = _ROLES[item["role"]]
        content = parts(item["content"], f"{path}.content")
        if role != "assistant":
            self._flush()
            self.messages.append(Message(role, content))
            return
        if self._turn.parts or self._turn.calls:
            self._flush()
        self._turn.parts = content

    def _call(self, item: Item, *, custom: bool) -> None:
        name = self.table.model_name(item["name"], item.get("namespace"))
        arguments = wrapped(item["input"]) if custom else item["arguments"] or "{}"
        self._names[item["call_id"]] = name
        self._turn.calls.append(ToolCall(item["call_id"], name, arguments))

    def _compaction(self, item: Item, path: str) -> None:
        summary = unseal("compaction", item["encrypted_content"])
        if summary is None:
            message = "this compaction was made by another server and can't be read; send the conversation itself"
            raise InvalidRequest(message, param=f"{path}.encrypted_content", code="invalid_history")
        self._flush()
        self.messages.append(Message("system", (TextPart(_SUMMARY + summary),)))

    def _flush(self) -> None:
        if message := self._turn.message():
            self.messages.append(message)
        self._turn = _Turn()

    def done(self) -> tuple[Message, ...]:
        self._flush()
        return tuple(self.messages)


def items_of(value: str | Sequence[Item] | None) -> list[Item]:
    """A string is one user message."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return list(value or ())


def is_reference(item: Item) -> bool:
    return item.get("type") == "item_reference" or (item.get("type") is None and "role" not in item)
