"""Llama 3 JSON: a reply that begins with {"name": "known tool", "parameters": {...}}, perhaps after <|python_tag|>.

Only a name that the request offers makes it a call, and only at the start of the reply; the first
balanced object alone counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.envelope import Lit, Seq
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.json_calls import JsonCallReader
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, json_call

name = "llama3_json"
_TAG = "<|python_tag|>"


def teaches(template: str) -> bool:
    return '"parameters"' in template and (_TAG in template or "<|eot_id|>" in template)


def _spellings(tool: str) -> Iterator[str]:
    quoted = json.dumps(tool, ensure_ascii=False)
    for key in ("name", "function"):
        for lead in ('{{"{0}": {1}', '{{"{0}":{1}', '{{ "{0}": {1}', '{{\n  "{0}": {1}', '{{\n    "{0}": {1}'):
            yield lead.format(key, quoted)
    yield f'{{"type": "function", "name": {quoted}'
    yield f'{{"type":"function","name":{quoted}'


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    bare = tuple(s.encode() for tool in tools for s in _spellings(tool.name))
    tagged = tuple(tag + s for tag in both(_TAG) for s in bare)
    return (Segment("call", openers=bare + tagged, opens_from=(answer,), at_start=True, json_body=True),)


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    """Every tool has an opener of its own: its name decides."""
    found = []
    for tool in tools:
        call = json_call(tool, arguments_key="parameters")
        assert isinstance(call, Seq) and isinstance(call.parts[0], Lit)
        found.append(Section(call.parts[0].data, Seq(call.parts[1:]), repeats=False, marker=tag(_TAG)))
    return found


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return JsonCallReader({t.name for t in tools}, first_only=True, begun=opener)
