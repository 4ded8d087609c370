"""Seed-OSS: <seed:tool_call>, then Qwen-Coder's function and parameter tags, values on the line of their tags."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool, special
from imp_server.grammar.envelope import Node, Seq
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, key_value_pairs, lit, one_of, raw_text
from imp_server.text.tools.xml_calls import XmlCallReader

name = "seed"
_OPEN, _CLOSE = "<seed:tool_call>", "</seed:tool_call>"


def teaches(template: str) -> bool:
    return _OPEN in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    closers = tuple(b"</function>" + gap + tag for gap in (b"\n", b"") for tag in (_CLOSE.encode(), special(_CLOSE)))
    return (Segment("call", openers=both(_OPEN), closers=closers, opens_from=(answer,), closes_to=answer),)


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    close = "</parameter>\n"
    calls: list[Node] = []
    for tool in tools:
        pairs = key_value_pairs(tool, _pair, lambda schema: raw_text(schema, close), close.encode())
        calls.append(Seq((lit("\n<function=", tool.name, ">\n"), pairs, lit("</function>\n", tag(_CLOSE)))))
    return [Section(tag(_OPEN), one_of(calls))]


def _pair(key: str, value: Node) -> Node:
    return Seq((lit("<parameter=", key, ">"), value))


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return XmlCallReader(tools)
