"""Length steering: near its limit a constrained row takes only tokens after which its value can still be finished.

A token that would make the value too long is refused after it was sampled, and the position is sampled
again without it. With noise that depends on position and id alone this is exactly sampling under a mask
that lacks all such tokens, at the price of a step per refusal; after a few (constraint.py) only the next token
of the shortest way is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from imp_server.engine.constraint import Constraint

_NEAR = 64
"""Tokens before the limit at which looking begins, in addition to twice the shortest value."""


class TokenCutter:
    """How many tokens some bytes take, written with the longest token first: enough of an estimate from above."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {data: i for i, data in reversed(list(enumerate(self._token_bytes))) if data}

    @cached_property
    def _longest(self) -> int:
        return max((len(data) for data in self._ids), default=1)

    def cut(self, data: bytes) -> list[int]:
        """Ids that write `data`; shorter than `data` only if no token begins some rest of it."""
        ids, at = [], 0
        while at < len(data):
            size = min(self._longest, len(data) - at)
            while size and data[at : at + size] not in self._ids:
                size -= 1
            if not size:
                break
            ids.append(self._ids[data[at : at + size]])
            at += size
        return ids


class Steering:
    """One row's rule. Off where not even the shortest value fits: then the reply is cut as any other."""

    def __init__(self, constraint: Constraint, cut: Callable[[bytes], list[int]], room: int) -> None:
        """`room`: tokens that the reply may have."""
        self._constraint = constraint
        self._cut = cut
        shortest = len(cut(constraint.way_out(constraint.start)))
        self._watched = 2 * shortest + _NEAR
        self.is_on = shortest <= room
        self.has_refused = False

    def refuses(self, before: Any, token_id: int, after: Any, left: int) -> bool:
        """`left`: tokens that may follow `token_id`. The first token of the shortest way is never refused."""
        if not self.is_on or left > self._watched:
            return False
        if len(self._cut(self._constraint.way_out(after))) <= left:
            return False
        if self._cut(self._constraint.way_out(before))[:1] == [token_id]:
            return False
        self.has_refused = True
        return True

    def way(self, before: Any) -> frozenset[int]:
        """The next token of the shortest way to the end; none if the value may end here."""
        return frozenset(self._cut(self._constraint.way_out(before))[:1])
