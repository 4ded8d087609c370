"""Phi-4-mini: <|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>; Phi-3.5: functools[...]."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.json_calls import JsonCallReader

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


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return JsonCallReader()
