"""Requests of tests, written flat: each field goes to the part of the request that has it."""

from __future__ import annotations

from typing import Any, TypeVar

from imp_server.core import (
    SETTABLE,
    ChatRequest,
    GenerateRequest,
    GenerationOptions,
    OutputIntent,
    PromptRequest,
    SamplingIntent,
)
from msgspec.structs import replace

R = TypeVar("R", ChatRequest, PromptRequest, GenerateRequest)
_PARTS = {"output": OutputIntent, "options": GenerationOptions}


def made(kind: type[R], *positional: Any, **fields: Any) -> R:
    """`made(ChatRequest, messages, n=2, stop=("x",), tools=tools)`."""
    parts = {part: _taken(struct, fields) for part, struct in _PARTS.items() if part in kind.__struct_fields__}
    make: Any = kind
    found: R = make(*positional, **{part: _PARTS[part](**its) for part, its in parts.items() if its}, **fields)
    return found


def changed(request: R, **fields: Any) -> R:
    """`changed(chat, n=2, stop=("x",))`."""
    for part, struct in _PARTS.items():
        if part in request.__struct_fields__ and (its := _taken(struct, fields)):
            fields[part] = replace(getattr(request, part), **its)
    return replace(request, **fields)


def _taken(struct: type, fields: dict[str, Any]) -> dict[str, Any]:
    return {name: fields.pop(name) for name in struct.__struct_fields__ if name in fields}  # type: ignore[attr-defined]


def sampling(**fields: Any) -> SamplingIntent:
    """`sampling(temperature=0.5, ignore_eos=True)`."""
    asked = {name: fields.pop(name) for name in SETTABLE if name in fields}
    return SamplingIntent(asked, **fields)
