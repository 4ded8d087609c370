"""llama-server's error body: its code is the HTTP status. Only a server with its habits sends it (server.habits)."""

from __future__ import annotations

from typing import Any

from imp_server.core import ContextLengthExceeded, ImpError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


def error_body(error: ImpError, request_id: str) -> dict[str, Any]:
    """`request_id` travels in a header in this dialect."""
    body: dict[str, Any] = {"code": error.status, "message": error.message or error.code, "type": _type(error)}
    if isinstance(error, ContextLengthExceeded):
        body |= {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    return {"error": body}


def _type(error: ImpError) -> str:
    if isinstance(error, ContextLengthExceeded):
        return "exceed_context_size_error"
    return _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
