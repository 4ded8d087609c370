"""HTTP/1.1 on a connection: what isn't HTTP never reaches the application, and still gets a well-formed error."""

from __future__ import annotations

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from imp_server.api.errors import shape_module
from imp_server.core import InvalidRequest
from imp_server.dialects.ids import new_id

SHAPE = "openai"
"""Of errors that belong to no path."""
MAX_HEAD_BYTES = 64 << 10
"""Of request line and header fields: the parser has no limit, and they come before any key is checked."""


class ImpHttpProtocol(HttpToolsProtocol):
    """Owns where its connection stands between the heads of two requests."""

    _in_head = True
    _n_received = 0
    """Bytes since the last request ended, while no whole head has been seen."""
    _n_head = 0
    """Bytes of the parts of the head that the parser has handed over."""
    _is_refused = False

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._in_head:
            self._n_received += len(data)
        super().data_received(data)
        if self._in_head and self._n_received > MAX_HEAD_BYTES:  # one endless field isn't handed over at all
            self._refuse_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        if not self._is_refused:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if not self._is_refused:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if not self._is_refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._n_received, self._n_head = True, 0, 0
        if not self._is_refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._is_refused:
            self._send_error("400 Bad Request", f"the request isn't HTTP/1.1 that can be read: {msg}")

    def _count(self, n_bytes: int) -> None:
        self._n_head += n_bytes
        if self._n_head > MAX_HEAD_BYTES:
            self._refuse_head()

    def _refuse_head(self) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        limit = f"{MAX_HEAD_BYTES >> 10} KiB"
        self._send_error("431 Request Header Fields Too Large", f"URL and headers may have {limit} together")

    def _send_error(self, status: str, message: str) -> None:
        request_id = new_id("req_")
        body = msgspec.json.encode(shape_module(SHAPE).error_body(InvalidRequest(message), request_id))
        head = (
            f"HTTP/1.1 {status}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-request-id: {request_id}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
