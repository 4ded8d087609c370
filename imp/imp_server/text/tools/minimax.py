"""MiniMax M2: <minimax:tool_call>, <invoke name="NAME">, <parameter name="KEY">raw text</parameter>, </invoke>."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Repeat, Seq
from imp_server.text.tools.base import CallReader
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, lit, one_of
from imp_server.text.tools.xml_calls import NamedTags, XmlCallReader, function_call, section_segment

name = "minimax"
_TAGS = NamedTags(
    "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', '">', "</invoke>", '<parameter name="', '">',
    "</parameter>", own_lines=False,
)  # fmt: skip


def teaches(template: str) -> bool:
    return _TAGS.section in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    return (section_segment(_TAGS, answer),)


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    """All calls share one section."""
    calls = one_of([Seq((function_call(tool, _TAGS), lit("\n"))) for tool in tools])
    repeated = Repeat(calls, 1, None if many else 1)
    return [Section(tag(_TAGS.section), Seq((lit("\n"), repeated, lit(tag(_TAGS.section_close)))), repeats=False)]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return XmlCallReader(tools, _TAGS)
