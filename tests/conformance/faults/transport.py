"""What a server may do wrong in errors, headers and bodies, whatever the dialect."""

from __future__ import annotations

from typing import Any

from tests.conformance.bending import (
    in_json,
    in_reply,
)
from tests.conformance.tape import Exchange, replace

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def _ok_for_unknown(exchange: Exchange) -> Exchange | None:
    return replace(exchange, status=200) if exchange.status == 404 else None


def _as_server_error(exchange: Exchange) -> Exchange | None:
    return replace(exchange, status=500) if exchange.status == 400 else None


def _as_fastapi(exchange: Exchange) -> Exchange | None:
    return replace(exchange, status=422) if exchange.status == 400 else None


def _text_error(exchange: Exchange) -> Exchange | None:
    if exchange.status < 400:
        return None
    headers = exchange.headers | {"content-type": "text/plain"}
    return replace(exchange, headers=headers, content=b"Bad Request")


def _lacks_header(name: str) -> Any:
    def change(exchange: Exchange) -> Exchange:
        return replace(exchange, headers={k: v for k, v in exchange.headers.items() if k != name})

    return change


def _echo_origin(exchange: Exchange) -> Exchange:
    return replace(exchange, headers=exchange.headers | {"access-control-allow-origin": "http://evil.example"})


def _cut_body(exchange: Exchange) -> Exchange | None:
    return replace(exchange, content=exchange.content[:-2]) if exchange.status == 200 and exchange.content else None


def _open_to_all(exchange: Exchange) -> Exchange | None:
    return replace(exchange, status=200) if exchange.status == 401 else None


TRANSPORT_FAULTS = [
    in_json("errors: flat", CHAT, lambda r: {"object": "error", **r["error"]}, status=404),
    in_json("errors: no code", CHAT, lambda r: r["error"].pop("code") and None, status=404),
    in_json("errors: the OpenAI shape on Messages", MESSAGES, lambda r: {"error": r["error"]}, status=404),
    in_reply("errors: 200 for an unknown model", CHAT, _ok_for_unknown),
    in_reply("errors: 500 for bad requests", CHAT, _as_server_error),
    in_reply("errors: 422 for bad requests", RESPONSES, _as_fastapi),
    in_reply("errors: plain text", CHAT, _text_error),
    in_reply("http: 405 without Allow", CHAT, _lacks_header("allow")),
    in_reply("http: no x-request-id", CHAT, _lacks_header("x-request-id")),
    in_reply("http: no request-id on Messages", MESSAGES, _lacks_header("request-id")),
    in_reply("http: streams may be cached", CHAT, _lacks_header("cache-control")),
    in_reply("http: every origin is allowed", CHAT, _echo_origin),
    in_reply("http: bodies are cut off", CHAT, _cut_body),
    in_reply("http: no key is asked for", CHAT, _open_to_all),
]
