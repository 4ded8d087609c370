"""Phi-4-mini: <|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>; Phi-3.5: functools[...]."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.envelope import Seq
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.json_calls import JsonCallReader
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, json_call, json_list, lit, one_of

name = "phi"


def teaches(template: str) -> bool:
    return "<|/tool_call|>" in template or "functools" in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    return (
        Segment(
            "call",
            openers=(*both("<|tool_call|>"), b"functools["),
            closers=both("<|/tool_call|>"),
            opens_from=(answer,),
            closes_to=answer,
            json_body=True,
        ),
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    calls = json_list(one_of([json_call(tool) for tool in tools]), many)
    return [Section(tag("<|tool_call|>"), Seq((calls, lit(tag("<|/tool_call|>")))), repeats=False)]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return JsonCallReader()
