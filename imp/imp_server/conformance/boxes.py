"""JSON values as expressions see them: keys are attributes; one that is missing is false, whatever is asked of it."""

from __future__ import annotations

import json
from typing import Any


class Box:
    """A JSON value with attribute access for expressions: `json.choices[0].delta`. A missing key is MISSING."""

    __slots__ = ("value",)

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        return box(self.value[name]) if name in self.value else MISSING

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self.value

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Box) else other)

    def __hash__(self) -> int:
        return hash(json.dumps(self.value, sort_keys=True))

    def __iter__(self) -> Any:
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return json.dumps(self.value, ensure_ascii=False)


class _Missing:
    """What a missing key evaluates to: falsy, equal to nothing, with every attribute missing as well."""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return self

    def __getitem__(self, name: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "(missing)"


MISSING = _Missing()


def box(value: Any) -> Any:
    """JSON value -> value for expressions."""
    if isinstance(value, dict):
        return Box(value)
    if isinstance(value, list):
        return [box(v) for v in value]
    return value


def unbox(value: Any) -> Any:
    """The inverse of `box`."""
    if isinstance(value, Box):
        return value.value
    if isinstance(value, list | tuple):
        return [unbox(v) for v in value]
    return None if value is MISSING else value
