"""HTTP/1.1 on a connection: what isn't HTTP never reaches the application, and still gets a well-formed error."""

from __future__ import annotations

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from imp_server.api.errors import shape_module
from imp_server.core import InvalidRequest
from imp_server.dialects.ids import new_id

SHAPE = "openai"
"""Of errors that belong to no path."""


class ImpHttpProtocol(HttpToolsProtocol):
    def send_400_response(self, msg: str) -> None:
        request_id = new_id("req_")
        error = InvalidRequest(f"the request isn't HTTP/1.1 that can be read: {msg}")
        body = msgspec.json.encode(shape_module(SHAPE).error_body(error, request_id))
        head = (
            "HTTP/1.1 400 Bad Request\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-request-id: {request_id}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
