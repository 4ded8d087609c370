"""The prefix cache: what rows have computed is kept, found again and shared.

Per-row work is proportional to the row's new blocks, a look-up to the prompt's blocks, never to the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.blocks import EMPTY, BlockPool
from imp_server.schedule.kept_blocks import KeptBlocks
from imp_server.schedule.lookup import Lookup
from imp_server.schedule.pins import Pins
from imp_server.schedule.prefix import PrefixHit, n_common
from imp_server.schedule.restoring import Restoring
from imp_server.schedule.rows import Row
from imp_server.schedule.session_files import SessionFiles
from imp_server.schedule.snapshots import SnapshotLimits, Snapshots
from imp_server.schedule.spill import Spill
from imp_server.schedule.tiers.record import BlockStore
from imp_server.schedule.tiers.tier import Tier
from imp_server.schedule.tree import BLOCK_BYTES, PrefixTree, TreeNode, key_of

_SAVED_AT_ONCE = 4
"""Blocks that one call of `tidy` writes: a few milliseconds, so a message that arrives isn't kept waiting."""


@dataclass(frozen=True, slots=True)
class Offload:
    """What lies under the pools. `store` reads and writes their blocks; `block_bytes`: per cache group.

    `tier` None: what is evicted is forgotten.
    """

    store: BlockStore
    block_bytes: tuple[int, ...]
    tier: Tier | None = None
    snapshots: SnapshotLimits = field(default_factory=SnapshotLimits)
    state_tier: Tier | None = None
    """Keeps snapshots over restarts."""


@dataclass(slots=True)
class _Cursor:
    """How far a row is published: `node` holds its tokens up to `n_tokens` (whole blocks)."""

    node: TreeNode
    n_tokens: int = 0


