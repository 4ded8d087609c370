"""Arguments written as key/value pairs between tags, turned into a JSON object while they arrive.

Strings are streamed; every other declared type waits for its end, since it must be parsed whole. A value
of undeclared type becomes a number, boolean or null if it is exactly one, else a string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from imp_server.core import Tool

_SCALARS = (int, float, bool, type(None))


def declared_types(tools: Sequence[Tool], tool: str, key: str) -> frozenset[str]:
    """JSON types that the tool's schema declares for a parameter; empty = undeclared."""
    schema = next((t.parameters for t in tools if t.name == tool), {})
    properties = schema.get("properties")
    declared = properties.get(key) if isinstance(properties, Mapping) else None
    return frozenset(_types(declared, schema, 8)) if isinstance(declared, Mapping) else frozenset()


def _types(node: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(node, Mapping) or depth == 0:
        return set()
    kind = node.get("type")
    found = {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else set()
    for word in ("anyOf", "oneOf", "allOf"):
        for branch in node.get(word) or ():
            found |= _types(branch, root, depth - 1)
    for value in [*(node.get("enum") or ()), *([node["const"]] if "const" in node else ())]:
        found.add(_TYPE_NAMES.get(type(value), "null"))
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found |= _types(_resolve(root, reference), root, depth - 1)
    return {t for t in found if isinstance(t, str)}


_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def _resolve(root: Any, reference: str) -> Any:
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        root = root.get(key) if isinstance(root, Mapping) else None
    return root


class ObjectWriter:
    """Owner of one call's arguments object as it is written."""

    def __init__(self, tools: Sequence[Tool], tool: str) -> None:
        self._tools = tools
        self._tool = tool
        self._n_values = 0
        self._keys: set[str] = set()
        self._skipped = False
        self._raw = ""
        self._streams_string = False
        self._types: frozenset[str] = frozenset()

    def begin(self, key: str) -> str:
        """A value for `key` begins; JSON text to send. A repeated key is dropped: the first value stands."""
        self._skipped = key in self._keys
        if self._skipped:
            return ""
        self._keys.add(key)
        self._types = declared_types(self._tools, self._tool, key)
        self._streams_string = self._types == {"string"}
        self._raw = ""
        lead = "{" if self._n_values == 0 else ", "
        self._n_values += 1
        return lead + json.dumps(key, ensure_ascii=False) + ": " + ('"' if self._streams_string else "")

    def text(self, raw: str) -> str:
        if self._skipped:
            return ""
        if self._streams_string:
            return json.dumps(raw, ensure_ascii=False)[1:-1]
        self._raw += raw
        return ""

    def end(self) -> str:
        if self._skipped:
            return ""
        return '"' if self._streams_string else self._parsed()

    def close(self) -> str:
        """End of the object."""
        return "}" if self._n_values else "{}"

    def _parsed(self) -> str:
        as_string = json.dumps(self._raw, ensure_ascii=False)
        try:
            value = json.loads(self._raw, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return as_string
        if isinstance(value, _SCALARS):
            exact = self._raw.strip() == self._raw or self._types
            return self._raw.strip() if exact and not ("string" in self._types and value is not None) else as_string
        if self._types & {"array", "object"} and not isinstance(value, str):
            return self._raw.strip()
        return as_string


def _refuse(constant: str) -> None:
    raise ValueError(constant)
