"""ChatML / Hermes: <tool_call> {"name": ..., "arguments": {...}} </tool_call>. Also the fallback format.

Facts: the tags are special tokens in some vocabularies (Qwen) and text in others; models sometimes write
a second opener instead of the closer.
"""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Seq
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.json_calls import JsonCallReader
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, json_call, lit, one_of

name = "hermes"


def teaches(template: str) -> bool:
    return "<tool_call>" in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    return (
        Segment(
            "call",
            openers=both("<tool_call>"),
            closers=both("</tool_call>"),
            opens_from=(answer, first),
            closes_to=answer,
            json_body=True,
        ),
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    calls = one_of([json_call(tool) for tool in tools])
    return [Section(tag("<tool_call>"), Seq((lit("\n"), calls, lit("\n", tag("</tool_call>")))))]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return JsonCallReader()
