"""Jamba and Apriel: <tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Seq
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.json_calls import JsonCallReader
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, json_call, json_list, lit, one_of

name = "jamba"


def teaches(template: str) -> bool:
    return "<tool_calls>" in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    return (
        Segment(
            "call",
            openers=both("<tool_calls>"),
            closers=both("</tool_calls>"),
            opens_from=(answer,),
            closes_to=answer,
            json_body=True,
        ),
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    calls = json_list(one_of([json_call(tool) for tool in tools]), many)
    return [Section(tag("<tool_calls>"), Seq((calls, lit(tag("</tool_calls>")))), repeats=False)]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return JsonCallReader()
