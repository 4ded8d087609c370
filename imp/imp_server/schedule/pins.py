"""Prefixes that stay in memory: within a budget, the oldest pin goes first; a session's pin ends with its session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imp_server.schedule.tree import Node, PrefixTree


@dataclass(slots=True)
class _Pin:
    nodes: tuple[Node, ...]
    session_id: str | None
    expires_at: float


class Pins:
    """Owner of the pins and of `Node.n_pins`."""

    def __init__(self, tree: PrefixTree, budget: int, session_ttl_s: float, clock: Callable[[], float]) -> None:
        """`budget`: pinned nodes at most; 0 = no pins. `session_ttl_s` 0: sessions end only when they are closed."""
        self._tree = tree
        self._budget = budget
        self._session_ttl_s = session_ttl_s
        self._clock = clock
        self._pins: deque[_Pin] = deque()
        self._n_nodes = 0

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def n_nodes(self) -> int:
        return self._n_nodes

    @property
    def budget(self) -> int:
        return self._budget

    def counters(self) -> dict[str, float]:
        """For metrics, by name."""
        held = {id(node) for pin in self._pins if pin.session_id is not None for node in pin.nodes}
        sessions = {pin.session_id for pin in self._pins if pin.session_id is not None}
        return {
            "prefix_cache_pinned_blocks": float(self._n_nodes),
            "kv_sessions": float(len(sessions)),
            "kv_session_pinned_blocks": float(len(held)),
        }

    def pin(self, nodes: Sequence[Node], session_id: str | None) -> None:
        """Hold these nodes of one path, from its root, as many as the budget takes."""
        held = tuple(nodes[: self._budget])
        if not held:
            return
        expires_at = self._clock() + self._session_ttl_s if session_id and self._session_ttl_s else float("inf")
        self._pins.append(_Pin(held, session_id, expires_at))
        for node in held:
            self._n_nodes += node.n_pins == 0
            node.n_pins += 1
        while self._n_nodes > self._budget:
            self.release_oldest()

    def release_oldest(self) -> None:
        self._release(self._pins.popleft())

    def release_session(self, session_id: str) -> int:
        """Nodes that no pin holds any more."""
        n_before = self._n_nodes
        for pin in [pin for pin in self._pins if pin.session_id == session_id]:
            self._pins.remove(pin)
            self._release(pin)
        return n_before - self._n_nodes

    def expire(self) -> None:
        """Release the pins of sessions that have been silent for their time to live."""
        now = self._clock()
        for pin in [p for p in self._pins if p.expires_at <= now]:
            self._pins.remove(pin)
            self._release(pin)

    def _release(self, pin: _Pin) -> None:
        for node in pin.nodes:
            node.n_pins -= 1
            self._n_nodes -= node.n_pins == 0
            self._tree.offer(node)
