"""Phi-4-mini: <|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>; Phi-3.5: functools[...]."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Repeat, Seq
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.json_calls import JsonCallReader
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, json_call, lit, one_of

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
    call = one_of([json_call(tool) for tool in tools])
    begun = Seq((Repeat(call, 1, None if many else 1, b", "), lit("]")))
    return [
        Section(tag("<|tool_call|>"), Seq((lit("["), begun, lit(tag("<|/tool_call|>")))), repeats=False),
        Section(b"functools[", begun, repeats=False, forced=False),
    ]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return JsonCallReader()
