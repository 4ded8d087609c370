"""Which requests were there when the engine died: three crashes by one and the same request refuse it."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict

import msgspec

from imp_server.core import EngineCrashed, GenerateRequest

_MOST_REMEMBERED = 1024


class Blame:
    """Owner of the crash counts by request digest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._crashes: OrderedDict[str, int] = OrderedDict()

    def check(self, request: GenerateRequest) -> None:
        """Raises EngineCrashed for what has crashed the engine too often."""
        if self._crashes and self._crashes.get(digest_of(request), 0) >= self._limit:
            raise EngineCrashed(
                f"the engine crashed {self._limit} times while it worked on this request; it is refused from now on"
            )

    def note(self, requests: list[GenerateRequest]) -> None:
        """The engine died with these requests in it."""
        for digest in Counter(digest_of(request) for request in requests):
            self._crashes[digest] = self._crashes.pop(digest, 0) + 1
        while len(self._crashes) > _MOST_REMEMBERED:
            self._crashes.popitem(last=False)


def digest_of(request: GenerateRequest) -> str:
    """The digest that the client gave, else one of everything but the key."""
    if request.digest:
        return request.digest
    data = msgspec.msgpack.encode(msgspec.structs.replace(request, key=0))
    return hashlib.blake2b(data, digest_size=16).hexdigest()
