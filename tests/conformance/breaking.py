"""How a running imp is broken: one function of one module does one thing wrong while a fault is in force."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from imp_server.dialects.base import SseFrame

Json = dict[str, Any]


@dataclass(frozen=True)
class Break:
    """`only`: the cases that are run, as `imp conformance --only` takes them; some of them must fail."""

    name: str
    only: str
    put_in: Callable[[pytest.MonkeyPatch], None]


def instead(name: str, only: str, place: Any, attribute: str, new: Any) -> Break:
    return Break(name, only, lambda patch: patch.setattr(place, attribute, new))


def after(name: str, only: str, place: Any, attribute: str, change: Callable[[Any], Any]) -> Break:
    """`change` edits what the function returns in place, or gives another value."""

    def put_in(patch: pytest.MonkeyPatch) -> None:
        original = getattr(place, attribute)

        def broken(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            changed = change(result)
            return result if changed is None else changed

        patch.setattr(place, attribute, broken)

    return Break(name, only, put_in)


def later(name: str, only: str, place: Any, attribute: str, change: Callable[[Any], Any]) -> Break:
    """As `after`, for a coroutine."""

    def put_in(patch: pytest.MonkeyPatch) -> None:
        original = getattr(place, attribute)

        async def broken(*args: Any, **kwargs: Any) -> Any:
            result = await original(*args, **kwargs)
            changed = change(result)
            return result if changed is None else changed

        patch.setattr(place, attribute, broken)

    return Break(name, only, put_in)


def before(name: str, only: str, place: Any, attribute: str, change: Callable[..., Iterable[Any]]) -> Break:
    """`change` gets the positional arguments and gives those that the function is called with."""

    def put_in(patch: pytest.MonkeyPatch) -> None:
        original = getattr(place, attribute)
        patch.setattr(place, attribute, lambda *args, **named: original(*change(*args), **named))

    return Break(name, only, put_in)


def events(name: str, only: str, place: Any, attribute: str, edit: Callable[[list[Json]], list[Json] | None]) -> Break:
    """As `before` for a method whose last argument are events: `edit` changes copies of them."""

    def put_in(patch: pytest.MonkeyPatch) -> None:
        original = getattr(place, attribute)

        def broken(*args: Any) -> Any:
            *first, last = args
            given = copy.deepcopy(list(last))
            edited = edit(given)
            return original(*first, given if edited is None else edited)

        patch.setattr(place, attribute, broken)

    return Break(name, only, put_in)


def frames(name: str, only: str, place: Any, attribute: str, edit: Callable[[Json], SseFrame | None]) -> Break:
    """`edit` changes the JSON of a frame that the function makes, or gives another frame."""

    def change(frame: SseFrame) -> SseFrame:
        data = json.loads(frame.data)
        other = edit(data)
        return other or SseFrame(json.dumps(data).encode(), frame.event)

    return after(name, only, place, attribute, change)


def without(key: str) -> Callable[[Json], None]:
    """Takes the key out of a body."""

    def change(body: Json) -> None:
        del body[key]

    return change


def in_events(kind: str, edit: Callable[[Json], object]) -> Callable[[list[Json]], None]:
    """Edits the events of one type."""

    def change(told: list[Json]) -> None:
        for event in told:
            if event["type"] == kind:
                edit(event)

    return change


def drop(*kinds: str) -> Callable[[list[Json]], list[Json]]:
    return lambda told: [event for event in told if event["type"] not in kinds]


def swap(first: str, second: str) -> Callable[[list[Json]], list[Json]]:
    """`second` comes before `first` where one hand-off has both."""
    order = {first: 1, second: 0}
    return lambda told: sorted(told, key=lambda event: order.get(event["type"], 0))
