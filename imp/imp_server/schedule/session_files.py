"""Prefixes of the tree in files of their own, each of which is a tier with the blocks of one text.

All is done in pieces, so that an engine can run steps between them: each method is an iterator over tokens done so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from imp_server.models.architecture import CacheGroup
from imp_server.schedule.blocks import EMPTY, BlockPool
from imp_server.schedule.kept_blocks import KeptBlocks
from imp_server.schedule.tiers.record import BlockRecord, BlockStore, content_hash
from imp_server.schedule.tiers.tier import KnownEntry, Tier
from imp_server.schedule.tree import BLOCK_BYTES, PrefixTree, TreeNode, key_of

Ids = NDArray[np.int32]


def ids_of(key: bytes) -> Ids:
    return np.frombuffer(key, dtype=">i4").astype(np.int32)


class SessionFiles:
    """Moves nodes between the tree's pools and a tier of one text. Owns nothing."""

    def __init__(
        self,
        tree: PrefixTree,
        kept: KeptBlocks,
        groups: Sequence[CacheGroup],
        pools: Sequence[BlockPool],
        store: BlockStore,
        block_bytes: Sequence[int],
    ) -> None:
        self._tree, self._kept, self._store = tree, kept, store
        self._groups, self._pools, self._block_bytes = tuple(groups), list(pools), tuple(block_bytes)

    def save(self, ids: Ids, reuse_group: int, tier: Tier) -> Iterator[int]:
        """What the pools hold of this text, from its beginning as far as there is no hole."""
        match, n_tokens = self._tree.match(key_of(ids), reuse_group, len(ids)), 0
        for node in match.nodes:
            if not (node.lives and node.is_resident) or not tier.put(self._record(node)):
                return
            n_tokens = min(n_tokens + node.n_tokens, match.n_tokens)
            yield n_tokens

    def _record(self, node: TreeNode) -> BlockRecord:
        groups = [g for g, block in enumerate(node.blocks) if block != EMPTY]
        payload = b"".join(self._store.read_blocks(g, np.array([node.blocks[g]], dtype=np.int32)) for g in groups)
        assert node.parent is not None
        mask = sum(1 << g for g in groups)
        return BlockRecord(node.digest, node.parent.digest, node.key, mask, payload, node.reuse_group)

    def restore(self, tier: Tier, key: list[bytes]) -> Iterator[int]:
        """Takes the file's text into the pools, as far as they have room; `key` grows by its tokens, block by block."""
        waiting: dict[bytes, KnownEntry] = {entry.parent: entry for entry in tier.known()}
        groups = {entry.reuse_group for entry in waiting.values()}
        node = self._tree.root(groups.pop()) if len(groups) == 1 else None
        n_tokens = 0
        while node is not None and (entry := waiting.pop(node.digest, None)) is not None:
            node = self._taken_in(tier, entry, node)
            if node is None:
                return
            key.append(node.key)
            n_tokens += node.n_tokens
            yield n_tokens
            if not (node.lives and node.is_resident):
                return

    def _taken_in(self, tier: Tier, entry: KnownEntry, parent: TreeNode) -> TreeNode | None:
        """The node with the entry's contents; None if it isn't sound, or there is no room."""
        known = parent.children.get(entry.key)
        if known is not None and known.is_resident and EMPTY not in known.blocks:
            self._tree.touch([known])
            return known
        record = tier.get(entry.digest, entry.parent, entry.key)
        if record is None or not self._is_sound(record):
            return None
        blocks = self._filled(record)
        if blocks is None:
            return None
        # where the pools are full, what made room for it may have been its parent
        is_there = parent.parent is None or (parent.lives and parent.is_resident)
        node = self._kept.keep(parent, record.key, blocks) if is_there else None
        self._release(blocks)
        return node

    def _is_sound(self, record: BlockRecord) -> bool:
        """Made for these groups, and for the tokens that it says."""
        sizes = [size for group, size in enumerate(self._block_bytes) if record.mask >> group & 1]
        is_whole = sum(sizes) == len(record.payload) and not record.mask >> len(self._block_bytes)
        return (
            is_whole and 0 < len(record.key) <= BLOCK_BYTES and record.digest == content_hash(record.parent, record.key)
        )

    def _filled(self, record: BlockRecord) -> list[int] | None:
        """Blocks of the pools with the record's contents, held by us; None if there is no room."""
        blocks, at = [EMPTY] * len(self._groups), 0
        for group, size in enumerate(self._block_bytes):
            if not record.mask >> group & 1:
                continue
            block = self._kept.take(group)
            if block is None:
                self._release(blocks)
                return None
            blocks[group] = block
            self._store.write_blocks(group, np.array([block], dtype=np.int32), record.payload[at : at + size])
            at += size
        return blocks

    def _release(self, blocks: Sequence[int]) -> None:
        for pool, block in zip(self._pools, blocks, strict=True):
            if block != EMPTY:
                pool.release(block)

    def erase(self, ids: Ids, reuse_group: int) -> int:
        """Forgets what is kept of this text and of no other one; how many tokens that were."""
        n_tokens = 0
        for node in reversed(self._tree.match(key_of(ids), reuse_group, len(ids)).nodes):
            is_used = any(
                block != EMPTY and pool.is_held(block) for pool, block in zip(self._pools, node.blocks, strict=True)
            )
            if node.children or node.n_pins or node.n_holds or is_used:
                break
            n_tokens += node.n_tokens
            self._kept.forget(node)
        return n_tokens
