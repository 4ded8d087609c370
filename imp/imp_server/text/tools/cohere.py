"""Cohere Command: <|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>."""

from __future__ import annotations

import json
from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Node, Seq, Value
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.json_calls import JsonCallReader
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, json_list, lit, one_of

name = "cohere"


def teaches(template: str) -> bool:
    return "<|START_ACTION|>" in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    return (
        Segment(
            "call",
            openers=both("<|START_ACTION|>"),
            closers=both("<|END_ACTION|>"),
            opens_from=(answer,),
            closes_to=answer,
            json_body=True,
        ),
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    number = {"type": "string", "pattern": "^[0-9]{1,2}$"}
    named: list[Node] = []
    for tool in tools:
        name = json.dumps(tool.name, ensure_ascii=False)
        named.append(Seq((lit(name, ', "parameters": '), Value(tool.schema), lit("}"))))
    call = Seq((lit('{"tool_call_id": '), Value(number), lit(', "tool_name": '), one_of(named)))
    calls = json_list(call, many)
    return [Section(tag("<|START_ACTION|>"), Seq((calls, lit(tag("<|END_ACTION|>")))), repeats=False)]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return JsonCallReader()
