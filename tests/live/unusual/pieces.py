"""What the tables are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.live.toy_server import call_text

Json = dict[str, Any]
USER: Json = {"role": "user", "content": "hi"}
CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NUMBERED: Json = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
CALL = call_text("weather", city="Berlin")
THOUGHT = "<think>hm</think>yes"


class Ask(NamedTuple):
    """One request beside the least that its dialect needs."""

    name: str
    body: Json
    status: int = 200
    text: str = "ok"
    """What the model writes."""
    shows: str = ""
    """What the prompt must hold."""
    ignored: str = ""
    """The header x-imp-ignored-fields."""


def texts(*parts: str, kind: str = "text") -> list[Json]:
    return [{"type": kind, "text": part} for part in parts]
