"""Kimi K2: a section of <|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>JSON<|tool_call_end|>.

What stands before the arguments is the call's id; the template shows it again in the history. Auto mode may
leave out the markers of the section.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from imp_server.core import Segment, Tool, ToolCall
from imp_server.grammar.languages.envelope import Node, Repeat, Seq, Value
from imp_server.text.tools.base import Args, CallBegins, CallPiece, CallReader, Cut, both, unmarked
from imp_server.text.tools.gathered import Gathered
from imp_server.text.tools.json_calls import ArgumentsRelay, ending
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, lit, one_of
from imp_server.text.tools.tag_scanner import TagScanner

name = "kimi"
_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _BODY, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}


def teaches(template: str) -> bool:
    return _BODY in template


def spell_id(call: ToolCall, taken: Collection[str]) -> str:
    """The history shows no other name than the one in the id. Calls are numbered through the conversation."""
    if re.fullmatch(rf"functions\.{re.escape(call.name)}:[0-9]+", call.id) and call.id not in taken:
        return call.id
    number = len(taken)
    while (found := f"functions.{call.name}:{number}") in taken:
        number += 1
    return found


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    """A call without a section's markers ends with itself, so that text may follow it."""
    kinds = ((_BEGIN, _END), (_CALL, _CALL_END))
    return tuple(
        Segment("call", both(opener), both(closer), opens_from=(answer,), closes_to=answer, json_body=True)
        for opener, closer in kinds
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    """A call that begins without the section's marker is bound, too, or its arguments would be free."""

    def call(lead: bytes) -> Node:
        named: list[Node] = []
        for tool in tools:
            head = lit(lead, "functions.", tool.name, ":")
            named.append(Seq((head, Value(_NUMBER), lit(tag(_BODY)), Value(tool.schema), lit(tag(_CALL_END)))))
        return one_of(named)

    repeated = Repeat(call(tag(_CALL)), 1, None if many else 1)
    return [
        Section(tag(_BEGIN), Seq((repeated, lit(tag(_END)))), repeats=False),
        Section(tag(_CALL), call(b""), forced=False),
    ]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return KimiReader(begun=_CALL in opener)


class KimiReader:
    """Owner of the position among the calls of one section."""

    def __init__(self, *, begun: bool) -> None:
        self._scanner = TagScanner()
        self._state = "head" if begun else "between"
        self._head = Gathered()
        self._arguments: ArgumentsRelay | None = None

    def feed(self, text: str) -> list[CallPiece]:
        self._scanner.add(unmarked(text))
        pieces: list[CallPiece] = []
        while self._STEPS[self._state](self, pieces):
            pass
        return pieces

    def close(self, *, closed: bool) -> list[CallPiece]:
        if self._arguments is not None:
            return ending(self._arguments, closed=closed)
        return [Cut()] if self._state == "head" else []

    def _in_between(self, pieces: list[CallPiece]) -> bool:
        if self._scanner.next([_CALL]).tag is None:
            return False
        self._state = "head"
        return True

    def _in_head(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next([_BODY, _CALL_END])
        self._head.add(found.before)
        if found.tag is None:
            return False
        call_id = self._head.take().strip()
        if found.tag == _CALL_END:
            self._state = "between"
            return True
        called, _, number = call_id.rpartition(":")
        called = called if number.isdecimal() and called else call_id
        pieces.append(CallBegins(called.removeprefix("functions."), call_id))
        self._arguments = ArgumentsRelay()
        self._state = "body"
        return True

    def _in_body(self, pieces: list[CallPiece]) -> bool:
        arguments = self._arguments
        assert arguments is not None
        ready, rest = arguments.feed(self._scanner.rest())
        if ready:
            pieces.append(Args(ready))
        self._scanner.add(rest)
        if not arguments.done and not rest:
            return False
        pieces += ending(arguments, closed=rest.startswith(_CALL_END))
        self._arguments, self._state = None, "between"
        return True

    _STEPS = {
        "between": _in_between,
        "head": _in_head,
        "body": _in_body,
    }
