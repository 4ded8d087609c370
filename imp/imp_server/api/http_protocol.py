"""HTTP/1.1 on a connection: what isn't HTTP never reaches the application, and still gets a well-formed error."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from imp_server.api.admission.addresses import UNIX
from imp_server.api.admission.body_memory import BodyMemory
from imp_server.api.admission.connections import Connections, Stage
from imp_server.api.errors import shape_module
from imp_server.api.websocket_frames import ImpWebSocketProtocol
from imp_server.core import InvalidRequest
from imp_server.dialects.ids import new_id

SHAPE = "openai"
"""Of errors that belong to no path."""
MAX_HEAD_BYTES = 64 << 10
"""Of request line and header fields: the parser has no limit, and they come before any key is checked."""
WEBSOCKET_PATH = b"/responses"
"""How a path ends at which an offer to speak WebSocket is taken, if the server was given a protocol for it."""


def error_bytes(status: str, message: str) -> bytes:
    """A whole answer that ends its connection, for what never became a request."""
    request_id = new_id("req_")
    body = msgspec.json.encode(shape_module(SHAPE).error_body(InvalidRequest(message), request_id))
    head = (
        f"HTTP/1.1 {status}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        f"x-request-id: {request_id}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


class CloseDelimitedCycle(RequestResponseCycle):
    """HTTP/1.0 knows no chunks: an answer without a length ends with its connection."""

    _has_no_length = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [(n, v) for n, v in message.get("headers", ()) if n.lower() != b"transfer-encoding"]
            self._has_no_length = all(name.lower() != b"content-length" for name, _ in headers)
            if self._has_no_length:
                self.chunked_encoding = False  # uvicorn would choose it
            message = {**message, "headers": headers}
        elif self._has_no_length:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class ImpHttpProtocol(HttpToolsProtocol):
    """Owns where its connection stands between the heads of two requests."""

    def __init__(self, *args: Any, connections: Connections, bodies: BodyMemory, **kwargs: Any) -> None:
        """`bodies`: pays for messages, should the connection speak WebSocket."""
        super().__init__(*args, **kwargs)
        self._connections, self._bodies = connections, bodies
        self.peer = UNIX
        self.n_answered = 0
        """Bytes of answers handed to the transport; headers and the framing of chunks aren't counted."""
        self._in_head = True
        self._n_received = 0
        """Bytes since the last request ended, while no whole head has been seen."""
        self._n_head = 0
        """Bytes of the parts of the head that the parser has handed over."""
        self._since_s = time.monotonic()
        """When the connection was made, the last answer ended, or the head now being received began."""
        self._is_new = True
        self._is_refused = False
        self._has_offer = False
        """The head offered another protocol: the parser takes it for the whole request."""
        self._is_repeating = False
        """The parser reads the head again, without the offer."""

    # --- the table of connections ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client:
            self.peer = self.client[0]
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def stage(self) -> tuple[Stage, float]:
        if self.pipeline or (self.cycle is not None and not self.cycle.response_complete):
            return ("body" if self.cycle.more_body and not self.pipeline else "answer"), self._since_s
        if not self._in_head:
            return "leftover", self._since_s
        return ("head" if self._is_new or self._n_received else "idle"), self._since_s

    def n_unsent(self) -> tuple[int, int]:
        n_unsent = self.transport.get_write_buffer_size()
        return n_unsent, self.n_answered - n_unsent

    def end_late_head(self) -> None:
        if self._n_received and self._in_head and not self._is_refused:
            self._is_refused = True
            self.transport.write(error_bytes("408 Request Timeout", "the head of the request took too long to come"))
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def on_response_complete(self) -> None:
        self._since_s = time.monotonic()
        super().on_response_complete()

    # --- what comes in --------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._in_head:
            if not self._n_received and not self._is_new:
                self._since_s = time.monotonic()
            self._n_received += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._in_head and self._n_received > MAX_HEAD_BYTES:  # one endless field isn't handed over at all
            self._refuse_head()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                return
            self._ignore_offer()
            if rest := data[offer.args[0] :]:
                self._feed(rest)
        except httptools.HttpParserError as error:
            self.send_400_response(str(error))

    def _ignore_offer(self) -> None:
        """RFC 9110 7.8: who doesn't take the offer answers the request as if it weren't there.

        The parser leaves the body to the protocol offered, so another one goes on from a head without the offer.
        """
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        kept = [(n, v) for n, v in self.headers if n in (b"content-length", b"transfer-encoding")]
        self._has_offer, self._is_repeating = False, True
        head = b"".join(b"%b: %b\r\n" % field for field in kept)
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + head + b"\r\n")

    def handle_websocket_upgrade(self) -> None:
        self._connections.remove(self)
        super().handle_websocket_upgrade()
        socket = self.transport.get_protocol()
        if isinstance(socket, ImpWebSocketProtocol) and not self.transport.is_closing():
            socket.join(self._connections, self._bodies, self.peer)

    def _should_upgrade(self) -> bool:
        if not super()._should_upgrade():
            return False
        return self.scope["method"] == "GET" and self.url.partition(b"?")[0].rstrip(b"/").endswith(WEBSOCKET_PATH)

    def on_message_begin(self) -> None:
        if not self._is_repeating:
            super().on_message_begin()
            self.scope["imp.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        if self._is_repeating:
            return
        if not self._n_received:  # behind another request, in one piece with it
            self._n_received, self._since_s = len(url), time.monotonic()
        self._count(len(url))
        if not self._is_refused:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_repeating:
            return
        self._count(len(name) + len(value) + 4)
        if not self._is_refused:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_repeating:
            self._is_repeating = False
            return
        self._in_head = self._is_new = False
        self._has_offer = self.parser.should_upgrade()
        if self._is_refused:
            return
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0" and not (self._has_offer and self._should_upgrade()):
            self.cycle.__class__ = CloseDelimitedCycle  # uvicorn makes its own; nothing of it has run yet

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._has_offer:
            return
        self._in_head, self._n_received, self._n_head = True, 0, 0
        if not self._is_refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._is_refused:
            self._is_refused = True
            self._end_with("400 Bad Request", f"the request isn't HTTP/1.1 that can be read: {msg}")

    def _count(self, n_bytes: int) -> None:
        self._n_head += n_bytes
        if self._n_head > MAX_HEAD_BYTES:
            self._refuse_head()

    def _refuse_head(self) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        limit = f"{MAX_HEAD_BYTES >> 10} KiB"
        self._end_with("431 Request Header Fields Too Large", f"URL and headers may have {limit} together")

    def _end_with(self, status: str, message: str) -> None:
        self.transport.write(error_bytes(status, message))
        self.transport.close()
