"""A JSON object that was cut off: what of it is certain. Used for tool calls that max_tokens ended."""

from __future__ import annotations

import json
from typing import Any


def read_object(text: str) -> dict[str, Any]:
    """The object, or for a cut text its complete members; a string that was cut is dropped, not guessed.

    Streaming clients read the same prefix with jiter's partial mode: equal to it, cut numbers included.
    """
    value = _parse(text)
    if value is None:
        value = _parse(_closed(text, whole=True))
    if value is None:
        value = _parse(_closed(text, whole=False))
    return value if isinstance(value, dict) else {}


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _closed(text: str, *, whole: bool) -> str:
    """`text`, or the part of it before its last, cut value, with every open bracket closed."""
    closers: list[str] = []
    safe, safe_closers = 0, ""
    in_string = escaped = False
    for i, char in enumerate(text):
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
            continue
        if char == '"':
            in_string = True
        elif char in "{[":
            closers.append("}" if char == "{" else "]")
            safe, safe_closers = i + 1, "".join(reversed(closers))
        elif char in "}]":
            closers.pop()
            safe, safe_closers = i + 1, "".join(reversed(closers))
        elif char == ",":
            safe, safe_closers = i, "".join(reversed(closers))
    if whole:
        return text + "".join(reversed(closers))
    return text[:safe] + safe_closers
