"""Whose request it is: a digest of the API key that came with it, never the key.

Whatever outlives a request, or can be addressed while it runs, belongs to its owner, and others are told that it isn't
there. On a server without keys everything belongs to everybody. The owner is part of the request's context: set once
where the key is checked, the same in all tasks that the request begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, NewType

Owner = NewType("Owner", str)
NOBODY = Owner("")
"""On a server without keys."""


class Caller(NamedTuple):
    """Who sends a request. `is_admin`: with one of the keys that may change the server."""

    owner: Owner = NOBODY
    is_admin: bool = False


_STRANGER = Caller()
_current: ContextVar[Caller] = ContextVar("imp_caller", default=_STRANGER)


def owner_of(key: str) -> Owner:
    """The same in every process: what a key has made is its own behind a restart, too."""
    data = key.encode("utf-8", "surrogateescape")
    return Owner(hashlib.blake2b(data, digest_size=16, person=b"imp owner").hexdigest())


def current_owner() -> Owner:
    """Of the request that is being answered; NOBODY outside of one."""
    return _current.get().owner


def is_admin() -> bool:
    """The request that is being answered came with an admin key."""
    return _current.get().is_admin


@contextmanager
def acting_for(owner: Owner, *, is_admin: bool = False) -> Iterator[None]:
    """What runs inside, and the tasks that it begins, are the owner's."""
    token = _current.set(Caller(owner, is_admin))
    try:
        yield
    finally:
        _current.reset(token)
