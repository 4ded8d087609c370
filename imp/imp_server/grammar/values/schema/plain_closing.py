"""Closing of plain schemas, in one walk: objects that nothing but their own `properties` speaks of get no other keys.

Most schemas of tools are plain. What isn't is left to closing.py, which says what closing is.
"""

from __future__ import annotations

from typing import Any

from imp_server.core.turns import charge

MAX_DEPTH = 64
MAX_PLACES = 1_000
"""Larger schemas aren't plain: closing.py counts their places."""
N_BYTES = 400
"""Memory of a subschema that is copied."""
_SINGLE = frozenset(
    [
        "$schema",
        "$comment",
        "type",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "x-imp-extra-properties",
    ]
)
"""Keywords that have no part in what the keys of an object are."""


class _NotPlain(Exception):
    pass


def plainly_closed(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema with its objects closed; None if it isn't plain."""
    try:
        closed: dict[str, Any] = _Copy().closed(schema, MAX_DEPTH)
    except _NotPlain:
        return None
    return closed


class _Copy:
    """Owner of the number of subschemas copied so far."""

    def __init__(self) -> None:
        self._n_places = 0

    def closed(self, schema: Any, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict) or not depth or self._n_places >= MAX_PLACES:
            raise _NotPlain
        self._n_places += 1
        charge(N_BYTES, 2 + len(schema) // 4)
        found = {}
        for keyword, value in schema.items():
            if keyword in _SINGLE:
                found[keyword] = value
            elif keyword == "properties" and isinstance(value, dict):
                found[keyword] = {name: self.closed(sub, depth - 1) for name, sub in value.items()}
            elif keyword in ("items", "additionalProperties"):
                found[keyword] = self.closed(value, depth - 1)
            elif self._says_no_more(schema, keyword, depth):
                found[keyword] = value
            else:
                raise _NotPlain
        if schema.get("properties") and "additionalProperties" not in schema:
            found["additionalProperties"] = False
        return found

    def _says_no_more(self, schema: dict[str, Any], keyword: str, depth: int) -> bool:
        """Whether closing is the same with the keyword as without it."""
        value = schema[keyword]
        if keyword == "uniqueItems" and isinstance(value, bool):
            items = schema.get("items", True)  # closed, fewer of them may differ than there have to be
            return not value or bool(self.closed(items, depth - 1) == items)
        return (keyword == "required" and _are_declared(schema, value)) or _is_scalar(keyword, value)


def _are_declared(schema: dict[str, Any], names: Any) -> bool:
    declared = schema.get("properties")
    return (
        isinstance(names, list)
        and isinstance(declared, dict)
        and all(isinstance(name, str) and name in declared for name in names)
    )


def _is_scalar(keyword: str, value: Any) -> bool:
    """A constant that isn't an object or an array, or several."""
    values = [value] if keyword == "const" else value if keyword == "enum" and isinstance(value, list) else [{}]
    return not any(isinstance(one, dict | list) for one in values)
