"""Cohere Command: <|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.core import Segment, Tool
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.json_calls import JsonCallReader

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


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return JsonCallReader()
