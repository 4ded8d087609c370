"""Errors and HTTP, broken around every dialect."""

from __future__ import annotations

from typing import Any

from blacksheep import Response
from imp_server.api import app, driver, endpoint, sse
from imp_server.api.auth import KeyRing
from imp_server.api.headers import Cors
from imp_server.core import InvalidRequest, ModelNotFound
from imp_server.dialects.openai import errors as openai_errors

from tests.conformance.breaking import Json, after, instead

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
    instead("http: no key is asked for", "http,anthropic-messages/errors", KeyRing, "check", _nothing),
    instead("http: unknown paths have no body", "http", app, "error_response", _shapeless),
    instead(
        "http: events run into one another", STREAM, driver, "encode_frame", lambda frame: b"data: %b\n" % frame.data
    ),
]
