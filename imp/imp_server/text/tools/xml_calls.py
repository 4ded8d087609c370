"""Calls written in tags with raw text: the notations of Qwen-Coder, Seed and MiniMax, read and spelled by one rule.

A value ends at a closing tag behind which, a line further on, the next parameter or the function's closer stands;
any other closing tag is text, so code that is full of such tags survives byte for byte. The grammar lets a model
misspell a closing tag (`</parameter1>`) only in a value that has an opening one: elsewhere it is a mistake, behind
which the value would run on. Where values have lines of their own, the newline behind the opener and the one before
the closer aren't part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from imp_server.core import Segment, Tool, ValueTags, special
from imp_server.grammar.languages.envelope import Alt, Lit, Node, Raw, Seq
from imp_server.text.tools.base import Args, CallBegins, CallEnds, CallPiece, Cut, both, unmarked
from imp_server.text.tools.gathered import Gathered
from imp_server.text.tools.key_values import ObjectWriter
from imp_server.text.tools.spelling import BoundTool, key_value_pairs, lit, or_null
from imp_server.text.tools.tag_scanner import TagScanner


class NamedTags(NamedTuple):
    """How a call and its parameters open and close; a name stands between an opener and its `end`."""

    section: str
    section_close: str
    function: str
    function_end: str
    function_close: str
    parameter: str
    parameter_end: str
    parameter_close: str
    own_lines: bool
    """Values stand on lines of their own."""


_GAPS = ("\n", "\n\n")
"""Between a closer and what follows it. Templates teach the first, some tokens write the second."""


def section_segment(tags: NamedTags, answer: int) -> Segment:
    """A section ends behind a function's closer, so that its tag alone may stand in a value."""
    close = tags.section_close
    closers = tuple(
        f"{tags.function_close}{gap}".encode() + tag for gap in ("", *_GAPS) for tag in (close.encode(), special(close))
    )
    return Segment(
        "call",
        openers=both(tags.section),
        closers=closers,
        opens_from=(answer,),
        closes_to=answer,
        values=(ValueTags(tags.parameter.encode(), tags.parameter_end.encode(), tags.parameter_close.encode()),),
    )


def function_call(tool: BoundTool, tags: NamedTags) -> Node:
    """From the function's opener to its closer, for the grammar."""
    lead = "\n" if tags.own_lines else ""
    close = (lead + tags.parameter_close).encode()
    gap = Alt(tuple(Lit(g.encode()) for g in _GAPS))
    follow = tuple((g + what).encode() for g in _GAPS for what in (tags.parameter, tags.function_close))
    opener = b"<" + tags.parameter_close[2:-1].encode()
    never = tuple(f"{tags.function_close}{g}{tags.section_close}".encode() for g in ("", *_GAPS))

    def text(schema: Any, nullable: bool) -> Node:
        return Raw(close, or_null(schema) if nullable else schema, follow=follow, opener=opener, never=never)

    def pair(key: str, value: Node) -> Node:
        return Seq((gap, lit(tags.parameter, key, tags.parameter_end, lead), value))

    pairs = key_value_pairs(tool, pair, text, close)
    return Seq((lit(tags.function, tool.name, tags.function_end), pairs, gap, lit(tags.function_close)))


class XmlCallReader:
    """Owner of the position in one section of calls."""

    def __init__(self, tools: Sequence[Tool], tags: NamedTags) -> None:
        self._tools = tools
        self._tags = tags
        self._scanner = TagScanner()
        self._state = "outside"
        self._collected = Gathered()
        self._ends: dict[str, str] = {}
        """What ends the open value -> the state behind it."""
        self._close = ""
        self._writer: ObjectWriter | None = None

    def feed(self, text: str) -> list[CallPiece]:
        self._scanner.add(text)
        pieces: list[CallPiece] = []
        while self._STEPS[self._state](self, pieces):
            pass
        return pieces

    def close(self, *, closed: bool) -> list[CallPiece]:
        """The walker takes the function's closer with the segment's. What may be the beginning of a tag is left out."""
        pieces: list[CallPiece] = []
        if self._writer is None:
            return [Cut()] if self._state == "name" else []
        if not closed or self._state == "key":
            return [Cut()]
        if self._state in ("value", "value_start"):
            rest = self._scanner.rest()
            if self._state == "value_start":
                rest = rest.removeprefix("\n") if self._tags.own_lines else rest
            elif rest.startswith(self._close):
                rest = ""
            self._send(self._writer.text(unmarked(rest)) + self._writer.end(), pieces)
        self._end_call(pieces)
        return pieces

    def _in_outside(self, pieces: list[CallPiece]) -> bool:
        if self._scanner.next([self._tags.function]).tag is None:
            return False
        self._state = "name"
        return True

    def _in_name(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next([self._tags.function_end])
        self._collected.add(found.before)
        if found.tag is None:
            return False
        called = unmarked(self._collected.take()).strip()
        pieces.append(CallBegins(called))
        self._writer = ObjectWriter(self._tools, called)
        self._state = "function"
        return True

    def _in_function(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next([self._tags.parameter, self._tags.function_close])
        if found.tag is None:
            return False
        self._go_on("key" if found.tag == self._tags.parameter else "outside", pieces)
        return True

    def _in_key(self, pieces: list[CallPiece]) -> bool:
        assert self._writer is not None
        found = self._scanner.next([self._tags.parameter_end])
        self._collected.add(found.before)
        if found.tag is None:
            return False
        self._send(self._writer.begin(unmarked(self._collected.take()).strip()), pieces)
        self._state = "value_start"
        return True

    def _in_value_start(self, pieces: list[CallPiece]) -> bool:
        """A value that ought to have lines of its own may yet stand on the line of its tags: nobody makes it."""
        tags, held = self._tags, self._scanner.rest()
        if not held:
            return False
        own_line = tags.own_lines and held[0] == "\n"
        self._scanner.add(held[1:] if own_line else held)
        self._close = ("\n" if own_line else "") + tags.parameter_close
        gaps = ("", *_GAPS) if tags.own_lines and not own_line else _GAPS
        self._ends = {self._close + gap + tags.parameter: "key" for gap in gaps}
        self._ends |= {self._close + gap + tags.function_close: "outside" for gap in gaps}
        self._state = "value"
        return True

    def _in_value(self, pieces: list[CallPiece]) -> bool:
        assert self._writer is not None
        found = self._scanner.next(list(self._ends))
        self._send(self._writer.text(unmarked(found.before)), pieces)
        if found.tag is None:
            return False
        self._send(self._writer.end(), pieces)
        self._go_on(self._ends[found.tag], pieces)
        return True

    def _go_on(self, state: str, pieces: list[CallPiece]) -> None:
        """Behind a parameter's opener, or behind the function's closer."""
        if state == "outside":
            self._end_call(pieces)
        self._state = state

    def _end_call(self, pieces: list[CallPiece]) -> None:
        assert self._writer is not None
        pieces += [Args(self._writer.close()), CallEnds()]
        self._writer, self._state = None, "outside"

    @staticmethod
    def _send(text: str, pieces: list[CallPiece]) -> None:
        if text:
            pieces.append(Args(text))

    _STEPS = {
        "outside": _in_outside,
        "name": _in_name,
        "function": _in_function,
        "key": _in_key,
        "value_start": _in_value_start,
        "value": _in_value,
    }
