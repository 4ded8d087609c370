"""Gemma 4: <|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>.

Keys are bare words, strings stand between quote markers (special tokens), the rest is JSON. Strings may spell any
tag, but not the marker that ends them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from imp_server.core import Segment, Tool
from imp_server.grammar.languages.envelope import Alt, Node, Raw, Seq
from imp_server.text.tools.base import Args, CallBegins, CallEnds, CallPiece, CallReader, Cut, both, mark, unmarked
from imp_server.text.tools.gathered import Gathered
from imp_server.text.tools.json_stream import JsonScanner
from imp_server.text.tools.key_values import PYTHON_WORDS, is_json
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, ToolParameter, lit, one_of, parameters
from imp_server.text.tools.tag_scanner import TagScanner

name = "gemma"

QUOTE = '<|"|>'
_QUOTES = (QUOTE, mark(QUOTE))
_PUNCTUATION = ("{", "}", "[", "]", ",", ":", *_QUOTES, '"')


def teaches(template: str) -> bool:
    return "<|tool_call>" in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    """Where a section began with a special token, its closer's text is text."""
    text_closer, closer = both("<tool_call|>")
    return tuple(
        Segment(
            "call",
            openers=(opener,),
            closers=closers,
            opens_from=(answer,),
            closes_to=answer,
            json_body=True,
            quotes=both(QUOTE),
        )
        for opener, closers in zip(both("<|tool_call>"), ((text_closer, closer), (closer,)))
    )


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    quote, close = tag(QUOTE), tag("<tool_call|>")
    calls: list[Node] = []

    def text(schema: Any, nullable: bool) -> Node:
        quoted = Seq((lit(quote), Raw(quote, schema)))
        return Alt((quoted, lit("null"))) if nullable else quoted

    for tool in tools:
        found = parameters(tool, text, b"")
        found.sort(key=lambda p: not p.required)
        calls.append(Seq((lit("call:", tool.name, "{"), _listed(found), lit("}", close))))
    return [Section(tag("<|tool_call>"), one_of(calls))]


def _listed(found: list[ToolParameter]) -> Node:
    """Required ones first; whichever comes first has no comma."""

    def pair(parameter: ToolParameter, comma: str) -> Node:
        return Seq((lit(comma, parameter.key, ":"), parameter.value))

    def tail(rest: list[ToolParameter]) -> list[Node]:
        return [pair(p, ",") if p.required else Alt((pair(p, ","), Seq(()))) for p in rest]

    if not found or found[0].required:
        return Seq((pair(found[0], ""), *tail(found[1:]))) if found else Seq(())
    firsts: list[Node] = [Seq((pair(p, ""), *tail(found[i + 1 :]))) for i, p in enumerate(found)]
    return Alt((*firsts, Seq(())))


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return GemmaReader()


class GemmaReader:
    """Owner of the position in one call; rewrites its arguments as JSON token by token of their own syntax."""

    def __init__(self) -> None:
        self._scanner = TagScanner()
        self._state = "name"
        self._collected = Gathered()
        self._written = JsonScanner()
        """The arguments as JSON."""
        self._is_named = False
        self._quote = QUOTE
        """What ends the open string: where the quote is a special token, its text is text."""

    def feed(self, text: str) -> list[CallPiece]:
        self._scanner.add(text)
        pieces: list[CallPiece] = []
        while self._STEPS[self._state](self, pieces):
            pass
        return pieces

    def close(self, *, closed: bool) -> list[CallPiece]:
        """A quote's beginning and a bare word that nothing ended are left out: more might have followed."""
        if not self._is_named:
            return [Cut()] if self._collected.take().strip() else []
        return [CallEnds() if self._written.done else Cut()]

    def _in_name(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next(["{"])
        self._collected.add(found.before)
        if found.tag is None:
            return False
        pieces.append(CallBegins(unmarked(self._collected.take()).strip().removeprefix("call:").strip()))
        self._is_named = True
        self._send("{", pieces)
        self._state = "body"
        return True

    def _in_body(self, pieces: list[CallPiece]) -> bool:
        if self._written.done:
            self._scanner.rest()
            return False
        found = self._scanner.next(_PUNCTUATION)
        self._collected.add(found.before)
        if found.tag is None:
            return False
        if found.tag in _QUOTES or found.tag == '"':
            self._send('"', pieces)
            self._state = "json_text" if found.tag == '"' else "text"
            self._quote = found.tag
            self._collected.take()
        else:
            self._send(self._word(self._collected.take(), key=found.tag == ":") + found.tag, pieces)
        return True

    def _in_text(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next([self._quote])
        self._send(json.dumps(unmarked(found.before), ensure_ascii=False)[1:-1], pieces)
        if found.tag is None:
            return False
        self._send('"', pieces)
        self._state = "body"
        return True

    def _in_json_text(self, pieces: list[CallPiece]) -> bool:
        """A string in JSON's own spelling, inside nested values: passed on as it is."""
        found = self._scanner.next(["\\\\", '\\"', '"'])
        self._send(unmarked(found.before) + (found.tag or ""), pieces)
        if found.tag == '"':
            self._state = "body"
        return found.tag is not None

    @staticmethod
    def _word(raw: str, *, key: bool = False) -> str:
        """A bare word as JSON: keys and unknown words are quoted, JSON scalars stay."""
        word = unmarked(raw).strip()
        if not word or (word[0] == '"' and word[-1] == '"' and len(word) > 1):
            return word
        if not key and (is_json(word) or word in PYTHON_WORDS):
            return PYTHON_WORDS.get(word, word)
        return json.dumps(word, ensure_ascii=False)

    def _send(self, text: str, pieces: list[CallPiece]) -> None:
        ready, _ = self._written.split(text)
        if ready:
            pieces.append(Args(ready))

    _STEPS = {
        "name": _in_name,
        "body": _in_body,
        "text": _in_text,
        "json_text": _in_json_text,
    }
