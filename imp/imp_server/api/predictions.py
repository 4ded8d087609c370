"""Requests inside a request: each runs through the server like one of its own, with the headers of the outer one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from imp_server.api.body import ClientGone
from imp_server.api.contract import Operation
from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.visit import Application
from imp_server.core import InvalidRequest
from imp_server.dialects.handler import SubRequests

Json = dict[str, Any]
_AT_ONCE = 16
"""Of one outer request."""
_OWN = {b"content-length", b"content-type", b"content-encoding", b"transfer-encoding", b"x-request-id", b"expect"}
_SCOPE = ("asgi", "http_version", "server", "client", "root_path", "scheme")
IS_INSIDE = "imp.inside"
"""In a request's scope: it is part of one that has been let in, so it is finished in a drain as well."""
PREDICT = "llamacpp_predictions.predict"


class OpenPredictions:
    """Owner of the number of requests with others inside that are being answered."""

    def __init__(self) -> None:
        self._n = 0
        self._changed = asyncio.Event()

    @contextmanager
    def one(self) -> Iterator[None]:
        self._n += 1
        try:
            yield
        finally:
            self._n -= 1
            self._changed.set()

    async def ended(self) -> None:
        """Once there are none."""
        while self._n:
            self._changed.clear()
            await self._changed.wait()


def formats(operations: Iterable[Operation]) -> dict[str, str]:
    """Name -> path of what may be asked inside: paths themselves, and those in camel case without /v1, as
    chatCompletions is. Where two have one name, it is that below /v1. What can only be streamed isn't there."""
    paths = [
        one.path
        for one in operations
        if one.method == "POST" and one.body_pointers and not one.changes_server and "{" not in one.path
        if one.id != PREDICT and ("200", "application/json") in one.response_pointers
    ]
    names = {_camel(path): path for path in sorted(paths)}  # /v1/... comes behind what lacks it
    return names | {path: path for path in paths}


def _camel(path: str) -> str:
    first, *rest = re.split(r"[/_-]", path.removeprefix("/v1").strip("/"))
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


async def replies_to(
    app: Application, scope: Json, asked: SubRequests, known: dict[str, str], prefix: str, watch: DisconnectWatch
) -> Any:
    """What the outer request is answered with. Raises InvalidRequest for a format that isn't known, ClientGone."""
    for i, (name, _) in enumerate(asked.requests):
        if name not in known:
            message = f"there is no request format {name[:100]!r}; chatCompletions is one"
            raise InvalidRequest(message, param=f"instances[{i}].@requestFormat", code="unsupported_value")
    gone = asyncio.Event()
    watch.when_gone(gone.set)
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str, body: Json) -> Any:
        async with places:
            if gone.is_set():
                return None
            return await _reply(app, _inner(scope, prefix + known[name]), msgspec.json.encode(body), gone)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(name, body)) for name, body in asked.requests]
    finally:
        gone.set()
    if watch.is_gone:
        raise ClientGone
    return asked.merge([task.result() for task in tasks])


def _inner(scope: Json, path: str) -> Json:
    kept = [(name, value) for name, value in scope["headers"] if name.lower() not in _OWN]
    return {name: scope[name] for name in _SCOPE if name in scope} | {
        IS_INSIDE: True,
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [*kept, (b"content-type", b"application/json")],
    }


async def _reply(app: Application, scope: Json, body: bytes, gone: asyncio.Event) -> Any:
    """The body of its reply, whatever its status."""
    scope["headers"].append((b"content-length", str(len(body)).encode()))
    received = bytearray()
    sent = False

    async def receive() -> Json:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Json) -> None:
        received.extend(message.get("body", b""))

    await app(scope, receive, send)
    return msgspec.json.decode(received) if received else None
