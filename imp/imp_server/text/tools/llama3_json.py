"""Llama 3 and 4: {"name": "known tool", "parameters": {...}} where a reply begins, or anywhere after <|python_tag|>, or
after what Llama 4 writes between <|python_start|> and <|python_end|>.

Without the tag only a name that the request offers makes it a call, and only at the start of the reply: later on it is
an example. The first balanced object alone counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Alt, Seq, Value
from imp_server.text.tools.base import CallReader, both
from imp_server.text.tools.json_calls import JsonCallReader
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, json_call, lit, one_of

name = "llama3_json"
_TAG, _FOUR_TAG = "<|python_tag|>", "<|python_end|>"


def teaches(template: str) -> bool:
    return '"parameters"' in template and any(mark in template for mark in (_TAG, "<|eot_id|>", "<|eot|>"))


def _spellings(tool: str) -> Iterator[str]:
    quoted = json.dumps(tool, ensure_ascii=False)
    for key in ("name", "function"):
        for lead in ('{{"{0}": {1}', '{{"{0}":{1}', '{{ "{0}": {1}', '{{\n  "{0}": {1}', '{{\n    "{0}": {1}'):
            yield lead.format(key, quoted)
    yield f'{{"type": "function", "name": {quoted}'
    yield f'{{"type":"function","name":{quoted}'


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    bare = tuple(s.encode() for tool in tools for s in _spellings(tool.name))
    return (
        Segment("call", openers=bare, opens_from=(answer,), at_start=True, json_body=True),
        Segment("call", openers=(*both(_TAG), *both(_FOUR_TAG)), opens_from=(answer,), json_body=True),
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    """Every tool has openers of its own: its name decides."""
    found = []
    for tool in tools:
        rest = Seq((Alt((lit(', "parameters": '), lit(',"parameters":'))), Value(tool.schema), lit("}")))
        opener, *also = (s.encode() for s in _spellings(tool.name))
        found.append(Section(opener, rest, repeats=False, marker=tag(_TAG), also=tuple(also)))
    tagged = one_of([json_call(tool, arguments_key="parameters") for tool in tools])
    return [*found, *(Section(tag(name), tagged, repeats=False, forced=False) for name in (_TAG, _FOUR_TAG))]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return JsonCallReader({t.name for t in tools}, first_only=True, begun="" if segment else opener)
