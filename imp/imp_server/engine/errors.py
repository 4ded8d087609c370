"""Errors across the process border: (status, code, message) and back to the same class."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TypeVar

from imp_server.core import (
    Conflict,
    ContextLengthExceeded,
    GrammarTooCostly,
    ImpError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    Unavailable,
    UserFault,
    readable,
)
from imp_server.engine.messages import LoadFailed, Rejected, RequestFailed

_BY_STATUS: dict[int, type[ImpError]] = {
    400: InvalidRequest,
    404: NotFound,
    409: Conflict,
    429: Overloaded,
    500: InternalError,
    503: Unavailable,
}


def rejected(key: int, error: ImpError) -> Rejected:
    is_too_costly = isinstance(error, GrammarTooCostly)
    return Rejected(
        key,
        error.status,
        error.code,
        error.message,
        error.param,
        error.retry_after_s,
        is_too_costly=is_too_costly,
        sizes=(error.n_prompt_tokens, error.n_ctx) if isinstance(error, ContextLengthExceeded) else (0, 0),
    )


def failed(key: int, error: ImpError) -> RequestFailed:
    is_too_costly = isinstance(error, GrammarTooCostly)
    return RequestFailed(key, error.status, error.code, error.message, is_too_costly=is_too_costly)


def error_from(message: Rejected | RequestFailed) -> ImpError:
    """The exception that the other side raised."""
    kind = _by_code().get((message.status, message.code)) or _BY_STATUS.get(message.status, InternalError)
    kind = GrammarTooCostly if message.is_too_costly else kind
    error = kind(message.message, code=message.code)
    if isinstance(message, Rejected):
        error.param = message.param
        error.retry_after_s = message.retry_after_s
        if isinstance(error, ContextLengthExceeded):
            error.sized(*message.sizes)
    return error


def load_failed(error: UserFault) -> LoadFailed:
    return LoadFailed(error.code, readable(error.message), error.exit_code)  # it may name a file


def user_fault(message: LoadFailed) -> UserFault:
    """The exception that loading raised on the other side."""
    kinds = {kind.default_code: kind for kind in _descendants(UserFault)}
    kind = kinds.get(message.code, UserFault)
    return kind(message.message, code=message.code)


@cache
def _by_code() -> dict[tuple[int, str], type[ImpError]]:
    named = (kind for kind in _descendants(ImpError) if "default_code" in vars(kind))
    never_of_a_request = (UserFault, MethodNotAllowed)
    return {(k.status, k.default_code): k for k in named if not issubclass(k, never_of_a_request)}


_T = TypeVar("_T", bound=ImpError)


def _descendants(kind: type[_T]) -> Iterator[type[_T]]:
    for child in kind.__subclasses__():
        yield from _descendants(child)
        yield child
