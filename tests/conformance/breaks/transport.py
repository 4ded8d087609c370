"""Errors and HTTP, broken around every dialect."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

from blacksheep import Response
from imp_server.api import app, driver, endpoint, sse
from imp_server.api.auth import KeyRing
from imp_server.api.headers import Cors
from imp_server.api.parameters import ParameterReader
from imp_server.api.resumable import sessions
from imp_server.api.resumable.session import SessionReader
from imp_server.api.resumable.sessions import OwnStreams
from imp_server.core import InvalidRequest, ModelNotFound
from imp_server.core.owner import Caller
from imp_server.dialects.openai import errors as openai_errors

from tests.conformance.breaking import Json, after, before, instead

STREAM, ERRORS = "openai-chat/streaming", "openai-chat/errors"
BODY = (openai_errors, "error_body")


def _nothing(*_args: Any) -> None:
    return None


def _lacking(key: str) -> Any:
    def change(body: Json) -> None:
        del body["error"][key]

    return change


def _shapeless(shape: str, error: Exception, request_id: str) -> Response:
    return Response(404)


def _rows(change: Any) -> Any:
    return lambda rows: [row._replace(**change(row)) for row in rows]


def _lenient(_reader: Any, raw: bytes) -> dict[str, Any]:
    """Numbers as far as they go, as C reads them."""
    sent = dict(parse_qsl(raw.decode()))
    return sent | {"from": abs(int(re.match(r"-?\d*", sent.get("from", "0"))[0] or 0))}  # type: ignore[index]


_STREAM_BREAKS = [
    before("streams: one byte too late", "llamacpp/streams", OwnStreams, "reader", lambda s, n, at: (s, n, at + 1)),
    instead(
        "streams: none survives its client", "llamacpp/streams", SessionReader, "leave", lambda r: r._session.cut()
    ),
    after(
        "streams: rows count kept bytes", "llamacpp/streams", OwnStreams, "rows", _rows(lambda r: {"total_bytes": 0})
    ),
    after("streams: rows never end", "llamacpp/streams", OwnStreams, "rows", _rows(lambda r: {"is_done": False})),
    instead("streams: variants aren't found", "llamacpp/streams", sessions, "_prefixes", lambda name: [name]),
    instead("streams: nothing is deleted", "llamacpp/streams", OwnStreams, "stop", _nothing),
    instead("streams: lenient offsets", "llamacpp/streams", ParameterReader, "query", _lenient),
]

TRANSPORT_BREAKS = [
    after("errors: flat", ERRORS, *BODY, lambda b: {"object": "error", **b["error"]}),
    after("errors: no code", ERRORS, *BODY, _lacking("code")),
    after("errors: no param", ERRORS, *BODY, _lacking("param")),
    after("errors: no type", ERRORS, *BODY, _lacking("type")),
    instead("errors: 422 for what is invalid", ERRORS, InvalidRequest, "status", 422),
    instead("errors: 500 for what is invalid", ERRORS, InvalidRequest, "status", 500),
    instead("errors: 200 for an unknown model", ERRORS, ModelNotFound, "status", 200),
    instead(
        "errors: OpenAI's shape everywhere", "anthropic-messages/errors", endpoint, "shape_of", lambda *_: "openai"
    ),
    after("http: no Allow", ERRORS, endpoint, "error_headers", lambda headers: {}),
    instead("http: no request id", "http,openai-chat/errors", endpoint, "add_ids", _nothing),
    instead("http: streams may be cached and buffered", STREAM, sse, "HEADERS", {}),
    after("http: every origin is allowed", "http", Cors, "headers", lambda h: {"access-control-allow-origin": "*"}),
    instead("http: no key is asked for", "http,anthropic-messages/errors", KeyRing, "check", lambda *_: Caller()),
    *_STREAM_BREAKS,
    instead("http: unknown paths have no body", "http", app, "error_response", _shapeless),
    instead(
        "http: events run into one another", STREAM, driver, "encode_frame", lambda frame: b"data: %b\n" % frame.data
    ),
]
