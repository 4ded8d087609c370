"""JSON values as hashable data in which equal values are equal: 1, 1.0 and 1e0 are one number, key order is nothing.

A canonical value is (kind, payload): ("null", None), ("bool", True), ("number", Decimal), ("string", str),
("array", tuple of canonical values), ("object", tuple of (key, canonical value), sorted by key).
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from imp_server.core.turns import spend

Value = tuple[str, Any]
_PIECE = 64
"""Characters that are read for a unit."""


def number_of(value: int | float | Decimal | str) -> Decimal:
    """The exact decimal a JSON number spells; floats by their shortest spelling."""
    if isinstance(value, float):
        value = repr(value)
    number = Decimal(value)
    if isinstance(value, int) and value % 10:
        return number
    if not number.is_finite():
        raise ValueError("JSON has no such number")
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    significant = "".join(map(str, digits)).lstrip("0").rstrip("0")
    if not significant:
        return Decimal(0)
    trailing = len("".join(map(str, digits)).lstrip("0")) - len(significant)
    return Decimal((sign, tuple(map(int, significant)), exponent + trailing))


def canonical(value: Any) -> Value:
    """The canonical form of a parsed JSON value."""
    if value is None:
        return ("null", None)
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int | float | Decimal):
        return ("number", number_of(value))
    if isinstance(value, str):
        return ("string", value)
    if isinstance(value, list | tuple):
        return ("array", tuple(canonical(v) for v in value))
    return ("object", tuple(sorted((k, canonical(v)) for k, v in value.items())))


def parse_exact(text: str | bytes) -> Value:
    """The canonical value of a JSON text."""
    spend(len(text) // _PIECE)
    return canonical(json.loads(text, parse_float=Decimal))


def spelled(value: Value) -> str:
    """The shortest JSON text of a canonical value."""
    kind, data = value
    if kind == "array":
        return "[" + ",".join(spelled(v) for v in data) + "]"
    if kind == "object":
        return "{" + ",".join(f"{spelled(('string', k))}:{spelled(v)}" for k, v in data) + "}"
    if kind == "number":
        plain = f"{data:f}"
        return plain if len(plain) < 40 else str(data)
    return json.dumps(data, ensure_ascii=False)
