"""The blocks that the prefix tree keeps in the pools: how they are kept and given up, and what a tier gets of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from imp_server.models.architecture import CacheGroup
from imp_server.schedule.blocks import EMPTY, BlockPool
from imp_server.schedule.pins import Pins
from imp_server.schedule.spill import Spill
from imp_server.schedule.tree import PrefixTree, TreeNode

_STRIPPED_AT_ONCE = 32
"""Blocks that one walk along the rows' paths frees, if there are as many."""


class KeptBlocks:
    """Owner of which blocks are kept, and of their nodes' coming and going."""

    def __init__(
        self,
        tree: PrefixTree,
        groups: Sequence[CacheGroup],
        pools: Sequence[BlockPool],
        pins: Pins,
        spill: Spill | None,
    ) -> None:
        self.n_evicted = 0
        self.n_evicted_tokens = 0
        self._tree, self._groups, self._pools, self._pins, self._spill = tree, groups, pools, pins, spill

    def keep(self, parent: TreeNode, key: bytes, blocks: list[int]) -> TreeNode | None:
        """The child of `parent` for these tokens; `blocks`: a row's, per cache group.

        None: a block doesn't hold the tokens yet, since a copy into it was planned and has not run.
        """
        if any(block != EMPTY and pool.is_unsettled(block) for pool, block in zip(self._pools, blocks, strict=True)):
            return None
        node, is_new = self._tree.insert(parent, key, blocks)
        if not is_new:
            self._attach(node, blocks)
            return node
        for pool, block in zip(self._pools, blocks, strict=True):
            if block != EMPTY:
                pool.keep(block)
        for shorter in self._tree.covered(node):
            self.forget(shorter)
        if self._spill is not None:
            self._spill.note_new(node)
        return node

    def _attach(self, node: TreeNode, blocks: list[int]) -> None:
        """A row has computed again what the pools lacked."""
        if node.is_resident and EMPTY not in node.blocks:
            return
        gained = [EMPTY] * len(blocks)
        for group, (pool, block) in enumerate(zip(self._pools, blocks, strict=True)):
            if node.blocks[group] == EMPTY and block != EMPTY and not pool.is_kept(block):
                pool.keep(block)
                gained[group] = block
        self.gain(node, gained)

    def gain(self, node: TreeNode, blocks: Sequence[int]) -> None:
        """The pools hold more of the node: `blocks`, EMPTY where nothing is new. They are kept already."""
        merged = [new if new != EMPTY else old for old, new in zip(node.blocks, blocks, strict=True)]
        if node.is_resident:
            node.blocks = merged
        else:
            self._tree.promote(node, merged)

    def take(self, group: int) -> int | None:
        """A block for writing; cached contents are given up if nothing is free."""
        block = self._pools[group].take()
        if block is None and self.reclaim(group, 1):
            block = self._pools[group].take()
        return block

    def reclaim(self, group: int, n_blocks: int) -> int:
        """Give up the least recently used leaves that free a block of the group; how many became free.

        Pins yield, the oldest first, before a request has to.
        """
        if self._groups[group].kind == "state":
            return 0  # snapshots live elsewhere: no node holds a slot
        n_freed = self._reclaim_unpinned(group, n_blocks)
        while n_freed < n_blocks and len(self._pins):
            self._pins.release_oldest()
            n_freed += self._reclaim_unpinned(group, n_blocks - n_freed)
        return n_freed if n_freed >= n_blocks else n_freed + self._strip(group, n_blocks - n_freed)

    def _reclaim_unpinned(self, group: int, n_blocks: int) -> int:
        n_freed = 0
        pool = self._pools[group]
        for leaf in self._tree.leaves_by_age():
            if n_freed >= n_blocks:
                break
            if leaf.blocks[group] == EMPTY or pool.is_held(leaf.blocks[group]):
                if all(block == EMPTY for block in leaf.blocks) and (leaf.is_stored or not leaf.children):
                    self._leave(leaf)  # stripped: it would keep its parent from being a leaf for good
                continue
            self._leave(leaf)
            self.n_evicted += 1
            self.n_evicted_tokens += leaf.n_tokens
            n_freed += 1
        return n_freed

    def _strip(self, group: int, n_blocks: int) -> int:
        """Take their blocks of a window group from nodes that are no leaves: a row that is long past them holds what
        continues them, so that they would stay although nobody sees them."""
        if not self._groups[group].window:
            return 0
        n_freed, pool = 0, self._pools[group]
        for node in self._before_leaves():
            block = node.blocks[group]
            if block == EMPTY or pool.is_held(block) or node.n_pins or node.n_holds:
                continue
            node.blocks = [EMPTY if g == group else other for g, other in enumerate(node.blocks)]
            pool.drop(block)
            self.n_evicted += 1
            self.n_evicted_tokens += node.n_tokens
            n_freed += 1
            if n_freed >= max(n_blocks, _STRIPPED_AT_ONCE):
                break
        return n_freed

    def _before_leaves(self) -> Iterator[TreeNode]:
        """The paths to the leaves that are left, from the root; once all that could go has gone these are the rows'."""
        seen: set[TreeNode] = set()
        for leaf in list(self._tree.leaves_by_age()):
            path = list(takewhile(lambda node: node not in seen, leaf.path()))
            seen.update(path)
            yield from reversed(path)

    def _leave(self, node: TreeNode) -> None:
        """Give up its blocks. What a tier has stays known, what none has is forgotten."""
        if self._spill is None or not self._spill.store(node):
            self.forget(node)
            return
        blocks, node.blocks = node.blocks, [EMPTY] * len(self._groups)
        self._tree.demote(node)
        self._drop(blocks)

    def forget(self, node: TreeNode) -> None:
        """The node and what continues it, all of which at most a tier has."""
        family = [node]
        for each in family:
            family.extend(each.children.values())
        for each in reversed(family):
            if self._spill is not None and each.is_stored:
                self._spill.forget(each)
            self._tree.remove(each)
            self._drop(each.blocks)

    def lose_copy(self, node: TreeNode) -> None:
        """The tier's copy can't be read."""
        if not node.is_resident:
            self.forget(node)
        elif self._spill is not None and node.is_stored:
            self._spill.forget(node)

    def clear(self) -> None:
        """Forget everything that no pin holds."""
        while leaves := list(self._tree.leaves_by_age()):
            for leaf in leaves:
                self.forget(leaf)
        for copy in iter(lambda: next(self._tree.stored_by_age(), None), None):
            self.lose_copy(copy)

    def _drop(self, blocks: Sequence[int]) -> None:
        for pool, block in zip(self._pools, blocks, strict=True):
            if block != EMPTY:
                pool.drop(block)

    def check(self) -> None:
        """The kept blocks are those of the nodes, each of one node. Raises AssertionError."""
        self._tree.check()
        nodes = list(self._tree.nodes())
        for group, pool in enumerate(self._pools):
            blocks = [node.blocks[group] for node in nodes if node.blocks[group] != EMPTY]
            assert len(blocks) == len(set(blocks)), "two nodes hold one block"
            assert set(blocks) == pool.kept, "a kept block is nobody's, or a node's block isn't kept"
        assert all(n.is_resident or all(b == EMPTY for b in n.blocks) for n in nodes), "an evicted node has blocks"
        assert all(node.is_resident for node in nodes if node.n_pins), "a pinned block left"
        assert self._pins.n_nodes == sum(node.n_pins > 0 for node in nodes) <= self._pins.budget
        if self._spill is not None:
            self._spill.check()
