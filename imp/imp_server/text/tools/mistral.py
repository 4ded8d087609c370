"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}] and, newer, [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}.

[TOOL_CALLS], [CALL_ID] and [ARGS] are special tokens; the newer form repeats [TOOL_CALLS] for each call.
"""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Node, Seq, Value
from imp_server.text.tools.base import Args, CallBegins, CallPiece, CallReader, Cut, both, mark, unmarked
from imp_server.text.tools.gathered import Gathered
from imp_server.text.tools.json_calls import ArgumentsRelay, JsonCallReader, ending
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, json_call, json_list, lit, one_of

name = "mistral"


def teaches(template: str) -> bool:
    return "[TOOL_CALLS]" in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    return (Segment("call", openers=both("[TOOL_CALLS]"), opens_from=(answer, first), json_body=True),)


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    opener = tag("[TOOL_CALLS]")
    if "[ARGS]" not in template:
        return [Section(opener, json_list(one_of([json_call(tool) for tool in tools]), many), repeats=False)]
    calls: list[Node] = [Seq((lit(tool.name, tag("[ARGS]")), Value(tool.schema))) for tool in tools]
    return [Section(opener, one_of(calls))]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return MistralReader()


class MistralReader:
    """Tells the two forms apart by the first character: a bracket begins the list, anything else a name."""

    def __init__(self) -> None:
        self._list: JsonCallReader | None = None
        self._head = Gathered()
        self._is_blank = True
        self._arguments: ArgumentsRelay | None = None

    def feed(self, text: str) -> list[CallPiece]:
        if self._list is not None:
            return self._list.feed(text)
        if self._arguments is not None:
            return self._send(text)
        if self._is_blank:
            text = text.lstrip()
            self._is_blank = not text
            if text[:1] in ("[", "{"):
                self._list = JsonCallReader()
                return self._list.feed(text)
        before, brace, rest = text.partition("{")
        self._head.add(before)
        return self._begin(brace + rest) if brace else []

    def _begin(self, body: str) -> list[CallPiece]:
        head = self._head.take()
        plain = unmarked(head.replace(mark("[ARGS]"), "[ARGS]").replace(mark("[CALL_ID]"), "[CALL_ID]"))
        call_name, _, call_id = plain.partition("[ARGS]")[0].partition("[CALL_ID]")
        self._arguments = ArgumentsRelay()
        return [CallBegins(call_name.strip(), call_id.strip() or None), *self._send(body)]

    def _send(self, text: str) -> list[CallPiece]:
        if self._arguments is None or self._arguments.done:
            return []
        ready, _ = self._arguments.feed(text)
        return [Args(ready)] if ready else []

    def close(self, *, closed: bool) -> list[CallPiece]:
        if self._list is not None:
            return self._list.close(closed=closed)
        if self._arguments is not None:
            return ending(self._arguments, closed=closed)
        return [] if self._is_blank else [Cut()]
