"""The contract as the server applies it, for tests of pure functions."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from imp_server.api.contract import Contract, Operation, load
from imp_server.api.validation import Validators
from imp_server.dialects.base import SseFrame
from imp_server.resources import data_folder


@cache
def contract() -> Contract:
    return load(data_folder("spec"))


@cache
def validators() -> Validators:
    return Validators(contract())


@cache
def operation(name: str) -> Operation:
    return next(operation for operation in contract().operations if operation.id == name)


def checked(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """`body` as the handler of operation `name` gets it. Raises InvalidRequest."""
    (pointer,) = operation(name).body_pointers.values()
    stripped: dict[str, Any] = validators().check_request(pointer, body)
    return stripped


def check_reply(name: str, body: dict[str, Any]) -> None:
    validators().check_reply(operation(name), 200, "application/json", body)


def check_frames(name: str, frames: list[SseFrame]) -> None:
    for frame in frames:
        data: Any = frame.data.decode() if frame.data == b"[DONE]" else json.loads(frame.data)
        event = {"data": data} if frame.event is None else {"data": data, "event": frame.event}
        validators().check_event(operation(name), event)
