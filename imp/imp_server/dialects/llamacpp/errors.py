"""llama-server's error body: its code is the HTTP status. Only a server with its habits sends it (server.habits)."""

from __future__ import annotations

from typing import Any

from imp_server.core import ContextLengthExceeded, FeatureDisabled, ImpError
from imp_server.dialects.openai.errors import error_body as openai_error_body

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


def error_body(error: ImpError, request_id: str) -> dict[str, Any]:
    """`request_id` travels in a header in this dialect."""
    body: dict[str, Any] = {"code": error.status, "message": _message(error), "type": _type(error)}
    if isinstance(error, FeatureDisabled):
        del body["code"]  # as there
    if isinstance(error, ContextLengthExceeded):
        body |= {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    return {"error": body}


def error_body_of(habits: str, error: ImpError, request_id: str) -> dict[str, Any]:
    """OpenAI's shape, or llama-server's where its habits are wanted: for errors within a stream."""
    return error_body(error, request_id) if habits == "llama-server" else openai_error_body(error, request_id)


def _message(error: ImpError) -> str:
    """Of a prompt that is too long it begins with the words that its clients look for."""
    message = error.message or error.code
    if isinstance(error, ContextLengthExceeded):
        too_large = " (the input is too large)" if error.param == "input" else ""
        return f"the request exceeds the available context size{too_large}: {message}"
    return message


def _type(error: ImpError) -> str:
    if isinstance(error, FeatureDisabled):
        return error.code
    if isinstance(error, ContextLengthExceeded):
        return "exceed_context_size_error"
    return _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
