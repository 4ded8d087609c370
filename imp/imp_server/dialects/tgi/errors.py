"""TGI's error body, and its one habit: what is wrong with a request is 422."""

from __future__ import annotations

from typing import Any

from imp_server.core import GrammarRefused, ImpError

_TYPES = {401: "authentication", 403: "authentication", 404: "not_found", 429: "overloaded", 503: "healthcheck"}


def status(error: ImpError) -> int:
    return 422 if error.status == 400 else error.status


def error_body(error: ImpError, request_id: str) -> dict[str, Any]:
    kind = "generation" if error.status >= 500 else "validation"
    where = f"{error.param}: " if isinstance(error, GrammarRefused) and error.param else ""
    return {"error": where + (error.message or error.code), "error_type": _TYPES.get(error.status, kind)}
