"""How notations of tags write a parameter's value: strings as they are, everything else as JSON.

Decided by the parameter's schema alone, once for the grammar (spelling.py) and for the readers (key_values.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from imp_server.core.json_pointer import keys_of

WrittenAs = Literal["text", "text_or_null", "json"]
"""text_or_null: where the text is `null`, it is the value null."""

_DEPTH = 8
"""References followed at most."""
_MOST_SEEN = 2000
"""Schemas looked at for one parameter; one that needs more is written as JSON."""


class _Seen:
    """Owner of the count of schemas that may still be looked at: branches of branches would be without end."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.left = _MOST_SEEN

    def is_over(self) -> bool:
        self.left -= 1
        return self.left < 0


def written_as(schema: Any, root: Mapping[str, Any]) -> WrittenAs:
    """`root`: what references of the parameter's schema are looked up in."""
    seen = _Seen(root)
    if not _is_text(schema, seen, _DEPTH):
        return "json"
    may_be_null = _may_be_null(schema, seen, _DEPTH)
    if seen.left < 0:
        return "json"
    return "text_or_null" if may_be_null else "text"


def _is_text(schema: Any, seen: _Seen, depth: int) -> bool:
    """A string, or a string or null."""
    if not isinstance(schema, Mapping) or depth == 0 or seen.is_over():
        return False
    kind = schema.get("type")
    if kind is not None:
        return kind == "string" or (isinstance(kind, list) and "string" in kind and set(kind) <= {"string", "null"})
    if "const" in schema:
        return isinstance(schema["const"], str)
    if "enum" in schema:
        return isinstance(schema["enum"], list) and all(isinstance(v, str) for v in schema["enum"])
    for word in ("anyOf", "oneOf"):
        branches = [b for b in _listed(schema, word) if not _is_null(b)]
        if branches:
            return all(_is_text(branch, seen, depth - 1) for branch in branches)
    return any(_is_text(branch, seen, depth - 1) for branch in _beneath(schema, seen.root))


def _may_be_null(schema: Any, seen: _Seen, depth: int) -> bool:
    """Of a schema of texts."""
    if not isinstance(schema, Mapping) or depth == 0 or seen.is_over():
        return False
    kind = schema.get("type")
    if kind is not None:
        return isinstance(kind, list) and "null" in kind
    for word in ("anyOf", "oneOf"):
        if any(_is_null(b) or _may_be_null(b, seen, depth - 1) for b in _listed(schema, word)):
            return True
    below = [branch for branch in _beneath(schema, seen.root) if _is_text(branch, seen, depth - 1)]
    return bool(below) and all(_may_be_null(branch, seen, depth - 1) for branch in below)


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and (schema.get("type") == "null" or schema.get("enum") == [None])


def _listed(schema: Mapping[str, Any], word: str) -> list[Any]:
    branches = schema.get(word)
    return branches if isinstance(branches, list) else []


def _beneath(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Any]:
    """What has to hold as well: references and allOf."""
    yield from _listed(schema, "allOf")
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for key in keys_of(reference):
            found = found.get(key) if isinstance(found, Mapping) else None
        yield found
