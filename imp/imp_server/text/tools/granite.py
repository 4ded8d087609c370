"""Granite 3: <|tool_call|>[{"name": ..., "arguments": {...}}] up to the end of the turn. (Granite 4 writes hermes.)"""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.json_calls import JsonCallReader
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, json_call, json_list, one_of

name = "granite"


def teaches(template: str) -> bool:
    return "<|tool_call|>" in template and "<|/tool_call|>" not in template and "<tool_call>" not in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    openers = (*both("<|tool_call|>"), *both("<tool_call>"))
    return (Segment("call", openers=openers, opens_from=(answer,), json_body=True),)


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    calls = json_list(one_of([json_call(tool) for tool in tools]), many)
    return [Section(tag("<|tool_call|>"), calls, repeats=False, also=(b"<tool_call>",))]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return JsonCallReader()
