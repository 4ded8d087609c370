"""OpenAI's error body: one object with message, type, param and code, all four always present."""

from __future__ import annotations

from typing import Any

from imp_server.core import ImpError


def error_type(status: int) -> str:
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    if status == 503:
        return "service_unavailable_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def error_body(error: ImpError, request_id: str) -> dict[str, Any]:
    """`request_id` travels in a header in this dialect."""
    return {
        "error": {
            "message": error.message or error.code,
            "type": error_type(error.status),
            "param": error.param,
            "code": error.code,
        }
    }
