"""Harmony (gpt-oss): <|channel|>commentary to=functions.NAME ... <|message|>{...}<|call|>.

The recipient may also stand in the role header (<|start|>assistant to=functions.NAME<|channel|>commentary).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from imp_server.core import Segment, Tool, special
from imp_server.grammar.languages.envelope import Node, Seq, Value
from imp_server.text.tools.base import Args, CallBegins, CallPiece, CallReader, Cut, mark
from imp_server.text.tools.gathered import Gathered
from imp_server.text.tools.json_calls import ArgumentsRelay, ending
from imp_server.text.tools.spelling import BoundTool, Section, TagBytes, lit, one_of
from imp_server.text.tools.tag_scanner import TagScanner

name = "harmony"

_RECIPIENT = re.compile(r"^(?:functions\.)?([A-Za-z0-9_.-]+)")


def teaches(template: str) -> bool:
    return "<|channel|>" in template and "functions." in template


def segments(tools: Sequence[Tool], answer: int, first: int) -> tuple[Segment, ...]:
    channel, start = special("<|channel|>"), special("<|start|>")
    headers = (channel + b"commentary to=", channel + b"analysis to=")
    begun = tuple(start + b"assistant" + header for header in headers)
    openers = (*headers, *begun, b" to=functions.", start + b"assistant to=")
    closers = (special("<|call|>"), special("<|end|>"))
    return (Segment("call", openers=openers, closers=closers, opens_from=(answer,), closes_to=answer, json_body=True),)


def sections(tools: Sequence[BoundTool], tag: TagBytes, template: str, many: bool) -> list[Section]:
    """<|call|> ends the completion, so it isn't part of the section."""
    channel, begun = tag("<|channel|>"), tag("<|start|>") + b"assistant"
    form = lit(" ", tag("<|constrain|>"), "json", tag("<|message|>"))
    calls: list[Node] = [Seq((lit(tool.name, form.data), Value(tool.schema))) for tool in tools]
    headed = [Seq((lit(tool.name, channel, "commentary", form.data), Value(tool.schema))) for tool in tools]
    headers = [lead + channel + name + b" to=" for lead in (b"", begun) for name in (b"commentary", b"analysis")]
    recipient = lit("functions.")
    return [
        Section(headers[0], Seq((recipient, one_of(calls))), repeats=False, also=tuple(headers[1:])),
        Section(begun + b" to=", Seq((recipient, one_of(headed))), repeats=False, forced=False),
        Section(b" to=functions.", one_of(headed), repeats=False, forced=False),
    ]


def reader(tools: Sequence[Tool], segment: int, opener: str) -> CallReader:
    return HarmonyCallReader()


class HarmonyCallReader:
    """The recipient up to the first blank or special token, then the body behind <|message|>."""

    def __init__(self) -> None:
        self._scanner = TagScanner()
        self._head = Gathered()
        self._is_lost = False
        """The header names nobody."""
        self._arguments: ArgumentsRelay | None = None

    def feed(self, text: str) -> list[CallPiece]:
        if self._is_lost:
            return []
        if self._arguments is not None:
            return self._send(text)
        self._scanner.add(text)
        found = self._scanner.next([mark("<|message|>")])
        self._head.add(found.before)
        if found.tag is None:
            return []
        recipient = _RECIPIENT.match(self._head.take())
        self._is_lost = recipient is None
        if recipient is None:
            return []
        self._arguments = ArgumentsRelay()
        return [CallBegins(recipient.group(1)), *self._send(self._scanner.rest())]

    def _send(self, text: str) -> list[CallPiece]:
        if self._arguments is None or self._arguments.done:
            return []
        ready, _ = self._arguments.feed(text)
        return [Args(ready)] if ready else []

    def close(self, *, closed: bool) -> list[CallPiece]:
        if self._arguments is not None:
            return ending(self._arguments, closed=closed)
        return [] if self._is_lost else [Cut()]
