"""Anthropic's error body: the type from a closed list, our code and the field in `details`, the request id inside."""

from __future__ import annotations

from typing import Any

from imp_server.core import ImpError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ImpError, request_id: str) -> dict[str, Any]:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = {"error_code": error.code} | ({"param": error.param} if error.param else {})
    return {
        "type": "error",
        "error": {"type": kind, "message": error.message, "details": details},
        "request_id": request_id,
    }
