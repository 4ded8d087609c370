"""How a fault bends a kept reply: in its JSON, in its events, or in its status, headers and bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.conformance.tape import Exchange, replace


@dataclass(frozen=True)
class Fault:
    name: str
    bend: Callable[[Exchange], Exchange]


@dataclass
class Event:
    """One server-sent event; `data` is JSON, or text like [DONE]."""

    name: str | None
    data: Any


Events = list[Event]


def in_json(name: str, path: str, change: Callable[[Any], Any], status: int = 200) -> Fault:
    """`change` edits the JSON of whole replies in place, or returns another value."""

    def bend(exchange: Exchange) -> Exchange:
        if not _is_at(exchange, path) or exchange.status != status or exchange.is_stream or not exchange.content:
            return exchange
        try:
            value = json.loads(exchange.content)
            changed = change(value)
        except (ValueError, LookupError, TypeError, AttributeError):
            return exchange  # a reply of another shape at this path
        value = value if changed is None else changed
        return (
            exchange if value == json.loads(exchange.content) else replace(exchange, content=json.dumps(value).encode())
        )

    return Fault(name, bend)


def in_events(name: str, path: str, change: Callable[[Events], Events | None]) -> Fault:
    """`change` edits the events of streams in place, or returns others."""

    def bend(exchange: Exchange) -> Exchange:
        if not _is_at(exchange, path) or not exchange.is_stream:
            return exchange
        events = _parse(exchange.content)
        try:
            changed = change(events)
        except (LookupError, TypeError, ValueError, AttributeError, StopIteration):
            return exchange  # a stream of another shape
        content = _written(events if changed is None else changed)
        return exchange if content == _written(_parse(exchange.content)) else replace(exchange, content=content)

    return Fault(name, bend)


def in_reply(name: str, path: str, change: Callable[[Exchange], Exchange | None]) -> Fault:
    """`change` gives another reply; None leaves it as it is."""
    return Fault(name, lambda exchange: (change(exchange) or exchange) if _is_at(exchange, path) else exchange)


def _is_at(exchange: Exchange, path: str) -> bool:
    return exchange.path.partition("?")[0] == path or (path.endswith("*") and exchange.path.startswith(path[:-1]))


def _parse(content: bytes) -> Events:
    events = []
    for block in content.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if "data" in fields:
            data = fields["data"]
            events.append(Event(fields.get("event"), json.loads(data) if data.startswith("{") else data))
    return events


def _written(events: Events) -> bytes:
    blocks = []
    for event in events:
        data = event.data if isinstance(event.data, str) else json.dumps(event.data)
        blocks.append((f"event: {event.name}\n" if event.name else "") + f"data: {data}\n\n")
    return "".join(blocks).encode()


def each(events: Events, edit: Callable[[Any], object]) -> None:
    """`edit` on the JSON of every event that has some."""
    for event in events:
        if isinstance(event.data, dict):
            edit(event.data)


def choices(events: Events) -> Iterable[Any]:
    return (choice for event in events if isinstance(event.data, dict) for choice in event.data.get("choices", ()))


def first(events: Events, kind: str) -> int:
    return next(i for i, e in enumerate(events) if isinstance(e.data, dict) and e.data.get("type") == kind)


def swap(items: list[Any], a: int, b: int) -> None:
    items[a], items[b] = items[b], items[a]


def renumber(events: Events) -> None:
    for number, event in enumerate(events):
        event.data["sequence_number"] = number


def without(events: Events, kind: str) -> Events:
    """Gone, and the rest numbered as if it had never been: only the absence can be noticed."""
    left = [e for e in events if e.data == "[DONE]" or e.data.get("type") != kind]
    if left and isinstance(left[0].data, dict) and "sequence_number" in left[0].data:
        renumber(left)
    return left


def drop_last_text(events: Events) -> Events:
    at = max(i for i, e in enumerate(events) if isinstance(e.data, dict) and any(_said(c) for c in e.data["choices"]))
    return events[:at] + events[at + 1 :]


def _said(choice: Any) -> bool:
    return bool(choice.get("text") or choice.get("delta", {}).get("content"))


def set_choices(**values: Any) -> Any:
    def change(reply: Any) -> None:
        for choice in reply["choices"]:
            choice.update(values)

    return change
