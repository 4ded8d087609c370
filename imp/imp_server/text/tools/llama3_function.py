"""Llama 3.1 custom tools: <function=NAME>{json}</function>."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Seq, Value
from imp_server.text.tools.base import Args, CallBegins, CallPiece, CallReader
from imp_server.text.tools.json_calls import ArgumentsRelay, ending
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, lit

name = "llama3_function"


def teaches(template: str) -> bool:
    return "<function=" in template and "<parameter=" not in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    return (
        Segment(
            "call",
            openers=tuple(f"<function={tool.name}>".encode() for tool in tools),
            closers=(b"</function>",),
            opens_from=(answer,),
            closes_to=answer,
            json_body=True,
        ),
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    return [
        Section(f"<function={tool.name}>".encode(), Seq((Value(tool.schema), lit("</function>")))) for tool in tools
    ]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return NamedArgumentsReader(opener.removeprefix("<function=").removesuffix(">"))


class NamedArgumentsReader:
    """One call whose name the opener gave: the segment's text is its arguments."""

    def __init__(self, name: str, call_id: str | None = None) -> None:
        self._first: list[CallPiece] = [CallBegins(name, call_id)]
        self._arguments = ArgumentsRelay()

    def feed(self, text: str) -> list[CallPiece]:
        pieces, self._first = self._first, []
        if self._arguments.done:
            return pieces
        ready, _ = self._arguments.feed(text)
        return [*pieces, Args(ready)] if ready else pieces

    def close(self, *, closed: bool) -> list[CallPiece]:
        pieces, self._first = self._first, []
        return [*pieces, *ending(self._arguments, closed=closed)]
