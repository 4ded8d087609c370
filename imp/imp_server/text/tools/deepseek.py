"""DeepSeek: V3/R1 <tool call begin>function<tool sep>NAME, a json fence, <tool call end>; V3.1 NAME<tool sep>{...}.

The tags are special tokens spelled with U+FF5C bars and U+2581 blanks. Facts: the chat templates of
DeepSeek-V3, R1-0528 and V3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Node, Repeat, Seq, Value
from imp_server.text.tools.base import Args, CallBegins, CallPiece, CallReader, Cut, both, unmarked
from imp_server.text.tools.gathered import Gathered
from imp_server.text.tools.json_calls import ArgumentsRelay, ending
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, lit, one_of
from imp_server.text.tools.tag_scanner import TagScanner

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
        self._scanner = TagScanner()
        self._state = "head" if begun else "between"
        self._head = Gathered()
        self._lead = Gathered()
        self._arguments: ArgumentsRelay | None = None

    def feed(self, text: str) -> list[CallPiece]:
        self._scanner.add(unmarked(text))
        pieces: list[CallPiece] = []
        while self._STEPS[self._state](self, pieces):
            pass
        return pieces

    def _in_between(self, pieces: list[CallPiece]) -> bool:
        return self._skip_past(CALL_BEGIN, "head")

    def _in_behind(self, pieces: list[CallPiece]) -> bool:
        return self._skip_past(CALL_END, "between")

    def _skip_past(self, tag: str, state: str) -> bool:
        if self._scanner.next([tag]).tag is None:
            return False
        self._state = state
        return True

    def _in_head(self, pieces: list[CallPiece]) -> bool:
        """NAME<sep>{ or function<sep>NAME newline fence {: the body begins at the first brace behind <sep>."""
        found = self._scanner.next([SEP, CALL_END])
        self._head.add(found.before)
        if found.tag is None:
            return False
        self._state = "lead" if found.tag == SEP else "between"
        if found.tag == CALL_END:
            self._head.take()
        return True

    def _in_lead(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next(["{", CALL_END])
        self._lead.add(found.before)
        if found.tag is None:
            return False
        before, lead = self._head.take().strip(), self._lead.take().split("```")[0].strip()
        self._state = "between"
        if found.tag == "{":
            pieces.append(CallBegins(lead or before))
            self._arguments = ArgumentsRelay()
            self._scanner.add("{" + self._scanner.rest())
            self._state = "body"
        return True

    def _in_body(self, pieces: list[CallPiece]) -> bool:
        assert self._arguments is not None
        ready, rest = self._arguments.feed(self._scanner.rest())
        if ready:
            pieces.append(Args(ready))
        self._scanner.add(rest)
        if not self._arguments.done and not rest:
            return False
        pieces += ending(self._arguments, closed=False)
        self._state = "behind"
        return True

    def close(self, *, closed: bool) -> list[CallPiece]:
        return [Cut()] if self._state in ("head", "lead", "body") else []

    _STEPS = {
        "between": _in_between,
        "behind": _in_behind,
        "head": _in_head,
        "lead": _in_lead,
        "body": _in_body,
    }
