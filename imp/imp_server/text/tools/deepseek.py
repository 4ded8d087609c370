"""DeepSeek: V3/R1 <tool call begin>function<tool sep>NAME, a json fence, <tool call end>; V3.1 NAME<tool sep>{...}.

The tags are special tokens spelled with U+FF5C bars and U+2581 blanks. Facts: the chat templates of
DeepSeek-V3, R1-0528 and V3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.envelope import Node, Repeat, Seq, Value
from imp_server.text.tools.base import Args, Begin, CallPiece, CallReader, End, both, unmarked
from imp_server.text.tools.json_calls import ArgumentsRelay
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, lit, one_of

name = "deepseek"

CALLS_BEGIN = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
CALLS_END = "<\uff5ctool\u2581calls\u2581end\uff5c>"
CALL_BEGIN = "<\uff5ctool\u2581call\u2581begin\uff5c>"
CALL_END = "<\uff5ctool\u2581call\u2581end\uff5c>"
SEP = "<\uff5ctool\u2581sep\uff5c>"


def teaches(template: str) -> bool:
    return CALL_BEGIN in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    return (
        Segment(
            "call",
            openers=(*both(CALLS_BEGIN), *both(CALL_BEGIN)),
            closers=both(CALLS_END),
            opens_from=(answer,),
            closes_to=answer,
            json_body=True,
        ),
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    fenced = "```json" in template
    head, tail = ("\n```json\n", "\n```") if fenced else ("", "")
    calls: list[Node] = []
    for tool in tools:
        before: list[bytes | str] = ["function", tag(SEP), tool.name] if fenced else [tool.name, tag(SEP)]
        calls.append(Seq((lit(*before, head), Value(tool.schema), lit(tail, tag(CALL_END)))))
    more = (b"\n" if fenced else b"") + tag(CALL_BEGIN)
    begun = Seq((Repeat(one_of(calls), 1, None if many else 1, more), lit(tag(CALLS_END))))
    return [
        Section(tag(CALLS_BEGIN), Seq((lit(tag(CALL_BEGIN)), begun)), repeats=False),
        Section(tag(CALL_BEGIN), begun, repeats=False, forced=False),
    ]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return DeepseekReader(begun=CALL_BEGIN in opener)


class DeepseekReader:
    """Owner of the position among <begin> head <sep> body <end> groups."""

    def __init__(self, *, begun: bool) -> None:
        self._state = "head" if begun else "between"
        self._buffer = ""
        self._arguments: ArgumentsRelay | None = None

    def feed(self, text: str) -> list[CallPiece]:
        self._buffer += unmarked(text)
        pieces: list[CallPiece] = []
        while self._advance(pieces):
            pass
        return pieces

    def _advance(self, pieces: list[CallPiece]) -> bool:
        if self._state == "between":
            return self._skip_past(CALL_BEGIN, "head")
        if self._state == "head":
            return self._read_head(pieces)
        if self._state == "body":
            return self._read_body(pieces)
        return self._skip_past(CALL_END, "between")

    def _skip_past(self, tag: str, state: str) -> bool:
        place = self._buffer.find(tag)
        if place < 0:
            return False
        self._buffer = self._buffer[place + len(tag) :]
        self._state = state
        return True

    def _read_head(self, pieces: list[CallPiece]) -> bool:
        """NAME<sep>{ or function<sep>NAME newline fence {: the body begins at the first brace behind <sep>."""
        head, sep, rest = self._buffer.partition(SEP)
        if not sep or "{" not in rest:
            return self._skip_past(CALL_END, "between") if CALL_END in self._buffer else False
        before = head.strip()
        between, brace, body = rest.partition("{")
        between = between.split("```")[0].strip()
        pieces.append(Begin(between or before))
        self._arguments = ArgumentsRelay()
        self._buffer = brace + body
        self._state = "body"
        return True

    def _read_body(self, pieces: list[CallPiece]) -> bool:
        assert self._arguments is not None
        ready, rest = self._arguments.feed(self._buffer)
        if ready:
            pieces.append(Args(ready))
        self._buffer = rest
        if not self._arguments.done and not rest:
            return False
        self._end(pieces)
        return True

    def _end(self, pieces: list[CallPiece]) -> None:
        assert self._arguments is not None
        tail = self._arguments.close()
        if tail:
            pieces.append(Args(tail))
        pieces.append(End())
        self._state = "behind"

    def close(self) -> list[CallPiece]:
        pieces: list[CallPiece] = []
        if self._state == "body":
            self._end(pieces)
        return pieces
