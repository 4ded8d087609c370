"""Responses over WebSocket: each `response.create` message of a connection is a POST /v1/responses of its own.

So validation, limits, keys, the log and cancellation are those of HTTP; this module only turns a message into a
request and the events of its stream into messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from uvicorn.protocols.utils import ClientDisconnected

from imp_server.api.admission.body_memory import Charge
from imp_server.api.body import check_json_size, decode_json
from imp_server.api.entrance import Anything, enter
from imp_server.api.errors import error_headers, shape_module
from imp_server.api.headers import request_id_of
from imp_server.api.paths import Paths
from imp_server.api.services import ServerServices
from imp_server.api.visit import address_of
from imp_server.api.websocket_frames import IN_FLIGHT
from imp_server.core import ImpError, InvalidRequest, Overloaded, UnknownUrl
from imp_server.dialects.handler import INLINE_BYTES
from imp_server.dialects.openai_responses.turns import TURN, Turn, TurnMemory

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Json = dict[str, Any]

PATH = "/v1/responses"
_ENVELOPE = "/components/schemas/ResponsesSocketMessage"
_OF_THE_CONNECTION = ("connection", "upgrade", "content-length", "content-type", "content-encoding", "accept-encoding")
_MOST_UNANSWERED = 2
"""One response is made, and one message waits for its end."""
_NORMAL, _RESTARTS = 1000, 1012


class AgedConnection(InvalidRequest):
    default_code = "websocket_connection_limit_reached"


class WebSocketFront:
    """The application with WebSocket connections in front. Owns how many there are."""

    def __init__(self, app: Application, services: ServerServices) -> None:
        self._app = app
        self._services = services
        self._paths = Paths(
            (operation.path for operation in services.contract.operations), services.config.server.api_prefix
        )
        self._n_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        await receive()  # that it wants to connect
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._admit(scope, headers)
        except ImpError as error:
            self._services.admission.log.note(
                "a WebSocket connection was refused: ", f"HTTP {error.status} {error.code}"
            )
            await _refuse(send, error, request_id_of(headers))
            return
        self._n_open += 1
        try:
            with contextlib.suppress(ClientDisconnected):
                await send({"type": "websocket.accept"})
                await Connection(self._app, self._services, scope, receive, send).run()
        finally:
            self._n_open -= 1

    def _admit(self, scope: Scope, headers: dict[str, str]) -> None:
        """By the handshake alone. Raises what keeps the connection out."""
        if self._paths.meant(scope["path"]) != PATH:
            raise UnknownUrl(f"there is no WebSocket here; it is at {self._paths.prefix}{PATH}")
        enter(self._services, scope, headers, address_of(scope, self._services.admission.proxies), Anything())
        most = self._services.config.responses.max_sockets
        if most and self._n_open >= most:
            message = f"{most} WebSocket connections are open (responses.max_sockets); close one, or send a POST"
            raise Overloaded(message, retry_after_s=5.0)


async def _refuse(send: Send, error: ImpError, request_id: str) -> None:
    """The handshake is answered like any request that is refused."""
    headers = {"content-type": "application/json", "x-request-id": request_id} | error_headers(error)
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    body = msgspec.json.encode(shape_module("openai").error_body(error, request_id))
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": raw})
    await send({"type": "websocket.http.response.body", "body": body})


class Connection:
    """Owner of one open connection: of what it waits for, of its memory, and of the one response in flight."""

    def __init__(self, app: Application, services: ServerServices, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._services = services
        self._scope = scope
        self._receive = receive
        self._send = send
        self._memory = TurnMemory()
        self._charge = services.admission.bodies.charge()
        """For the messages that wait, and the one whose turn it is until it is a request."""
        self._message = b""
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Messages whose turn comes; None once the client has gone."""
        self._n_unanswered = 0
        self._is_gone = asyncio.Event()
        self._born_s = time.monotonic()

    async def run(self) -> None:
        reader = asyncio.get_running_loop().create_task(self._read())
        try:
            while await self._next():
                self._scope[IN_FLIGHT] = True
                try:
                    await self._answer()
                finally:
                    self._scope[IN_FLIGHT] = False
                    self._n_unanswered -= 1
                if self._services.draining:
                    await self._close(_RESTARTS, "the server is shutting down")
        finally:
            reader.cancel()
            self._charge.close()

    async def _read(self) -> None:
        """Reads on while a response is made, or nobody would notice that its client has gone."""
        while (event := await self._receive())["type"] != "websocket.disconnect":
            try:
                self._take(event["bytes"])
            except ImpError as error:
                await self._tell(error)
        self._is_gone.set()
        self._waiting.put_nowait(None)

    def _take(self, message: bytes) -> None:
        """Raises Overloaded, and what memory that is full raises."""
        if self._n_unanswered >= _MOST_UNANSWERED:
            raise Overloaded("one message waits for the response in flight already; send the next when it has begun")
        self._charge.add(len(message))
        self._n_unanswered += 1
        self._waiting.put_nowait(message)

    async def _next(self) -> bool:
        """Waits for the next message; False if the client has gone or there is no more time for it."""
        if self._is_gone.is_set():
            return False
        knobs = self._services.config.responses
        young_s = self._born_s + knobs.socket_age_s - time.monotonic() if knobs.socket_age_s else math.inf
        idle_s = knobs.socket_idle_s or math.inf
        with contextlib.suppress(TimeoutError):
            if young_s > 0:
                message = await asyncio.wait_for(self._waiting.get(), min(young_s, idle_s))
                self._message = message or b""
                return message is not None and not self._is_gone.is_set()
        if young_s > idle_s:
            await self._close(_NORMAL, "idle")
        else:
            limit = f"a connection takes requests for {knobs.socket_age_s:g} seconds (responses.socket_age_s)"
            await self._tell(AgedConnection(f"{limit}; connect anew to go on"))
            await self._close(_NORMAL, "too old")
        return False

    # --- one message ----------------------------------------------------------------------------

    async def _answer(self) -> None:
        message, self._message = self._message, b""
        previous = ""
        decoded = self._services.admission.bodies.charge()
        try:
            body, turn = await self._in_its_place(message, self._read_message, message, decoded)
            previous = body.get("previous_response_id") or ""
            data = await self._in_its_place(message, msgspec.json.encode, body)
        except ImpError as error:
            await self._tell(error)
            return
        finally:
            decoded.close()
            self._charge.give_back(len(message))
        del message, body
        exchange = Exchange(data, self._is_gone, self._send_text)
        await self._app(self._request_scope(turn, len(data)), exchange.receive, exchange.send)
        if exchange.has_failed and isinstance(previous, str):
            self._memory.forget(previous)

    async def _in_its_place(self, message: bytes, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args) if len(message) <= INLINE_BYTES else await self._services.pool.run(function, *args)

    def _read_message(self, message: bytes, charge: Charge) -> tuple[Json, Turn]:
        """The body of the request that it stands for. Raises InvalidJson, InvalidRequest, and as check_json_size."""
        check_json_size(message, self._services.config.server, charge)
        value = decode_json(message, self._services.config.server.max_json_depth)
        envelope = value
        if isinstance(value, dict):
            envelope = {name: value[name] for name in _ENVELOPE_FIELDS if name in value}
        self._services.validators.check_request(_ENVELOPE, envelope)
        body = {name: item for name, item in value.items() if name not in _ENVELOPE_FIELDS} | {"stream": True}
        return body, Turn(self._memory, value.get("generate") is not False)

    def _request_scope(self, turn: Turn, n_bytes: int) -> Scope:
        own = {name.encode() for name in _OF_THE_CONNECTION}
        kept = [
            (name, value)
            for name, value in self._scope["headers"]
            if name.lower() not in own and not name.lower().startswith(b"sec-websocket-")
        ]
        headers = [*kept, (b"content-type", b"application/json"), (b"content-length", str(n_bytes).encode())]
        names = ("asgi", "http_version", "server", "client", "root_path")
        scheme = "https" if self._scope["scheme"] == "wss" else "http"
        return {name: self._scope[name] for name in names} | {
            "type": "http",
            "scheme": scheme,
            "method": "POST",
            "path": self._scope["path"],
            "raw_path": self._scope["raw_path"],
            "query_string": b"",
            "headers": headers,
            TURN: turn,
        }

    # --- what goes out --------------------------------------------------------------------------

    async def _send_text(self, text: str) -> None:
        """Nothing if the client has gone."""
        if self._is_gone.is_set():
            return
        try:
            await self._send({"type": "websocket.send", "text": text})
        except (ClientDisconnected, RuntimeError):  # closed meanwhile
            self._is_gone.set()

    async def _tell(self, error: ImpError) -> None:
        await self._send_text(
            msgspec.json.encode(error_event(shape_module("openai").error_body(error, ""), error.status)).decode()
        )

    async def _close(self, code: int, reason: str) -> None:
        self._is_gone.set()
        with contextlib.suppress(ClientDisconnected, RuntimeError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


_ENVELOPE_FIELDS = ("type", "generate", "stream", "stream_options", "background")
_NOT_FOUND = "previous_response_not_found"


def error_event(body: Json, status: int) -> Json:
    """An error of HTTP as a message: flat as OpenAI's event, nested as Open Responses'."""
    error = body["error"]
    flat = {name: error[name] for name in ("code", "message", "param")}
    shown = 400 if error["code"] == _NOT_FOUND else status  # as published
    return {"type": "error", "status": shown, "sequence_number": 0, **flat, "error": error}


class Exchange:
    """One HTTP request made of a message: gives the application its body, and makes messages of its answer."""

    def __init__(self, body: bytes, is_gone: asyncio.Event, send_text: Callable[[str], Awaitable[None]]) -> None:
        self._body: bytes | None = body
        self._is_gone = is_gone
        self._send_text = send_text
        self._status = 0
        self._ignored = ""
        self._received = bytearray()
        self.has_failed = False
        """With an error, before or after it began; a client's leaving is none."""

    async def receive(self) -> Json:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Json) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._ignored = dict(message["headers"]).get(b"x-imp-ignored-fields", b"").decode("latin-1")
            return
        self._received += message.get("body", b"")
        if self._status == 200:
            await self._send_events()
        elif not message.get("more_body", False):
            await self._send_error()

    async def _send_error(self) -> None:
        if self._is_gone.is_set():
            return
        self.has_failed = True
        event = error_event(msgspec.json.decode(self._received), self._status)
        await self._send_text(msgspec.json.encode(event).decode())

    async def _send_events(self) -> None:
        """Server-sent events as they become whole; comments and the sentinel at the end are of HTTP alone."""
        while (end := self._received.find(b"\n\n")) >= 0:
            lines = bytes(self._received[:end]).split(b"\n")
            del self._received[: end + 2]
            fields = dict(line.split(b": ", 1) for line in lines if b": " in line and not line.startswith(b":"))
            data, name = fields.get(b"data"), fields.get(b"event", b"")
            if data is None or data == b"[DONE]":
                continue
            self.has_failed |= name in (b"response.failed", b"error")
            if name == b"response.created" and self._ignored:
                data = msgspec.json.encode(msgspec.json.decode(data) | {"imp_ignored_fields": self._ignored})
            await self._send_text(data.decode())
