"""Arguments written as key/value pairs between tags, turned into a JSON object while they arrive.

Strings are streamed; a value in JSON waits for its end, since it must be parsed whole, and is a string if it isn't
JSON. A value of an undeclared parameter becomes a number, boolean or null if it is exactly one, else a string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from imp_server.core import Tool
from imp_server.text.tools.json_stream import JsonScanner
from imp_server.text.tools.written_as import WrittenAs, written_as

_SCALARS = frozenset("-0123456789tfn")
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""How some templates show these in the history, so some models write them."""


def _written(tools: Sequence[Tool], tool: str, key: str) -> WrittenAs | None:
    """None: the tool's schema declares no such parameter."""
    schema = next((t.parameters for t in tools if t.name == tool), {})
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return written_as(properties[key], schema)
    required = schema.get("required")
    return "json" if isinstance(required, list | tuple) and key in required else None


class ObjectWriter:
    """Owner of one call's arguments object as it is written."""

    def __init__(self, tools: Sequence[Tool], tool: str) -> None:
        self._tools = tools
        self._tool = tool
        self._n_values = 0
        self._keys: set[str] = set()
        self._skipped = False
        self._raw: list[str] = []
        self._held = ""
        self._written: WrittenAs | None = None

    def begin(self, key: str) -> str:
        """A value for `key` begins; JSON text to send. A repeated key is dropped: the first value stands."""
        self._skipped = key in self._keys
        self._written = _written(self._tools, self._tool, key)
        if self._skipped:
            return ""
        self._keys.add(key)
        self._raw, self._held = [], ""
        lead = "{" if self._n_values == 0 else ", "
        self._n_values += 1
        return lead + json.dumps(key, ensure_ascii=False) + ": " + ('"' if self._written == "text" else "")

    @property
    def in_json(self) -> bool:
        """The open value is read as JSON."""
        return self._written == "json"

    def text(self, raw: str) -> str:
        if self._skipped:
            return ""
        if self._written == "text_or_null":
            return self._nullable(raw)
        if self._written == "text":
            return _escaped(raw)
        self._raw.append(raw)
        return ""

    def end(self) -> str:
        if self._skipped:
            return ""
        if self._written == "text_or_null":
            return "null" if self._held == "null" else f'"{self._held}"' if not self._raw else '"'
        return '"' if self._written == "text" else self._parsed()

    def _nullable(self, raw: str) -> str:
        """Held back as long as it may become `null`. Then `_raw` isn't empty."""
        if self._raw:
            return _escaped(raw)
        self._held += raw
        if "null".startswith(self._held):
            return ""
        self._raw.append(self._held)
        return '"' + _escaped(self._held)

    def close(self) -> str:
        """End of the object."""
        return "}" if self._n_values else "{}"

    def _parsed(self) -> str:
        raw = "".join(self._raw)
        value = raw.strip()
        if self._written is None:
            return raw if raw[:1] in _SCALARS and is_json(raw) else f'"{_escaped(raw)}"'
        return value if is_json(value) else PYTHON_WORDS.get(value) or f'"{_escaped(raw)}"'


def _escaped(text: str) -> str:
    """`text` inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def is_json(text: str) -> bool:
    """One whole JSON value, of any depth, its numbers of any length."""
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
        return True
    except ValueError:
        return False
    except RecursionError:
        scanner = JsonScanner()
        n_read = scanner.feed(text)
        scanner.end()
        return scanner.done and n_read == len(text)


def _refuse(constant: str) -> None:
    raise ValueError(constant)
