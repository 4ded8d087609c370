"""Prefixes that stay in memory: within a budget, the oldest pin goes first; a session's pin ends with its session.

There are never more than two pins per block of the budget, however many requests ask for some: what each of them costs
is proportional to its own prompt.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imp_server.schedule.tree import PrefixTree, TreeNode


@dataclass(slots=True)
class _Pin:
    nodes: tuple[TreeNode, ...]
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
        self._pins: OrderedDict[str | TreeNode, _Pin] = OrderedDict()
        """Oldest first; by session, or by the last node."""
        self._sessions: OrderedDict[str, _Pin] = OrderedDict()
        """Those of them that sessions hold, oldest first."""
        self._in_sessions: Counter[TreeNode] = Counter()
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
        return {
            "prefix_cache_pinned_blocks": float(self._n_nodes),
            "kv_sessions": float(len(self._sessions)),
            "kv_session_pinned_blocks": float(len(self._in_sessions)),
        }

    def pin(self, nodes: Sequence[TreeNode], session_id: str | None) -> None:
        """Hold these nodes of one path, from its root, as many as the budget takes. A session's earlier pin ends."""
        held = tuple(nodes[: self._budget])
        if session_id is not None:
            self.release_session(session_id)
        if not held:
            return
        expires_at = self._clock() + self._session_ttl_s if session_id and self._session_ttl_s else float("inf")
        pin = _Pin(held, session_id, expires_at)
        for node in held:
            self._n_nodes += node.n_pins == 0
            node.n_pins += 1
        if session_id is None:
            for node in held:  # older pins of beginnings would go before this one: they hold nothing that it doesn't
                if node in self._pins:
                    self._release(node)
            self._pins[held[-1]] = pin
        else:
            self._pins[session_id] = self._sessions[session_id] = pin
            self._in_sessions.update(held)
        while len(self._sessions) > self._budget:
            self._release(next(iter(self._sessions)))
        while self._n_nodes > self._budget:
            self.release_oldest()

    def release_oldest(self) -> None:
        self._release(next(iter(self._pins)))

    def release_session(self, session_id: str) -> int:
        """Nodes that no pin holds any more."""
        n_before = self._n_nodes
        if session_id in self._sessions:
            self._release(session_id)
        return n_before - self._n_nodes

    def expire(self) -> None:
        """Release the pins of sessions that have been silent for their time to live."""
        now = self._clock()
        while self._sessions and next(iter(self._sessions.values())).expires_at <= now:
            self._release(next(iter(self._sessions)))

    def _release(self, name: str | TreeNode) -> None:
        pin = self._pins.pop(name)
        if pin.session_id is not None:
            del self._sessions[pin.session_id]
        for node in pin.nodes:
            if pin.session_id is not None:
                self._in_sessions[node] -= 1
                if not self._in_sessions[node]:
                    del self._in_sessions[node]
            node.n_pins -= 1
            self._n_nodes -= node.n_pins == 0
            self._tree.offer(node)