class PrefixCache:
    """Owner of the tree, of the rows that compute prefixes, and of the parts that keep what the tree knows."""

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        pools: Sequence[BlockPool],
        *,
        pin_budget: float = 0.25,
        session_ttl_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        offload: Offload | None = None,
    ) -> None:
        """`pin_budget`: share of the blocks of group 0 that pins may hold; the oldest pin goes first.

        `offload` None: what is evicted is forgotten, and models with state groups reuse nothing.
        """
        self.tree = PrefixTree()
        self.n_hit_tokens = 0
        self.n_asked_tokens = 0
        self._groups, self._pools = tuple(groups), list(pools)
        self._has_blocks = any(group.kind != "state" for group in groups)
        self._snapshots: Snapshots | None = None
        if offload is not None and offload.snapshots.most and any(group.kind == "state" for group in groups):
            self._snapshots = Snapshots(
                groups, pools, offload.store, offload.block_bytes, offload.snapshots, offload.state_tier
            )
        self._usable = bool(groups) and (self._snapshots is not None or all(g.kind != "state" for g in groups))
        self._spill: Spill | None = None
        if offload is not None and offload.tier is not None and self._usable:
            self._spill = Spill(self.tree, offload.tier, offload.store, offload.block_bytes)
        budget = int(pin_budget * pools[0].n_blocks) if pools else 0
        self._pins = Pins(self.tree, budget, session_ttl_s, clock)
        self._kept = KeptBlocks(self.tree, self._groups, self._pools, self._pins, self._spill)
        self._lookup = Lookup(self._groups, self.tree, self._snapshots)
        self._restoring = Restoring(
            self.tree, self._kept, self._lookup, self._pools, spill=self._spill, snapshots=self._snapshots
        )
        self._cursors: dict[Row, _Cursor] = {}
        self.files: SessionFiles | None = None
        """None: there is nothing that could be in files, or a state that only snapshots hold."""
        if offload is not None and self._usable and self._snapshots is None:
            self.files = SessionFiles(
                self.tree, self._kept, self._groups, self._pools, offload.store, offload.block_bytes
            )

    @property
    def keeps(self) -> bool:
        return self._usable

    @property
    def n_evicted(self) -> int:
        """Nodes whose blocks had to leave the pools."""
        return self._kept.n_evicted

    @property
    def n_evicted_tokens(self) -> int:
        return self._kept.n_evicted_tokens

    # --- look-up --------------------------------------------------------------------------------

    def match(self, ids: NDArray[np.int32], reuse_group: int) -> PrefixHit:
        """The longest usable prefix of `ids`, all of them at most: the caller leaves out what must be run."""
        if not self._usable:
            return PrefixHit()
        hit = self._lookup.find(ids, reuse_group)
        return replace(hit, wait_for=self._ahead(ids, reuse_group, hit.n_tokens))

    def _ahead(self, ids: NDArray[np.int32], reuse_group: int, n_tokens: int) -> Row | None:
        """A row that is computing a longer prefix of `ids`, by a block at least."""
        best, n_best = None, n_tokens + BLOCK_TOKENS - 1
        for row in self._cursors:
            if row.reuse_group != reuse_group or row.n_computed >= row.sampler.n_prompt - 1:
                continue
            n_shared = min(n_common(ids, row.sampler.history), row.sampler.n_prompt - 1)
            n_shared -= n_shared % BLOCK_TOKENS
            if self._snapshots is not None:  # only there will its state be kept
                n_shared = max((point for point in row.snapshot_points if point <= n_shared), default=0)
            if n_shared > n_best and row.n_computed < -(-n_shared // BLOCK_TOKENS) * BLOCK_TOKENS:
                best, n_best = row, n_shared
        return best

    # --- life of a row --------------------------------------------------------------------------

    def begin(self, row: Row, hit: PrefixHit | None = None) -> None:
        """The row has tables: from now on others may wait for what it computes. No `hit`: it never asked."""
        if hit is not None:
            self.n_asked_tokens += row.sampler.n_prompt
            if self._snapshots is not None:
                self._snapshots.n_unusable += hit.is_unusable
            if hit.is_below:
                self._restoring.begin(row, hit)
            else:
                self.n_hit_tokens += hit.n_tokens
        if self._usable:
            self.tree.forget_empty_roots({cursor.node for cursor in self._cursors.values()})
            self._cursors[row] = _Cursor(self.tree.root(row.reuse_group))

    def restore(self, row: Row, budget_ms: float) -> int | None:
        """Bring back more of the row's prefix; None while some is missing, else the tokens that its tables hold."""
        n_tokens = self._restoring.go_on(row, budget_ms)
        self.n_hit_tokens += n_tokens or 0
        return n_tokens

    def publish(self, row: Row) -> None:
        """Keep the blocks that the row has filled since the last call, and its state where that was asked for."""
        cursor = self._cursors.get(row)
        if cursor is None or row.tables is None:
            return
        if self._snapshots is not None and row.n_computed in row.snapshot_points:
            self._snapshots.take(row)
        if self._has_blocks:
            self._publish_blocks(row, cursor)

    def _publish_blocks(self, row: Row, cursor: _Cursor) -> None:
        if not _is_there(cursor.node):
            cursor.node, cursor.n_tokens = self.tree.root(row.reuse_group), 0
        n_known = _n_known(row)
        end = n_known - n_known % BLOCK_TOKENS
        if end <= cursor.n_tokens:
            return
        key = key_of(row.sampler.history[cursor.n_tokens : end])
        for at in range(0, len(key), BLOCK_BYTES):
            kept = self._keep(row, cursor, key[at : at + BLOCK_BYTES])
            if kept is None:
                return
            cursor.node, cursor.n_tokens = kept, cursor.n_tokens + BLOCK_TOKENS

    def retire(self, row: Row) -> None:
        """The row is over: keep its last, partly filled block and its state, too. Its tables are still in place."""
        self._restoring.abandon(row)
        self.publish(row)
        cursor = self._cursors.pop(row, None)
        if cursor is None or row.tables is None:
            return
        if self._snapshots is not None:
            self._snapshots.take(row)
        if not self._has_blocks or not _is_there(cursor.node) or _n_known(row) <= cursor.n_tokens:
            return
        key = key_of(row.sampler.history[cursor.n_tokens : _n_known(row)])
        if not self.tree.serves(cursor.node, key):
            self._keep(row, cursor, key)

    def disown(self, row: Row) -> None:
        """What the row's blocks hold is unknown: nothing more of it is kept."""
        self._restoring.abandon(row)
        self._cursors.pop(row, None)

    def _keep(self, row: Row, cursor: _Cursor, key: bytes) -> TreeNode | None:
        assert row.tables is not None
        column = cursor.n_tokens // BLOCK_TOKENS
        blocks = [
            EMPTY if group.kind == "state" else _at(row.tables.columns(g), column)
            for g, group in enumerate(self._groups)
        ]
        return self._kept.keep(cursor.node, key, blocks)

    # --- memory, idle time and the end ----------------------------------------------------------

    def reclaim(self, group: int, n_blocks: int) -> int:
        """Give up the least recently used blocks of the group; how many became free."""
        return self._kept.reclaim(group, n_blocks)

    def idle_fault(self) -> str:
        """What is left over when no row lives; "" = nothing."""
        if self._cursors or self._restoring.n_jobs:
            return f"{len(self._cursors)} rows and {self._restoring.n_jobs} restores are remembered and gone"
        if not 0 <= self._pins.n_nodes <= self._pins.budget:
            return f"{self._pins.n_nodes} blocks are pinned, {self._pins.budget} may be"
        return ""

    def tidy(self) -> bool:
        """A small piece of the work that can wait until nobody else does; True if there is more."""
        has_more_blocks = self._spill is not None and self._spill.save_some(_SAVED_AT_ONCE)
        has_more_states = self._snapshots is not None and self._snapshots.save_some(1)
        return has_more_blocks or has_more_states

    def close(self, budget_s: float = 3.0) -> None:
        """Save what the next process shall find, as much as time allows."""
        until = time.monotonic() + budget_s
        while self.tidy() and time.monotonic() < until:
            pass
        if self._spill is not None:
            self._spill.close()
        if self._snapshots is not None:
            self._snapshots.close()

    def clear(self) -> None:
        """Forget everything that no pin holds."""
        self._kept.clear()
        if self._snapshots is not None:
            self._snapshots.clear()

    def counters(self) -> dict[str, float]:
        """For metrics, by name."""
        found = {
            "prefix_cache_queried_tokens_total": float(self.n_asked_tokens),
            "prefix_cache_hit_tokens_total": float(self.n_hit_tokens),
            "prefix_cache_evictions_total": float(self._kept.n_evicted),
            "prefix_cache_evicted_tokens_total": float(self._kept.n_evicted_tokens),
            "prefix_cache_nodes": float(self.tree.n_nodes),
            "prefix_cache_restored_tokens_total": float(self._restoring.n_tokens),
            "prefix_cache_restores_cut_short_total": float(self._restoring.n_cut_short),
        }
        for part in (self._pins, self._spill, self._snapshots):
            if part is not None:
                found |= part.counters()
        return found

    def check(self) -> None:
        """Every part agrees with the others. Raises AssertionError."""
        self._kept.check()
        assert sum(node.n_holds for node in self.tree.nodes()) == self._restoring.n_held, "a node is held for nobody"
        if self._snapshots is not None:
            self._snapshots.check()

    # --- pins -----------------------------------------------------------------------------------

    @property
    def n_pinned_blocks(self) -> int:
        return self._pins.n_nodes

    def pin(self, ids: NDArray[np.int32], reuse_group: int, session_id: str | None = None) -> None:
        """Hold the kept blocks of this prefix. A session's new pin replaces its old one."""
        match = self.tree.match(key_of(ids), reuse_group, len(ids))
        there = takewhile(lambda node: node.is_resident, match.nodes)
        self._pins.pin([node for node in there if node.n_tokens == BLOCK_TOKENS], session_id)

    def release_session(self, session_id: str) -> int:
        """Blocks that no pin holds any more."""
        return self._pins.release_session(session_id)

    def expire(self) -> None:
        """Release the pins of sessions that have been silent for their time to live."""
        self._pins.expire()


def _is_there(node: TreeNode) -> bool:
    """A root, or a node whose blocks the pools hold."""
    return node.parent is None or (node.lives and node.is_resident)


def _n_known(row: Row) -> int:
    """Computed positions whose ids stand in the history: accepted drafts behind a stop don't."""
    return min(row.n_computed, row.sampler.length)


def _at(columns: NDArray[np.int32], column: int) -> int:
    return int(columns[column]) if column < len(columns) else EMPTY
