"""The prefix cache: which blocks of the pools are kept, found again, shared, pinned and given up.

Per-row work is proportional to the row's new blocks, a look-up to the prompt's blocks, never to the cache.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.blocks import BlockPool
from imp_server.schedule.prefix import PrefixHit
from imp_server.schedule.tree import BLOCK_BYTES, EMPTY, Match, Node, PrefixTree, key_of

if TYPE_CHECKING:
    from imp_server.schedule.rows import Row


@dataclass(slots=True)
class _Cursor:
    """How far a row is published: `node` holds its tokens up to `n_tokens` (whole blocks)."""

    node: Node
    n_tokens: int = 0


@dataclass(slots=True)
class _Pin:
    nodes: tuple[Node, ...]
    session_id: str | None
    expires_at: float


class PrefixCache:
    """Owner of the tree's blocks, of the rows that compute prefixes, and of the pins."""

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        pools: Sequence[BlockPool],
        *,
        pin_budget: float = 0.25,
        session_ttl_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pin_budget`: share of the blocks of group 0 that pins may hold; the oldest pin goes first."""
        self.tree = PrefixTree()
        self.n_evicted = 0
        self.n_evicted_tokens = 0
        self.n_hit_tokens = 0
        self.n_asked_tokens = 0
        self._groups = tuple(groups)
        self._pools = list(pools)
        self._usable = bool(groups) and all(g.kind in ("full", "window") for g in groups)
        self._cursors: dict[Row, _Cursor] = {}
        self._pins: deque[_Pin] = deque()
        self._n_pinned = 0
        self._pin_budget = int(pin_budget * pools[0].n_blocks) if pools else 0
        self._session_ttl_s = session_ttl_s
        self._clock = clock

    @property
    def keeps(self) -> bool:
        return self._usable

    # --- look-up --------------------------------------------------------------------------------

    def match(self, ids: NDArray[np.int32], adapter: int) -> PrefixHit:
        """The longest usable prefix of `ids`, all of them at most: the caller leaves out what must be run."""
        if not self._usable:
            return PrefixHit()
        key = key_of(ids)
        found = self._shortened(self.tree.match(key, adapter, len(ids)))
        blocks = tuple(self._columns(g, found) for g in range(len(self._groups)))
        return PrefixHit(found.n_tokens, blocks if found.n_tokens else (), self._ahead(ids, adapter, found.n_tokens))

    def _shortened(self, match: Match) -> Match:
        """The match cut back to a length at which every group can resume."""
        nodes, n_tokens = match.nodes, match.n_tokens
        while nodes and not all(self._resumes(g, nodes, n_tokens) for g in range(len(self._groups))):
            nodes = nodes[:-1]
            n_tokens = len(nodes) * BLOCK_TOKENS
        return Match(nodes, n_tokens)

    def _resumes(self, group: int, nodes: tuple[Node, ...], n_tokens: int) -> bool:
        first = self._first_seen(group, n_tokens)
        return all(node.blocks[group] != EMPTY for node in nodes[first:])

    def _first_seen(self, group: int, n_tokens: int) -> int:
        """First column that a query at position `n_tokens` of this group still sees."""
        window = self._groups[group].window
        return max(0, n_tokens + 1 - window) // BLOCK_TOKENS if window else 0

    def _columns(self, group: int, match: Match) -> tuple[int, ...]:
        first = self._first_seen(group, match.n_tokens)
        return tuple(EMPTY if i < first else node.blocks[group] for i, node in enumerate(match.nodes))

    def _ahead(self, ids: NDArray[np.int32], adapter: int, n_tokens: int) -> Row | None:
        """A row that is computing a longer prefix of `ids`, by a block at least."""
        best, n_best = None, n_tokens + BLOCK_TOKENS - 1
        for row in self._cursors:
            if row.adapter != adapter or row.n_computed >= row.sampler.n_prompt - 1:
                continue
            n_common = min(_n_common(ids, row.sampler.history), row.sampler.n_prompt - 1)
            n_common -= n_common % BLOCK_TOKENS
            if n_common > n_best and row.n_computed < n_common:
                best, n_best = row, n_common
        return best

    # --- life of a row --------------------------------------------------------------------------

    def begin(self, row: Row, hit: PrefixHit | None = None) -> None:
        """The row has tables: from now on others may wait for what it computes. No `hit`: it never asked."""
        if hit is not None:
            self.n_asked_tokens += row.sampler.n_prompt
            self.n_hit_tokens += hit.n_tokens
        if self._usable:
            self._cursors[row] = _Cursor(self.tree.root(row.adapter))

    def publish(self, row: Row) -> None:
        """Keep the blocks that the row has filled since the last call."""
        cursor = self._cursors.get(row)
        if cursor is None or row.tables is None:
            return
        if cursor.node.parent is not None and not cursor.node.lives:
            cursor.node, cursor.n_tokens = self.tree.root(row.adapter), 0
        n_known = _n_known(row)
        end = n_known - n_known % BLOCK_TOKENS
        if end <= cursor.n_tokens:
            return
        key = key_of(row.sampler.history[cursor.n_tokens : end])
        for at in range(0, len(key), BLOCK_BYTES):
            column = cursor.n_tokens // BLOCK_TOKENS
            cursor.node = self._keep(cursor.node, key[at : at + BLOCK_BYTES], row, column)
            cursor.n_tokens += BLOCK_TOKENS

    def retire(self, row: Row) -> None:
        """The row is over: keep its last, partly filled block too. Its tables are still in place."""
        self.publish(row)
        cursor = self._cursors.pop(row, None)
        if cursor is None or row.tables is None or _n_known(row) <= cursor.n_tokens:
            return
        if cursor.node.parent is not None and not cursor.node.lives:
            return
        key = key_of(row.sampler.history[cursor.n_tokens : _n_known(row)])
        if self.tree.serves(cursor.node, key):
            return
        self._keep(cursor.node, key, row, cursor.n_tokens // BLOCK_TOKENS)

    def _keep(self, parent: Node, key: bytes, row: Row, column: int) -> Node:
        assert row.tables is not None
        blocks = [_at(row.tables.columns(g), column) for g in range(len(self._groups))]
        node, is_new = self.tree.insert(parent, key, blocks)
        if is_new:
            for pool, block in zip(self._pools, blocks, strict=True):
                if block != EMPTY:
                    pool.keep(block)
            for shorter in self.tree.covered(node):
                self._evict(shorter)
        return node

    # --- memory ---------------------------------------------------------------------------------

    def reclaim(self, group: int, n_blocks: int) -> int:
        """Give up the least recently used leaves that free a block of the group; how many became free.

        Pins yield, the oldest first, before a request has to.
        """
        n_freed = self._reclaim_unpinned(group, n_blocks)
        while n_freed < n_blocks and self._pins:
            self._release(self._pins.popleft())
            n_freed += self._reclaim_unpinned(group, n_blocks - n_freed)
        return n_freed

    def _reclaim_unpinned(self, group: int, n_blocks: int) -> int:
        n_freed = 0
        pool = self._pools[group]
        for leaf in self.tree.leaves_by_age():
            if n_freed >= n_blocks:
                break
            if leaf.blocks[group] == EMPTY or pool.is_held(leaf.blocks[group]):
                continue
            self._evict(leaf)
            self.n_evicted += 1
            self.n_evicted_tokens += leaf.n_tokens
            n_freed += 1
        return n_freed

    def _evict(self, node: Node) -> None:
        self.tree.remove(node)
        for pool, block in zip(self._pools, node.blocks, strict=True):
            if block != EMPTY:
                pool.drop(block)

    def counters(self) -> dict[str, float]:
        """For metrics, by name."""
        return {
            "prefix_cache_queried_tokens_total": float(self.n_asked_tokens),
            "prefix_cache_hit_tokens_total": float(self.n_hit_tokens),
            "prefix_cache_evictions_total": float(self.n_evicted),
            "prefix_cache_evicted_tokens_total": float(self.n_evicted_tokens),
            "prefix_cache_pinned_blocks": float(self._n_pinned),
            "prefix_cache_nodes": float(self.tree.n_nodes),
        }

    def check(self) -> None:
        """The kept blocks are those of the nodes, each of one node. Raises AssertionError."""
        nodes = list(self.tree.nodes())
        assert len(nodes) == self.tree.n_nodes, "a node is lost"
        for group, pool in enumerate(self._pools):
            blocks = [node.blocks[group] for node in nodes if node.blocks[group] != EMPTY]
            assert len(blocks) == len(set(blocks)), "two nodes hold one block"
            assert set(blocks) == pool.kept, "a kept block is nobody's, or a node's block isn't kept"
        assert self._n_pinned == sum(node.n_pins > 0 for node in nodes) <= max(self._pin_budget, 0)

    def clear(self) -> None:
        """Forget everything that no pin holds."""
        while leaves := [leaf for leaf in self.tree.leaves_by_age() if not leaf.n_pins]:
            for leaf in leaves:
                self._evict(leaf)

    # --- pins -----------------------------------------------------------------------------------

    @property
    def n_pinned_blocks(self) -> int:
        return self._n_pinned

    def pin(self, ids: NDArray[np.int32], adapter: int, session_id: str | None = None) -> None:
        """Hold the kept blocks of this prefix. A session's new pin replaces its old one."""
        if session_id is not None:
            self.release_session(session_id)
        if not self._pin_budget or not len(ids):
            return
        match = self.tree.match(key_of(ids), adapter, len(ids))
        nodes = tuple(n for n in match.nodes if n.n_tokens == BLOCK_TOKENS)[: self._pin_budget]
        if not nodes:
            return
        expires_at = self._clock() + self._session_ttl_s if session_id and self._session_ttl_s else float("inf")
        self._pins.append(_Pin(nodes, session_id, expires_at))
        for node in nodes:
            self._n_pinned += node.n_pins == 0
            node.n_pins += 1
        while self._n_pinned > self._pin_budget:
            self._release(self._pins.popleft())

    def release_session(self, session_id: str) -> int:
        """Blocks that no pin holds any more."""
        n_before = self._n_pinned
        found = [pin for pin in self._pins if pin.session_id == session_id]
        for pin in found:
            self._pins.remove(pin)
            self._release(pin)
        return n_before - self._n_pinned

    def expire(self) -> None:
        """Release the pins of sessions that have been silent for their time to live."""
        now = self._clock()
        for pin in [p for p in self._pins if p.expires_at <= now]:
            self._pins.remove(pin)
            self._release(pin)

    def _release(self, pin: _Pin) -> None:
        for node in pin.nodes:
            node.n_pins -= 1
            self._n_pinned -= node.n_pins == 0
        self.tree.offer(pin.nodes[-1])


def _n_known(row: Row) -> int:
    """Computed positions whose ids stand in the history: accepted drafts behind a stop don't."""
    return min(row.n_computed, row.sampler.length)


def _at(columns: NDArray[np.int32], column: int) -> int:
    return int(columns[column]) if column < len(columns) else EMPTY


def _n_common(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    size = min(len(a), len(b))
    differ = a[:size] != b[:size]
    return int(np.argmax(differ)) if differ.any() else size
