"""The prefix cache: which blocks of the pools are kept, found again, shared, pinned and given up.

Per-row work is proportional to the row's new blocks, a look-up to the prompt's blocks, never to the cache.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.blocks import BlockPool
from imp_server.schedule.prefix import PrefixHit
from imp_server.schedule.restoring import Restoring
from imp_server.schedule.spill import Spill
from imp_server.schedule.tiers.record import BlockStore
from imp_server.schedule.tiers.tier import Tier
from imp_server.schedule.tree import BLOCK_BYTES, EMPTY, Match, Node, PrefixTree, key_of

if TYPE_CHECKING:
    from imp_server.schedule.rows import Row


_SAVED_AT_ONCE = 4
"""Blocks that one call of `tidy` writes: a few milliseconds, so a message that arrives isn't kept waiting."""


@dataclass(frozen=True, slots=True)
class Below:
    """The tier under the pools. `store` reads and writes their blocks; `block_bytes`: per cache group."""

    tier: Tier
    store: BlockStore
    block_bytes: tuple[int, ...]


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
        below: Below | None = None,
    ) -> None:
        """`pin_budget`: share of the blocks of group 0 that pins may hold; the oldest pin goes first.

        `below` None: what is evicted is forgotten.
        """
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
        self._spill = (
            Spill(self.tree, below.tier, below.store, below.block_bytes) if below is not None and self._usable else None
        )
        self._restoring = Restoring(self, self._pools, self._spill)

    @property
    def keeps(self) -> bool:
        return self._usable

    # --- look-up --------------------------------------------------------------------------------

    def match(self, ids: NDArray[np.int32], adapter: int) -> PrefixHit:
        """The longest usable prefix of `ids`, all of them at most: the caller leaves out what must be run."""
        if not self._usable:
            return PrefixHit()
        key = key_of(ids)
        found = self._shortened(self.tree.match(key, adapter, len(ids)), may_load=True)
        return replace(self.hit_of(found), wait_for=self._ahead(ids, adapter, found.n_tokens))

    def hit_of(self, match: Match) -> PrefixHit:
        """The match's blocks; those that only a tier has are missing yet."""
        if not match.n_tokens:
            return PrefixHit()
        groups = range(len(self._groups))
        is_below = any(
            node.blocks[g] == EMPTY for g in groups for node in match.nodes[self.first_seen(g, match.n_tokens) :]
        ) or not all(node.is_resident for node in match.nodes)
        blocks = tuple(self._columns(g, match) for g in groups)
        return PrefixHit(match.n_tokens, blocks, nodes=match.nodes, is_below=is_below)

    def resident_part(self, match: Match) -> PrefixHit:
        """The longest part of the match that the pools hold and every group can resume after."""
        return self.hit_of(self._shortened(match, may_load=False))

    def _shortened(self, match: Match, *, may_load: bool) -> Match:
        """The match cut back to a length at which every group can resume."""
        nodes, n_tokens = match.nodes, match.n_tokens
        while nodes and not all(self._resumes(g, nodes, n_tokens, may_load) for g in range(len(self._groups))):
            nodes = nodes[:-1]
            n_tokens = len(nodes) * BLOCK_TOKENS
        return Match(nodes, n_tokens)

    def _resumes(self, group: int, nodes: tuple[Node, ...], n_tokens: int, may_load: bool) -> bool:
        seen = nodes[self.first_seen(group, n_tokens) :]
        if may_load:
            return all(node.blocks[group] != EMPTY or node.stored_mask >> group & 1 for node in seen)
        return all(node.blocks[group] != EMPTY for node in seen)

    def first_seen(self, group: int, n_tokens: int) -> int:
        """First column that a query at position `n_tokens` of this group still sees."""
        window = self._groups[group].window
        return max(0, n_tokens + 1 - window) // BLOCK_TOKENS if window else 0

    def _columns(self, group: int, match: Match) -> tuple[int, ...]:
        first = self.first_seen(group, match.n_tokens)
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
            if hit.is_below:
                self._restoring.begin(row, hit)
            else:
                self.n_hit_tokens += hit.n_tokens
        if self._usable:
            self._cursors[row] = _Cursor(self.tree.root(row.adapter))

    def restore(self, row: Row, budget_ms: float) -> int | None:
        """Bring back more of the row's prefix; None while some is missing, else the tokens that its tables hold."""
        n_tokens = self._restoring.go_on(row, budget_ms)
        self.n_hit_tokens += n_tokens or 0
        return n_tokens

    def publish(self, row: Row) -> None:
        """Keep the blocks that the row has filled since the last call."""
        cursor = self._cursors.get(row)
        if cursor is None or row.tables is None:
            return
        if not _is_there(cursor.node):
            cursor.node, cursor.n_tokens = self.tree.root(row.adapter), 0
        n_known = _n_known(row)
        end = n_known - n_known % BLOCK_TOKENS
        if end <= cursor.n_tokens:
            return
        key = key_of(row.sampler.history[cursor.n_tokens : end])
        for at in range(0, len(key), BLOCK_BYTES):
            column = cursor.n_tokens // BLOCK_TOKENS
            kept = self._keep(cursor.node, key[at : at + BLOCK_BYTES], row, column)
            if kept is None:
                return
            cursor.node, cursor.n_tokens = kept, cursor.n_tokens + BLOCK_TOKENS

    def retire(self, row: Row) -> None:
        """The row is over: keep its last, partly filled block too. Its tables are still in place."""
        self._restoring.abandon(row)
        self.publish(row)
        cursor = self._cursors.pop(row, None)
        if cursor is None or row.tables is None or _n_known(row) <= cursor.n_tokens:
            return
        if not _is_there(cursor.node):
            return
        key = key_of(row.sampler.history[cursor.n_tokens : _n_known(row)])
        if self.tree.serves(cursor.node, key):
            return
        self._keep(cursor.node, key, row, cursor.n_tokens // BLOCK_TOKENS)

    def _keep(self, parent: Node, key: bytes, row: Row, column: int) -> Node | None:
        """None: the row's block doesn't hold the tokens yet, since a copy into it was planned and has not run."""
        assert row.tables is not None
        blocks = [_at(row.tables.columns(g), column) for g in range(len(self._groups))]
        if any(block != EMPTY and pool.is_unsettled(block) for pool, block in zip(self._pools, blocks, strict=True)):
            return None
        node, is_new = self.tree.insert(parent, key, blocks)
        if is_new:
            for pool, block in zip(self._pools, blocks, strict=True):
                if block != EMPTY:
                    pool.keep(block)
            for shorter in self.tree.covered(node):
                self._forget(shorter)
            if self._spill is not None:
                self._spill.note_new(node)
        else:
            self._attach(node, blocks)
        return node

    def _attach(self, node: Node, blocks: list[int]) -> None:
        """A row has computed again what the pools lacked."""
        if node.is_resident and EMPTY not in node.blocks:
            return
        gained = [EMPTY] * len(blocks)
        for group, (pool, block) in enumerate(zip(self._pools, blocks, strict=True)):
            if node.blocks[group] == EMPTY and block != EMPTY and not pool.is_kept(block):
                pool.keep(block)
                gained[group] = block
        self.gain(node, gained)

    def gain(self, node: Node, blocks: Sequence[int]) -> None:
        """The pools hold more of the node: `blocks`, EMPTY where nothing is new. They are kept already."""
        merged = [new if new != EMPTY else old for old, new in zip(node.blocks, blocks, strict=True)]
        if node.is_resident:
            node.blocks = merged
        else:
            self.tree.promote(node, merged)

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
            self._leave(leaf)
            self.n_evicted += 1
            self.n_evicted_tokens += leaf.n_tokens
            n_freed += 1
        return n_freed

    def take(self, group: int) -> int | None:
        """A block for writing; cached contents are given up if nothing is free."""
        block = self._pools[group].take()
        if block is None and self.reclaim(group, 1):
            block = self._pools[group].take()
        return block

    def _leave(self, node: Node) -> None:
        """Give up its blocks. What a tier has stays known, what none has is forgotten."""
        if self._spill is None or not self._spill.store(node):
            self._forget(node)
            return
        blocks, node.blocks = node.blocks, [EMPTY] * len(self._groups)
        self.tree.demote(node)
        self._drop(blocks)

    def _forget(self, node: Node) -> None:
        """The node and what continues it, all of which at most a tier has."""
        family = [node]
        for each in family:
            family.extend(each.children.values())
        for each in reversed(family):
            if self._spill is not None and each.is_stored:
                self._spill.forget(each)
            self.tree.remove(each)
            self._drop(each.blocks)

    def lose_copy(self, node: Node) -> None:
        """The tier's copy can't be read."""
        if not node.is_resident:
            self._forget(node)
        elif self._spill is not None and node.is_stored:
            self._spill.forget(node)

    def _drop(self, blocks: Sequence[int]) -> None:
        for pool, block in zip(self._pools, blocks, strict=True):
            if block != EMPTY:
                pool.drop(block)

    # --- idle time and the end ------------------------------------------------------------------

    def idle_fault(self) -> str:
        """What is left over when no row lives; "" = nothing."""
        if self._cursors or self._restoring.n_jobs:
            return f"{len(self._cursors)} rows and {self._restoring.n_jobs} restores are remembered and gone"
        if not 0 <= self._n_pinned <= self._pin_budget:
            return f"{self._n_pinned} blocks are pinned, {self._pin_budget} may be"
        return ""

    def tidy(self) -> bool:
        """A small piece of the work that can wait until nobody else does; True if there is more."""
        return self._spill is not None and self._spill.save_some(_SAVED_AT_ONCE)

    def close(self, budget_s: float = 3.0) -> None:
        """Save what the next process shall find, as much as time allows."""
        until = time.monotonic() + budget_s
        while self.tidy() and time.monotonic() < until:
            pass
        if self._spill is not None:
            self._spill.close()

    def counters(self) -> dict[str, float]:
        """For metrics, by name."""
        below = self._spill.counters() if self._spill is not None else {}
        return below | {
            "prefix_cache_queried_tokens_total": float(self.n_asked_tokens),
            "prefix_cache_hit_tokens_total": float(self.n_hit_tokens),
            "prefix_cache_evictions_total": float(self.n_evicted),
            "prefix_cache_evicted_tokens_total": float(self.n_evicted_tokens),
            "prefix_cache_pinned_blocks": float(self._n_pinned),
            "prefix_cache_nodes": float(self.tree.n_nodes),
            "prefix_cache_restored_tokens_total": float(self._restoring.n_tokens),
            "prefix_cache_restores_cut_short_total": float(self._restoring.n_cut_short),
        }

    def check(self) -> None:
        """The kept blocks are those of the nodes, each of one node. Raises AssertionError."""
        self.tree.check()
        nodes = list(self.tree.nodes())
        for group, pool in enumerate(self._pools):
            blocks = [node.blocks[group] for node in nodes if node.blocks[group] != EMPTY]
            assert len(blocks) == len(set(blocks)), "two nodes hold one block"
            assert set(blocks) == pool.kept, "a kept block is nobody's, or a node's block isn't kept"
        assert all(n.is_resident or all(b == EMPTY for b in n.blocks) for n in nodes), "an evicted node has blocks"
        assert sum(n.n_holds for n in nodes) == self._restoring.n_held, "a node is held for nobody"
        if self._spill is not None:
            self._spill.check()
        assert self._n_pinned == sum(node.n_pins > 0 for node in nodes) <= max(self._pin_budget, 0)

    def clear(self) -> None:
        """Forget everything that no pin holds."""
        while leaves := list(self.tree.leaves_by_age()):
            for leaf in leaves:
                self._forget(leaf)
        for copy in iter(lambda: next(self.tree.stored_by_age(), None), None):
            self.lose_copy(copy)

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
        there = takewhile(lambda node: node.is_resident, match.nodes)
        nodes = tuple(n for n in there if n.n_tokens == BLOCK_TOKENS)[: self._pin_budget]
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


def _is_there(node: Node) -> bool:
    """A root, or a node whose blocks the pools hold."""
    return node.parent is None or (node.lives and node.is_resident)


def _n_known(row: Row) -> int:
    """Computed positions whose ids stand in the history: accepted drafts behind a stop don't."""
    return min(row.n_computed, row.sampler.length)


def _at(columns: NDArray[np.int32], column: int) -> int:
    return int(columns[column]) if column < len(columns) else EMPTY


def _n_common(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    size = min(len(a), len(b))
    differ = a[:size] != b[:size]
    return int(np.argmax(differ)) if differ.any() else size
