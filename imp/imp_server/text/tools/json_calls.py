"""Reads calls written as JSON objects, alone or in a list: {"name": ..., "arguments": {...}}.

The key names vary by format, the key order by model: arguments that come before the name wait for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from imp_server.text.tools.base import Args, CallBegins, CallEnds, CallPiece, Cut
from imp_server.text.tools.json_stream import JsonScanner

_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args")
_IDS = ("id", "tool_call_id", "call_id")


class ArgumentsRelay:
    """One call's arguments: streams an object, unwraps a JSON string that holds one; null and "" stand for {}."""

    def __init__(self) -> None:
        self._scanner = JsonScanner()
        self._lead = ""
        self._collected: list[str] = []
        self._is_object = False

    @property
    def done(self) -> bool:
        """A value was written to its end."""
        return self._scanner.done

    @property
    def is_whole(self) -> bool:
        """The value is one that a function can be called with."""
        return self.done and self._is_object

    def feed(self, text: str) -> tuple[str, str]:
        """(arguments text ready to send, rest behind the value)."""
        if not self._lead:
            text = text.lstrip()
            if not text:
                return "", ""
        ready, rest = self._scanner.split(text)
        self._lead = self._lead or ready[:1]
        if self._lead == "{":
            self._is_object = True
            return ready, rest
        self._collected.append(ready)
        return self._unwrapped() if self.done else "", rest

    def close(self, *, closed: bool) -> tuple[str, CallPiece]:
        """(what is still to be sent, how the call ends). `closed`: it was ended by what ends a call."""
        if closed and not self._lead:
            return "{}", CallEnds()
        return "", CallEnds() if self.is_whole else Cut()

    def _unwrapped(self) -> str:
        """What stands in place of an object: the object it stands for, or the text as it was written."""
        raw = "".join(self._collected)
        try:
            value = json.loads(raw)
            inner = json.loads(value or "{}") if isinstance(value, str) else {} if value is None else None
        except (ValueError, RecursionError):
            return raw
        self._is_object = isinstance(inner, dict)
        return json.dumps(inner, ensure_ascii=False) if self._is_object else raw


def ending(arguments: ArgumentsRelay, *, closed: bool) -> list[CallPiece]:
    """The last pieces of a call."""
    tail, end = arguments.close(closed=closed)
    return [Args(tail), end] if tail else [end]


class JsonCallReader:
    """Owner of the position in a text of JSON call objects. Text between objects is skipped."""

    def __init__(self, known: Collection[str] = (), *, first_only: bool = False, begun: str = "") -> None:
        """`known` restricts the names (empty = all); `first_only`: what follows the first object is ignored.

        `begun`: text that the opener of the segment already took.
        """
        self._known = frozenset(known)
        self._first_only = first_only
        self._state = "between"
        self._buffer: list[str] = []
        self._in_quotes = False
        self._key = ""
        self._value: JsonScanner | None = None
        self._arguments: ArgumentsRelay | None = None
        self._early: list[str] = []
        self._name: str | None = None
        self._id: str | None = None
        self._begun = False
        self._ended = 0
        self._first: list[CallPiece] = []
        self._first = self.feed(begun)

    def feed(self, text: str) -> list[CallPiece]:
        pieces, self._first = self._first, []
        while text:
            if self._first_only and self._ended:
                return pieces
            text = self._STEPS[self._state](self, text, pieces)
        return pieces

    def close(self, *, closed: bool) -> list[CallPiece]:
        pieces, self._first = self._first, []
        if self._state != "between":
            self._cut(pieces)
        return pieces

    def _in_between(self, text: str, pieces: list[CallPiece]) -> str:
        start = text.find("{")
        if start < 0:
            return ""
        self._state = "key"
        self._buffer, self._early, self._name, self._id, self._begun = [], [], None, None, False
        self._in_quotes = False
        self._arguments = None
        return text[start + 1 :]

    def _in_key(self, text: str, pieces: list[CallPiece]) -> str:
        """Up to the colon behind a key, or to the end of the object."""
        for index, char in enumerate(text):
            if char == "}" and not self._in_quotes:
                self._end(pieces)
                return text[index + 1 :]
            if char == ":" and not self._in_quotes:
                self._key = "".join(self._buffer).strip(' \t\r\n,"')
                self._buffer = []
                self._state = "value"
                self._value = None
                if self._key in _ARGUMENTS and self._arguments is None:
                    self._arguments = ArgumentsRelay()
                else:
                    self._value = JsonScanner()
                return text[index + 1 :]
            self._in_quotes ^= char == '"'
            self._buffer.append(char)
        return ""

    def _in_value(self, text: str, pieces: list[CallPiece]) -> str:
        if self._value is None:
            assert self._arguments is not None
            ready, rest = self._arguments.feed(text)
            self._send(ready, pieces)
            if self._arguments.done:
                self._state = "key"
            elif rest:
                self._cut(pieces)
            return rest
        ready, rest = self._value.split(text)
        self._buffer.append(ready)
        if self._value.done:
            self._take(pieces)
        elif rest:
            self._cut(pieces)
        return rest

    def _take(self, pieces: list[CallPiece]) -> None:
        """A scalar value is complete."""
        try:
            value = json.loads("".join(self._buffer))
        except (ValueError, RecursionError):  # too deep, or a number too long for Python
            value = None
        if self._key in _NAMES and isinstance(value, str):
            self._name = value.removeprefix("functions.")
        elif self._key in _NAMES and isinstance(value, dict):
            self._nested(value)
        elif self._key in _IDS and isinstance(value, str | int):
            self._id = str(value)
        self._buffer, self._in_quotes = [], False
        self._state = "key"
        self._send("", pieces)

    def _nested(self, value: dict[str, object]) -> None:
        """{"function": {"name": ..., "arguments": ...}}, as some models copy OpenAI's shape."""
        if isinstance(value.get("name"), str):
            self._name = str(value["name"])
        arguments = value.get("arguments")
        if self._arguments is None and arguments is not None:
            self._arguments = ArgumentsRelay()
            self._early.append(self._arguments.feed(json.dumps(arguments, ensure_ascii=False))[0])

    def _send(self, ready: str, pieces: list[CallPiece]) -> None:
        if self._name is None or not self._named_tool_exists:
            self._early.append(ready)
            return
        if not self._begun:
            pieces.append(CallBegins(self._name, self._id))
            self._begun = True
            ready, self._early = "".join(self._early) + ready, []
        if ready:
            pieces.append(Args(ready))

    @property
    def _named_tool_exists(self) -> bool:
        return not self._known or self._name in self._known

    def _end(self, pieces: list[CallPiece]) -> None:
        """The object is closed."""
        self._send("", pieces)
        if self._begun:
            pieces += ending(self._arguments or ArgumentsRelay(), closed=True)
            self._ended += 1
        self._state, self._begun = "between", False

    def _cut(self, pieces: list[CallPiece]) -> None:
        """The object isn't closed, and never will be."""
        pieces.append(Cut())
        self._ended += self._begun
        self._state, self._begun = "between", False

    _STEPS = {
        "between": _in_between,
        "key": _in_key,
        "value": _in_value,
    }
