"""MiniMax M2: <minimax:tool_call>, <invoke name="NAME">, <parameter name="KEY">raw text</parameter>, </invoke>."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool, special
from imp_server.grammar.envelope import Node, Repeat, Seq
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, key_value_pairs, lit, one_of, raw_text
from imp_server.text.tools.xml_calls import NamedTags, XmlCallReader

name = "minimax"
_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_TAGS = NamedTags('<invoke name="', '">', "</invoke>", '<parameter name="', '">', "</parameter>")


def teaches(template: str) -> bool:
    return _OPEN in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    closers = tuple(b"</invoke>" + gap + tag for gap in (b"\n", b"") for tag in (_CLOSE.encode(), special(_CLOSE)))
    return (Segment("call", openers=both(_OPEN), closers=closers, opens_from=(answer,), closes_to=answer),)


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    close = "</parameter>\n"
    calls: list[Node] = []
    for tool in tools:
        pairs = key_value_pairs(tool, _pair, lambda schema: raw_text(schema, close), close.encode())
        calls.append(Seq((lit('<invoke name="', tool.name, '">\n'), pairs, lit("</invoke>\n"))))
    repeated = Repeat(one_of(calls), 1, None if many else 1)
    return [Section(tag(_OPEN), Seq((lit("\n"), repeated, lit(tag(_CLOSE)))), repeats=False)]


def _pair(key: str, value: Node) -> Node:
    return Seq((lit('<parameter name="', key, '">'), value))


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return XmlCallReader(tools, _TAGS)
