"""Reads calls written as JSON objects, alone or in a list: {"name": ..., "arguments": {...}}.

The key names vary by format, the key order by model: arguments that come before the name wait for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from imp_server.text.tools.base import Args, Begin, CallPiece, End
from imp_server.text.tools.json_stream import JsonRelay

_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args")
_IDS = ("id", "tool_call_id", "call_id")


class ArgumentsRelay:
    """One call's arguments: streams an object, unwraps a JSON string that holds one, turns null into {}."""

    def __init__(self) -> None:
        self._relay = JsonRelay()
        self._lead = ""
        self._collected: list[str] | None = None
        self._sent = False

    @property
    def done(self) -> bool:
        return self._relay.done

    def feed(self, text: str) -> tuple[str, str]:
        """(arguments text ready to send, rest behind the value)."""
        if not self._lead:
            text = text.lstrip()
            if not text:
                return "", ""
            self._lead = text[0]
            if self._lead not in "{[":
                self._collected = []
        ready, rest = self._relay.feed(text)
        if self._collected is not None:
            self._collected.append(ready)
            ready = self._unwrap() if self._relay.done else ""
        self._sent = self._sent or bool(ready)
        return ready, rest

    def close(self) -> str:
        """What makes the arguments sent so far valid; {} if none were."""
        tail = self._relay.close() if self._lead else ""
        if self._collected is not None and not self._sent:
            self._collected.append(tail)
            tail = self._unwrap()
        return tail if self._sent or tail else "{}"

    def _unwrap(self) -> str:
        """Arguments given as a JSON string or null: the object they stand for."""
        try:
            value = json.loads("".join(self._collected or ()) or "null")
            inner = json.loads(value) if isinstance(value, str) else value
            return json.dumps(inner, ensure_ascii=False) if isinstance(inner, dict) else "{}"
        except (ValueError, RecursionError):
            return "{}"


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
        self._value: JsonRelay | None = None
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
            text = getattr(self, f"_in_{self._state}")(text, pieces)
        return pieces

    def close(self) -> list[CallPiece]:
        pieces, self._first = self._first, []
        if self._state != "between":
            self._finish(pieces)
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
                self._finish(pieces)
                return text[index + 1 :]
            if char == ":" and not self._in_quotes:
                self._key = "".join(self._buffer).strip(' \t\r\n,"')
                self._buffer = []
                self._state = "value"
                self._value = None
                if self._key in _ARGUMENTS and self._arguments is None:
                    self._arguments = ArgumentsRelay()
                else:
                    self._value = JsonRelay()
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
                self._finish(pieces)
            return rest
        ready, rest = self._value.feed(text)
        self._buffer.append(ready)
        if self._value.done:
            self._take(pieces)
        elif rest:
            self._finish(pieces)
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
            pieces.append(Begin(self._name, self._id))
            self._begun = True
            ready, self._early = "".join(self._early) + ready, []
        if ready:
            pieces.append(Args(ready))

    @property
    def _named_tool_exists(self) -> bool:
        return not self._known or self._name in self._known

    def _finish(self, pieces: list[CallPiece]) -> None:
        """The object is over (closed, cut or broken)."""
        self._state = "between"
        self._send("", pieces)
        if self._begun:
            tail = self._arguments.close() if self._arguments is not None else "{}"
            if tail:
                pieces.append(Args(tail))
            pieces.append(End())
            self._ended += 1
        self._begun = False
