"""MiniCPM 5: <function name="NAME"><param name="KEY">VALUE</param></function>, one function after another.

A text with `<`, `&` or line breaks in it is wrapped: <![CDATA[TEXT]]>; then only `]]></param>` ends it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from imp_server.core import Segment, Tool, ValueTags
from imp_server.grammar.languages.envelope import Alt, Node, Raw, Seq
from imp_server.grammar.values.schema.closing import KEYWORD as CLOSING
from imp_server.text.tools.base import CallPiece, CallReader, Cut, both, mark, unmarked
from imp_server.text.tools.glm import GlmReader
from imp_server.text.tools.json_stream import JsonScanner
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, key_value_pairs, lit, one_of, or_null

name = "minicpm"
_NAMED, _NAME_END = ' name="', '">'
_WRAP, _WRAP_END = "<![CDATA[", "]]>"
_PARAMETERS = ("<param" + _NAMED, mark("<param") + _NAMED)
_CLOSERS = ("</param>", mark("</param>"))
_WRAPPED = (b"<", b"&", b"\n")
"""What a text has to be wrapped for."""
_BEGINS_PLAIN = '^[ \\t\\r]*[^{\\[" \\t\\r]'
"""What begins otherwise is wrapped, too: in text that looks like JSON a tag may be part of a string."""
_SAY_NOTHING = frozenset({"type", "title", "description", "default", "examples", "$defs", "definitions", CLOSING})
"""Keys of a text's schema by which it may be any."""


def teaches(template: str) -> bool:
    return f"<function{_NAMED}" in template and f"<param{_NAMED}" in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    return (
        Segment(
            "call",
            openers=tuple(tag + _NAMED.encode() for tag in both("<function")),
            closers=both("</function>"),
            opens_from=(answer,),
            closes_to=answer,
            values=tuple(
                ValueTags(lead + _NAMED.encode(), _NAME_END.encode(), close, (_WRAP.encode(), _WRAP_END.encode()))
                for lead, close in zip(both("<param"), both("</param>"), strict=True)
            ),
        ),
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    close = tag("</param>")

    def text(schema: Any, nullable: bool) -> Node:
        wrapped = Seq((lit(_WRAP), Raw(_WRAP_END.encode() + close, or_null(schema) if nullable else schema)))
        if isinstance(schema, dict) and schema.keys() <= _SAY_NOTHING:
            return Alt((wrapped, lit(close), Raw(close, {"pattern": _BEGINS_PLAIN}, never=_WRAPPED)))
        if _is_plain(schema):
            return Alt((wrapped, Raw(close, or_null(schema) if nullable else schema, never=_WRAPPED)))
        return wrapped

    def pair(key: str, value: Node) -> Node:
        return Seq((lit(tag("<param"), _NAMED, key, _NAME_END), value))

    calls: list[Node] = [
        Seq((lit(tool.name, _NAME_END), key_value_pairs(tool, pair, text, close), lit(tag("</function>"))))
        for tool in tools
    ]
    return [Section(tag("<function") + _NAMED.encode(), one_of(calls))]


def _is_plain(schema: Any) -> bool:
    """None of its texts is empty, or has to be wrapped: the closer of an empty one couldn't be told from a wrap."""
    texts = schema.get("enum", [schema["const"]] if "const" in schema else None) if isinstance(schema, dict) else None
    return isinstance(texts, list) and all(
        isinstance(text, str)
        and re.match(_BEGINS_PLAIN, text)
        and not any(mark in text.encode("utf-8", "replace") for mark in _WRAPPED)
        for text in texts
    )


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return MiniCpmReader(tools)


class MiniCpmReader(GlmReader):
    """Owner of the position in one function. The walker takes its closer."""

    def close(self, *, closed: bool) -> list[CallPiece]:
        return [Cut()] if self._state == "name" else super().close(closed=closed)

    def _in_name(self, pieces: list[CallPiece]) -> bool:
        if not self._gathers_name():
            return False
        self._begin(pieces)
        self._state = "next"
        return True

    def _in_next(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next(_PARAMETERS)
        if found.tag is None:
            return False
        self._value_close = _CLOSERS[_PARAMETERS.index(found.tag)]
        self._state = "key"
        return True

    def _in_key(self, pieces: list[CallPiece]) -> bool:
        if not self._gathers_name():
            return False
        if self._writer is not None:
            self._send(self._writer.begin(unmarked(self._collected.take()).strip()), pieces)
        self._state = "gap"
        return True

    def _in_gap(self, pieces: list[CallPiece]) -> bool:
        held = self._scanner.rest()
        is_wrapped = held.startswith(_WRAP)
        self._scanner.add(held[len(_WRAP) :] if is_wrapped else held)
        if not is_wrapped and _WRAP.startswith(held):
            return False
        self._value_close = (_WRAP_END if is_wrapped else "") + self._value_close
        self._json = JsonScanner()
        is_json = not is_wrapped and self._writer is not None and self._writer.in_json
        self._state = "json" if is_json else "value"
        return True

    def _gathers_name(self) -> bool:
        found = self._scanner.next([_NAME_END])
        self._collected.add(found.before)
        return found.tag is not None

    _STEPS = {**GlmReader._STEPS, "name": _in_name, "next": _in_next, "key": _in_key, "gap": _in_gap}
