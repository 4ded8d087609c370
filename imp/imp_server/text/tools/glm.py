"""GLM 4.5+: <tool_call>NAME, then <arg_key>K</arg_key><arg_value>V</arg_value> pairs, </tool_call>.

Strings are raw text, everything else is JSON text, whose strings may spell any tag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from imp_server.core import SPECIAL_OPEN, Segment, Tool, ValueTags
from imp_server.grammar.languages.envelope import Node, Raw, Seq
from imp_server.text.tools.base import Args, CallBegins, CallEnds, CallPiece, CallReader, Cut, both, mark, unmarked
from imp_server.text.tools.gathered import Gathered
from imp_server.text.tools.json_stream import JsonScanner
from imp_server.text.tools.key_values import ObjectWriter
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, key_value_pairs, lit, one_of, or_null
from imp_server.text.tools.tag_scanner import TagScanner

name = "glm"
_VALUE_CLOSE = "</arg_value>"


def teaches(template: str) -> bool:
    return "<arg_key>" in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    """Where a section began with a special token, its closer's text is text."""
    text_closer, closer = both("</tool_call>")
    values = tuple(ValueTags(lead, b"", close) for lead, close in zip(both("<arg_value>"), both(_VALUE_CLOSE)))
    return tuple(
        Segment("call", openers=(opener,), closers=closers, opens_from=(answer,), closes_to=answer, values=values)
        for opener, closers in zip(both("<tool_call>"), ((text_closer, closer), (closer,)))
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    close, section_close = tag("</arg_value>") + b"\n", tag("</tool_call>")
    never = () if section_close.startswith(SPECIAL_OPEN) else (section_close,)
    calls: list[Node] = []

    def text(schema: Any, nullable: bool) -> Node:
        return Raw(close, or_null(schema) if nullable else schema, never=never)

    for tool in tools:

        def pair(key: str, value: Node) -> Node:
            return Seq((lit(tag("<arg_key>"), key, tag("</arg_key>"), "\n", tag("<arg_value>")), value))

        pairs = key_value_pairs(tool, pair, text, close)
        calls.append(Seq((lit(tool.name, "\n"), pairs, lit(section_close))))
    return [Section(tag("<tool_call>"), one_of(calls))]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return GlmReader(tools)


def _spellings(tag: str) -> tuple[str, str]:
    return tag, mark(tag)


class GlmReader:
    """Owner of the position in one <tool_call> body. A value ends at the kind of tag that it began with: where tags
    are special tokens, their text is text."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self._scanner = TagScanner()
        self._state = "name"
        self._collected = Gathered()
        self._value_close = _VALUE_CLOSE
        self._writer: ObjectWriter | None = None
        self._json = JsonScanner()
        """The open value, as long as it is one JSON value and no more."""

    def feed(self, text: str) -> list[CallPiece]:
        self._scanner.add(text)
        pieces: list[CallPiece] = []
        while self._STEPS[self._state](self, pieces):
            pass
        return pieces

    def close(self, *, closed: bool) -> list[CallPiece]:
        """A value without a closer of its own ends at the section's; a parameter without a value has no end."""
        pieces: list[CallPiece] = []
        if self._state == "name":
            self._collected.add(self._scanner.rest())
            if not closed:
                return [Cut()] if self._collected.take().strip() else []
            self._begin(pieces)
        if self._writer is None:
            return pieces
        if not closed or self._state in ("key", "gap"):
            return [Cut()]
        if self._state in ("json", "value"):
            self._send(self._writer.text(unmarked(self._scanner.rest())) + self._writer.end(), pieces)
        return [*pieces, Args(self._writer.close()), CallEnds()]

    def _begin(self, pieces: list[CallPiece]) -> None:
        called = unmarked(self._collected.take()).strip()
        if called:
            pieces.append(CallBegins(called))
            self._writer = ObjectWriter(self._tools, called)

    def _in_name(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next(_spellings("<arg_key>"))
        self._collected.add(found.before)
        if found.tag is None:
            return False
        self._begin(pieces)
        self._state = "key"
        return True

    def _in_key(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next(_spellings("</arg_key>"))
        self._collected.add(found.before)
        if found.tag is None:
            return False
        if self._writer is not None:
            self._send(self._writer.begin(unmarked(self._collected.take()).strip()), pieces)
        self._state = "gap"
        return True

    def _in_gap(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next(_spellings("<arg_value>"))
        if found.tag is None:
            return False
        self._value_close = _VALUE_CLOSE if found.tag == "<arg_value>" else mark(_VALUE_CLOSE)
        self._json = JsonScanner()
        self._state = "json" if self._writer is not None and self._writer.in_json else "value"
        return True

    def _in_json(self, pieces: list[CallPiece]) -> bool:
        """Tags count behind the value, or behind what shows that it is none."""
        assert self._writer is not None
        text = self._scanner.rest()
        n_read = self._json.feed(text)
        self._send(self._writer.text(unmarked(text[:n_read])), pieces)
        self._scanner.add(text[n_read:])
        if not (self._json.done or self._json.broken):
            return False
        self._state = "value"
        return True

    def _in_value(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next([self._value_close])
        if self._writer is not None:
            self._send(self._writer.text(unmarked(found.before)), pieces)
        if found.tag is None:
            return False
        if self._writer is not None:
            self._send(self._writer.end(), pieces)
        self._state = "next"
        return True

    def _in_next(self, pieces: list[CallPiece]) -> bool:
        if self._scanner.next(_spellings("<arg_key>")).tag is None:
            return False
        self._state = "key"
        return True

    @staticmethod
    def _send(text: str, pieces: list[CallPiece]) -> None:
        if text:
            pieces.append(Args(text))

    _STEPS: ClassVar[Mapping[str, Callable[[Any, list[CallPiece]], bool]]] = {
        "name": _in_name,
        "key": _in_key,
        "gap": _in_gap,
        "json": _in_json,
        "value": _in_value,
        "next": _in_next,
    }
