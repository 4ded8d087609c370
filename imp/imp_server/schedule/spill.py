"""What the prefix tree keeps below the pools: which nodes a tier stores, how they get there and come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from imp_server.schedule.blocks import EMPTY
from imp_server.schedule.tiers.record import BlockRecord, BlockStore, content_hash, is_lasting
from imp_server.schedule.tiers.tier import KnownEntry, Tier
from imp_server.schedule.tree import BLOCK_BYTES, PrefixTree, TreeNode

_MOST_UNSAVED = 1 << 16
"""New nodes remembered for saving; beyond that the oldest are saved only when they are evicted."""


class Spill:
    """Owner of the tier's contents and of what is yet to be saved for the next process."""

    def __init__(self, tree: PrefixTree, tier: Tier, store: BlockStore, block_bytes: Sequence[int]) -> None:
        """`block_bytes`: per cache group, as the store reads them."""
        self.n_evicted = 0
        self._tree, self._tier, self._store = tree, tier, store
        self._block_bytes = tuple(block_bytes)
        self._nothing = [EMPTY] * len(self._block_bytes)
        self._unsaved: deque[TreeNode] = deque(maxlen=_MOST_UNSAVED)
        self._adopt_known()

    def _adopt_known(self) -> None:
        """Nodes for what an earlier process left; entries whose prefix is gone are dropped."""
        by_digest: dict[bytes, TreeNode] = {}
        waiting: dict[bytes, list[KnownEntry]] = {}
        for entry in self._tier.known():
            root = self._tree.root(entry.reuse_group)
            by_digest[root.digest] = root
            waiting.setdefault(entry.parent, []).append(entry)
        ready = list(by_digest)
        while ready:
            parent = by_digest[ready.pop()]
            for entry in waiting.pop(parent.digest, ()):
                if self._is_sound(entry, parent):
                    by_digest[entry.digest] = self._tree.insert_stored(parent, entry.key, self._nothing, entry.mask)
                    ready.append(entry.digest)
                else:
                    self._tier.drop(entry.digest)
        for orphans in waiting.values():
            for entry in orphans:
                self._tier.drop(entry.digest)

    def _is_sound(self, entry: KnownEntry, parent: TreeNode) -> bool:
        true = entry.digest == content_hash(parent.digest, entry.key) and entry.key not in parent.children
        return true and 0 < len(entry.key) <= BLOCK_BYTES and not entry.mask >> len(self._block_bytes)

    # --- down -----------------------------------------------------------------------------------

    def store(self, node: TreeNode) -> bool:
        """A tier has the node's contents after this; False if it can't be had. The pools must hold them."""
        if node.is_stored:
            return True
        groups = [g for g, block in enumerate(node.blocks) if block != EMPTY]
        if not groups:
            return False
        n_payload = sum(self._block_bytes[g] for g in groups)
        if not self._tier.takes(n_payload):
            self._tier.counts.refused += 1
            return False
        if not self._make_room(node, n_payload):
            return False
        assert node.parent is not None
        payload = b"".join(self._store.read_blocks(g, np.array([node.blocks[g]], dtype=np.int32)) for g in groups)
        mask = sum(1 << g for g in groups)
        record = BlockRecord(node.digest, node.parent.digest, node.key, mask, payload, node.reuse_group)
        if not self._tier.put(record):
            return False
        self._tree.store(node, mask)
        return True

    def _make_room(self, node: TreeNode, n_payload: int) -> bool:
        """By giving up what was used longer ago than the node."""
        if self._tier.has_room(n_payload):
            return True
        for oldest in self._tree.stored_by_age():
            if oldest.last_used > node.last_used:
                return False
            if oldest is node.parent:
                continue
            self.n_evicted += 1
            self.unstore(oldest)
            if self._tier.has_room(n_payload):
                return True
        return False

    def unstore(self, node: TreeNode) -> None:
        """Give up the tier's copy; a node that had nothing else leaves the tree."""
        self._tier.drop(node.digest)
        if node.is_resident:
            self._tree.unstore(node)
        else:
            self._tree.remove(node)  # no child is stored, so none is there

    def forget(self, node: TreeNode) -> None:
        """Give up the tier's copy alone; the caller sees to the node."""
        self._tier.drop(node.digest)
        self._tree.unstore(node)

    # --- up -------------------------------------------------------------------------------------

    def load(self, node: TreeNode, blocks: Sequence[int]) -> bool:
        """Fill `blocks` (one per cache group, EMPTY = not wanted) with the node's contents.

        False: the entry can't be read or lacks a group; it is unusable from now on, and so is what continues it.
        """
        assert node.parent is not None
        record = self._tier.get(node.digest, node.parent.digest, node.key)
        if record is None or not self._fits(record):
            return False
        at = 0
        for group, block in enumerate(blocks):
            has_it = record.mask >> group & 1
            if block != EMPTY:
                if not has_it:
                    return False
                data = record.payload[at : at + self._block_bytes[group]]
                self._store.write_blocks(group, np.array([block], dtype=np.int32), data)
            at += has_it * self._block_bytes[group]
        return True

    def _fits(self, record: BlockRecord) -> bool:
        sizes = [size for group, size in enumerate(self._block_bytes) if record.mask >> group & 1]
        if record.mask >> len(self._block_bytes) or sum(sizes) != len(record.payload):
            self._tier.counts.faults += 1
            return False
        return True

    # --- saving for the next process ------------------------------------------------------------

    def note_new(self, node: TreeNode) -> None:
        """A node that the next process shall find, too."""
        if self._tier.persists and is_lasting(node.reuse_group):
            self._unsaved.append(node)

    def save_some(self, n_blocks: int) -> bool:
        """Store some of the new nodes, those that still live; True if there are more."""
        while self._unsaved and n_blocks > 0:
            node = self._unsaved.popleft()
            if node.lives and node.is_resident and not node.is_stored:
                self.store(node)
                n_blocks -= 1
        return bool(self._unsaved)

    def close(self) -> None:
        self._tier.close()

    def counters(self) -> dict[str, float]:
        counts = self._tier.counts
        return {
            "kv_host_spill_bytes": float(self._tier.n_bytes),
            "kv_host_spill_blocks": float(self._tier.n_entries),
            "kv_host_spill_stored_total": float(counts.stored),
            "kv_host_spill_hits_total": float(counts.hits),
            "kv_host_spill_misses_total": float(counts.misses),
            "kv_host_spill_evictions_total": float(self.n_evicted),
            "kv_host_spill_faults_total": float(counts.faults),
            "kv_host_spill_refused_total": float(counts.refused),
        }

    def check(self) -> None:
        """The tier has what the tree says. Raises AssertionError."""
        n_stored = sum(node.is_stored for node in self._tree.nodes())
        assert n_stored == self._tier.n_entries, "the tier and the tree disagree on what is stored"
