"""Prefixes that come back from a lower tier, in pieces, while their rows wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.schedule.blocks import EMPTY, BlockPool
from imp_server.schedule.kept_blocks import KeptBlocks
from imp_server.schedule.lookup import Lookup
from imp_server.schedule.prefix import PrefixHit
from imp_server.schedule.rows import Row
from imp_server.schedule.snapshots import Snapshot, Snapshots
from imp_server.schedule.spill import Spill
from imp_server.schedule.tree import Match, PrefixTree, TreeNode


@dataclass(slots=True)
class _Restore:
    nodes: tuple[TreeNode, ...]
    n_tokens: int
    snapshot: Snapshot | None
    n_done: int = 0
    """Nodes whose blocks stand in the row's tables."""


class Restoring:
    """Owner of the jobs, one per row that waits for its prefix."""

    def __init__(
        self,
        tree: PrefixTree,
        kept: KeptBlocks,
        lookup: Lookup,
        pools: Sequence[BlockPool],
        *,
        spill: Spill | None,
        snapshots: Snapshots | None,
    ) -> None:
        self.n_tokens = 0
        self.n_cut_short = 0
        """Jobs that ended before their prefix did: a fault of the tier, or no block to restore into."""
        self._tree, self._kept, self._lookup, self._pools = tree, kept, lookup, pools
        self._spill, self._snapshots = spill, snapshots
        self._jobs: dict[Row, _Restore] = {}

    @property
    def n_jobs(self) -> int:
        return len(self._jobs)

    @property
    def n_held(self) -> int:
        """Nodes held for jobs, counted per job."""
        return sum(node.lives for job in self._jobs.values() for node in job.nodes)

    def begin(self, row: Row, hit: PrefixHit) -> None:
        """The row has adopted what the pools hold of the hit."""
        for node in hit.nodes:
            node.n_holds += 1
        self._jobs[row] = _Restore(hit.nodes, hit.n_tokens, hit.snapshot)

    def go_on(self, row: Row, budget_ms: float) -> int | None:
        """At least a block more; None while some are missing, else the tokens that the row's tables hold."""
        job = self._jobs.get(row)
        if job is None:
            return 0
        until_s = time.perf_counter() + budget_ms / 1e3
        while job.n_done < len(job.nodes):
            if not self._bring(row, job):
                return self._cut_short(row, job)
            job.n_done += 1
            if time.perf_counter() >= until_s and job.n_done < len(job.nodes):
                return None
        self.abandon(row)
        return job.n_tokens if self._has_state(row, job.snapshot) else self._clear(row)

    def abandon(self, row: Row) -> None:
        """Idempotent. What came back so far stays cached."""
        job = self._jobs.pop(row, None)
        if job is None:
            return
        for node in job.nodes:
            node.n_holds -= 1
            self._tree.offer(node)

    def _bring(self, row: Row, job: _Restore) -> bool:
        """The next node's blocks into the row's tables; False if they can't be had."""
        node, column = job.nodes[job.n_done], job.n_done
        assert row.tables is not None
        if not node.lives:
            return False
        needed = self._lookup.needed(column, job.n_tokens)
        if not node.is_resident or any(node.blocks[g] == EMPTY for g in needed):
            if not self._load(node):
                return False
            self.n_tokens += node.n_tokens
        for group in needed:
            if row.tables.columns(group)[column] == EMPTY:
                self._pools[group].share(node.blocks[group])
                row.tables.fill(group, column, node.blocks[group])
        return True

    def _load(self, node: TreeNode) -> bool:
        """All that the tier has of the node and the pools lack."""
        if self._spill is None:
            return False
        blocks = [EMPTY] * len(self._pools)
        for group in range(len(self._pools)):
            if node.blocks[group] != EMPTY or not node.stored_mask >> group & 1:
                continue
            block = self._kept.take(group)
            if block is None:
                self._give_back(blocks)
                return False
            blocks[group] = block
        if not self._spill.load(node, blocks):
            self._give_back(blocks)
            self._kept.lose_copy(node)
            return False
        for pool, block in zip(self._pools, blocks, strict=True):
            if block != EMPTY:
                pool.keep(block)
        self._kept.gain(node, blocks)
        self._give_back(blocks)
        return True

    def _give_back(self, blocks: Sequence[int]) -> None:
        for pool, block in zip(self._pools, blocks, strict=True):
            if block != EMPTY:
                pool.release(block)

    def _cut_short(self, row: Row, job: _Restore) -> int:
        """Go on with what is there: the longest part of it after which every group can resume."""
        self.n_cut_short += 1
        self.abandon(row)
        assert row.tables is not None
        there = tuple(node for node in job.nodes[: job.n_done] if node.lives)
        match = Match(there, len(there) * BLOCK_TOKENS)
        hit = self._lookup.resident_part(match, row.sampler.history[: match.n_tokens], row.reuse_group)
        row.tables.release()
        row.tables.adopt(hit.blocks)
        return hit.n_tokens if self._has_state(row, hit.snapshot) else self._clear(row)

    def _has_state(self, row: Row, snapshot: Snapshot | None) -> bool:
        return snapshot is None or (self._snapshots is not None and self._snapshots.restore(row, snapshot))

    def _clear(self, row: Row) -> int:
        """The state can't be had: the row starts from zero."""
        assert row.tables is not None and self._snapshots is not None
        self._snapshots.n_unusable += 1
        row.tables.release()
        return 0
