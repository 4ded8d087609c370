"""Errors on the wire: which dialect's shape a request gets, and the response made of it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol, cast

from imp_server.api.contract import Operation
from imp_server.core import ImpError, MethodNotAllowed, UnsupportedMediaType


class ErrorShape(Protocol):
    """A module dialects/<shape>/errors.py."""

    def error_body(self, error: ImpError, request_id: str) -> dict[str, Any]: ...


@cache
def shape_module(shape: str) -> ErrorShape:
    return cast(ErrorShape, importlib.import_module(f"imp_server.dialects.{shape}.errors"))


def shape_of(operation: Operation, headers: Mapping[str, str]) -> str:
    """The shape of this operation's errors; a header may choose another (`x-error-shape-with-header`)."""
    for header, shape in operation.shape_with_header.items():
        if header in headers:
            return shape
    return operation.error_shape


def error_status(shape: str, error: ImpError) -> int:
    """A shape may rename a status (`status(error)` in its module), as TGI does."""
    rename = getattr(shape_module(shape), "status", None)
    return int(rename(error)) if rename else error.status


def error_headers(error: ImpError) -> dict[str, str]:
    headers: dict[str, str] = {}
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allow)
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    if isinstance(error, UnsupportedMediaType) and error.accept_encoding:
        headers["accept-encoding"] = error.accept_encoding
    if error.status == 408:
        headers["connection"] = "close"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers
