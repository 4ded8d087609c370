"""The functions and names that case expressions may use."""

from __future__ import annotations

import base64
import json
import re
import struct
from itertools import pairwise
from typing import Any

from imp_server.conformance import folds
from imp_server.conformance.boxes import MISSING, box, unbox
from imp_server.conformance.exchange import Reply
from imp_server.conformance.schemas import conforms


def reply_names(reply: Reply) -> dict[str, Any]:
    """What a reply contributes to the names of later expressions."""
    payloads = [f.json for f in reply.frames if f.json is not MISSING]
    return {
        "status": reply.status,
        "headers": reply.headers,
        "json": reply.json,
        "body": reply.content.decode("utf-8", "replace"),
        "content": reply.content,
        "frames": reply.frames,
        "events": payloads,
        "event_names": [f.event for f in reply.frames],
        "comments": reply.comments,
        "took_s": reply.took_s,
        "broken": reply.broken,
    }


def has(value: Any, *names: str) -> bool:
    """Every name is a key of the object (its value may be null)."""
    return value is not MISSING and all(name in value for name in names)


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def parses(text: Any) -> bool:
    """The text is one JSON value."""
    try:
        json.loads(text)
    except (TypeError, ValueError):
        return False
    return True


def parsed(text: Any) -> Any:
    """The JSON value of a text, for attribute access."""
    return box(json.loads(text))


def matches(pattern: str, text: Any) -> bool:
    """The pattern is found in the text."""
    return isinstance(text, str) and re.search(pattern, text) is not None


def floats(encoded: Any) -> list[float]:
    """Little-endian float32 numbers of a base64 text."""
    data = base64.b64decode(encoded, validate=True)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def close(a: Any, b: Any, tolerance: float = 1e-4) -> bool:
    """Numbers, or lists of numbers, that differ by at most `tolerance`."""
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    return abs(float(a) - float(b)) <= tolerance


def rising(values: Any, step: float | None = None) -> bool:
    """Strictly increasing; by exactly `step` if given."""
    values = list(values)
    pairs = list(pairwise(values))
    return all(b - a == step for a, b in pairs) if step is not None else all(b > a for a, b in pairs)


def repeat(text: str, times: int) -> str:
    return text * min(times, 4_000_000)


def plain(value: Any) -> Any:
    """The JSON value without attribute access, to be sent again."""
    return unbox(value)


FUNCTIONS: dict[str, Any] = {
    "len": len, "all": all, "any": any, "sum": sum, "min": min, "max": max, "sorted": sorted, "set": set, "str": str,
    "int": int, "float": float, "abs": abs, "range": range, "list": list, "dict": dict, "enumerate": enumerate,
    "zip": zip, "round": round, "bool": bool, "bytes": bytes, "reversed": reversed,
    "has": has, "is_int": is_int, "is_text": is_text, "parses": parses, "parsed": parsed, "matches": matches,
    "floats": floats, "close": close, "rising": rising, "repeat": repeat, "plain": plain, "conforms": conforms,
    "MISSING": MISSING, "true": True, "false": False, "null": None,
    "payloads": folds.payloads, "fold_chat": folds.fold_chat, "fold_completions": folds.fold_completions,
    "fold_responses": folds.fold_responses, "fold_messages": folds.fold_messages,
}  # fmt: skip
