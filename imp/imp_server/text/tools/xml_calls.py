"""Reads calls written in tags with raw text: the notations of Qwen-Coder, Seed and MiniMax.

A value that begins on its own line ends at a closing tag on its own line, so code that contains the tag
inside a line survives byte for byte; the newline behind the opener and before the closer is not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from imp_server.core import Tool
from imp_server.text.tools.base import Args, Begin, CallPiece, End
from imp_server.text.tools.key_values import ObjectWriter
from imp_server.text.tools.tag_scanner import TagScanner


class NamedTags(NamedTuple):
    """How a call and its parameters open and close; a name stands between an opener and its `end`."""

    function: str
    function_end: str
    function_close: str
    parameter: str
    parameter_end: str
    parameter_close: str


QWEN = NamedTags("<function=", ">", "</function>", "<parameter=", ">", "</parameter>")


class XmlCallReader:
    """Owner of the position in one section of calls."""

    def __init__(self, tools: Sequence[Tool], tags: NamedTags = QWEN) -> None:
        self._tools = tools
        self._tags = tags
        self._scanner = TagScanner()
        self._state = "outside"
        self._collected = ""
        self._own_line = False
        self._skip_newline = False
        self._writer: ObjectWriter | None = None

    def feed(self, text: str) -> list[CallPiece]:
        self._scanner.add(text)
        pieces: list[CallPiece] = []
        while getattr(self, f"_in_{self._state}")(pieces):
            pass
        return pieces

    def close(self) -> list[CallPiece]:
        """The walker takes the function's closer with the segment's; a cut value ends where it was cut."""
        pieces: list[CallPiece] = []
        if self._writer is None:
            return pieces
        if self._state in ("value", "value_start"):
            rest = self._scanner.rest()
            if self._state == "value_start":
                rest = rest.removeprefix("\n")
            self._send(self._writer.text(rest) + self._writer.end(), pieces)
        self._end_call(pieces)
        return pieces

    def _in_outside(self, pieces: list[CallPiece]) -> bool:
        if self._scanner.next([self._tags.function]).tag is None:
            return False
        self._state, self._collected = "name", ""
        return True

    def _in_name(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next([self._tags.function_end])
        self._collected += found.before
        if found.tag is None:
            return False
        pieces.append(Begin(self._collected.strip()))
        self._writer = ObjectWriter(self._tools, self._collected.strip())
        self._state = "function"
        return True

    def _in_function(self, pieces: list[CallPiece]) -> bool:
        found = self._scanner.next([self._tags.parameter, self._tags.function_close])
        if found.tag is None:
            return False
        if found.tag == self._tags.function_close:
            self._end_call(pieces)
        else:
            self._state, self._collected = "key", ""
        return True

    def _in_key(self, pieces: list[CallPiece]) -> bool:
        assert self._writer is not None
        found = self._scanner.next([self._tags.parameter_end])
        self._collected += found.before
        if found.tag is None:
            return False
        self._send(self._writer.begin(self._collected.strip()), pieces)
        self._state = "value_start"
        return True

    def _in_value_start(self, pieces: list[CallPiece]) -> bool:
        """The first character decides: a newline means that the value has lines of its own."""
        held = self._scanner.rest()
        if not held:
            return False
        self._own_line = held[0] == "\n"
        self._scanner.add(held)
        self._state = "value"
        self._skip_newline = self._own_line
        return True

    def _in_value(self, pieces: list[CallPiece]) -> bool:
        assert self._writer is not None
        found = self._scanner.next([("\n" if self._own_line else "") + self._tags.parameter_close])
        before = found.before
        if self._skip_newline and before:
            before = before[1:]
            self._skip_newline = False
        self._send(self._writer.text(before), pieces)
        if found.tag is None:
            return False
        self._send(self._writer.end(), pieces)
        self._state = "function"
        return True

    def _end_call(self, pieces: list[CallPiece]) -> None:
        assert self._writer is not None
        pieces += [Args(self._writer.close()), End()]
        self._writer, self._state = None, "outside"

    @staticmethod
    def _send(text: str, pieces: list[CallPiece]) -> None:
        if text:
            pieces.append(Args(text))
