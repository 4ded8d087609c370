"""Qwen-Coder XML: <tool_call><function=NAME><parameter=KEY> raw text </parameter></function></tool_call>."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool, special
from imp_server.grammar.envelope import Node, Seq
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, key_value_pairs, lit, one_of, raw_text
from imp_server.text.tools.xml_calls import XmlCallReader

name = "qwen_xml"


def teaches(template: str) -> bool:
    return "<function=" in template and "<parameter=" in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    end, tag = b"</function>", b"</tool_call>"
    closers = tuple(end + gap + t for gap in (b"\n", b"", b"\n\n") for t in (tag, special("</tool_call>")))
    return (
        Segment(
            "call",
            openers=both("<tool_call>"),
            closers=closers,
            opens_from=(answer,),
            closes_to=answer,
        ),
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    close = "\n</parameter>\n"
    calls: list[Node] = []
    for tool in tools:
        pairs = key_value_pairs(tool, _pair, lambda schema: raw_text(schema, close), close.encode())
        calls.append(Seq((lit("\n<function=", tool.name, ">\n"), pairs, lit("</function>\n", tag("</tool_call>")))))
    return [Section(tag("<tool_call>"), one_of(calls))]


def _pair(key: str, value: Node) -> Node:
    return Seq((lit("<parameter=", key, ">\n"), value))


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return XmlCallReader(tools)
