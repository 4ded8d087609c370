"""Nodes in order of their last use, for giving up the oldest first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Generic, Protocol, TypeVar

_SLACK = 4
"""Outdated entries per valid one, before they are swept out."""
_LEAST = 256


class Aged(Protocol):
    """What is kept and may be given up. Positions in the order are told apart by identity."""

    last_used: int
    n_pins: int
    n_holds: int

    @property
    def is_root(self) -> bool: ...


T = TypeVar("T", bound=Aged)


class AgeOrder(Generic[T]):
    """Owner of a heap of (last use, node). An entry is valid while the node was not used since and still qualifies.

    Pinned and held nodes don't: hundreds of pins at the old end would be passed over for each block that is needed.
    """

    def __init__(self, may_go: Callable[[T], bool]) -> None:
        """Whoever makes a node qualify, or uses one that does, must offer it; so must who unpins it or lets it go."""
        self._may_go = may_go
        self._heap: list[tuple[int, int, T]] = []
        self._tie = count()
        self._sweep_at = _LEAST

    def offer(self, node: T) -> None:
        """Does nothing if the node doesn't qualify."""
        if not self._qualifies(node) or node.is_root:
            return
        heapq.heappush(self._heap, (node.last_used, next(self._tie), node))
        if len(self._heap) > self._sweep_at:
            self._sweep()

    def oldest_first(self) -> Iterator[T]:
        """Nodes that qualify. Those that the caller doesn't change are offered again."""
        passed: dict[T, None] = {}
        try:
            while self._heap:
                used, _, node = heapq.heappop(self._heap)
                if used != node.last_used or not self._qualifies(node):
                    continue
                if node in passed:
                    continue
                passed[node] = None
                yield node
        finally:
            for node in passed:
                self.offer(node)

    def _qualifies(self, node: T) -> bool:
        return not (node.n_pins or node.n_holds) and self._may_go(node)

    def _sweep(self) -> None:
        valid = {id(entry[2]): entry for entry in self._heap if self._is_valid(entry)}
        self._heap = list(valid.values())
        heapq.heapify(self._heap)
        self._sweep_at = max(_LEAST, _SLACK * len(self._heap))

    def _is_valid(self, entry: tuple[int, int, T]) -> bool:
        return entry[0] == entry[2].last_used and self._qualifies(entry[2])
