"""Qwen-Coder XML: <tool_call><function=NAME><parameter=KEY> raw text </parameter></function></tool_call>."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Seq
from imp_server.text.tools.base import CallReader
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, lit, one_of
from imp_server.text.tools.xml_calls import NamedTags, XmlCallReader, function_call, section_segment

name = "qwen_xml"
_TAGS = NamedTags(
    "<tool_call>", "</tool_call>", "<function=", ">", "</function>", "<parameter=", ">", "</parameter>", own_lines=True
)


def teaches(template: str) -> bool:
    return "<function=" in template and "<parameter=" in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    return (section_segment(_TAGS, answer),)


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    calls = one_of([function_call(tool, _TAGS) for tool in tools])
    return [Section(tag(_TAGS.section), Seq((lit("\n"), calls, lit("\n", tag(_TAGS.section_close)))))]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return XmlCallReader(tools, _TAGS)
