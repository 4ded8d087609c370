"""Which requests were there when the engine died: three crashes by one and the same request refuse it.

And which grammars took more work than any may: they are refused from then on.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict

import msgspec

from imp_server.core import EngineCrashed, GenerateRequest, GrammarTooCostly

_MOST_REMEMBERED = 1024


class Blame:
    """Owner of the crash counts by request digest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._crashes: OrderedDict[str, int] = OrderedDict()
        self._grammars: OrderedDict[str, None] = OrderedDict()

    def check(self, request: GenerateRequest) -> None:
        """Raises EngineCrashed for what has crashed the engine too often, GrammarTooCostly for such a grammar."""
        if self._grammars and _grammar_of(request) in self._grammars:
            raise GrammarTooCostly("this grammar took too much work before and is refused from then on; simplify it")
        if self._crashes and self._crashes.get(digest_of(request), 0) >= self._limit:
            raise EngineCrashed(
                f"the engine crashed {self._limit} times while it worked on this request; it is refused from now on"
            )

    def refuse_grammar(self, request: GenerateRequest) -> None:
        """Work on its grammar was given up: nobody begins it again."""
        if digest := _grammar_of(request):
            self._grammars[digest] = None
            while len(self._grammars) > _MOST_REMEMBERED:
                self._grammars.popitem(last=False)

    def note(self, requests: list[GenerateRequest]) -> None:
        """The engine died with these requests in it."""
        for digest in Counter(digest_of(request) for request in requests):
            self._crashes[digest] = self._crashes.pop(digest, 0) + 1
        while len(self._crashes) > _MOST_REMEMBERED:
            self._crashes.popitem(last=False)


def _grammar_of(request: GenerateRequest) -> str:
    return request.plan.grammar.digest if request.plan.grammar is not None else ""


def digest_of(request: GenerateRequest) -> str:
    """The digest that the client gave, else one of everything but the key."""
    if request.digest:
        return request.digest
    data = msgspec.msgpack.encode(msgspec.structs.replace(request, key=0))
    return hashlib.blake2b(data, digest_size=16).hexdigest()
