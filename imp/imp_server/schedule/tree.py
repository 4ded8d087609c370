"""The prefix tree: KV blocks kept for their contents, found by token ids alone.

One node per block of 16 tokens; a leaf may hold fewer (the tail of a finished row). Keys are the tokens
themselves, so a match can never give blocks of other tokens. A look-up costs one dictionary access per
block of the prompt and one bisection at its end: among sorted keys the longest common prefix stands
next to the place where the key would be.

A node is *resident* while a pool holds its blocks, *stored* while a lower tier holds a copy of them, and
always one of the two. The parent of a resident node is resident.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.schedule.ages import AgeOrder
from imp_server.schedule.tiers.record import content_hash, root_hash

TOKEN_BYTES = 4
BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES
_MOST_EMPTY_ROOTS = 1000


def key_of(ids: NDArray[np.int32]) -> bytes:
    """Token ids as big-endian bytes: sorting them sorts by token, so common prefixes are neighbours."""
    return ids.astype(">i4").tobytes()


@dataclass(slots=True, eq=False)
class TreeNode:
    """A kept block: its tokens, one block id per cache group (-1 = that group lacks it), its place in the tree."""

    key: bytes
    parent: TreeNode | None
    digest: bytes
    """Content hash of all tokens up to this block's last, and of the reuse group."""
    reuse_group: int
    blocks: list[int] = field(default_factory=list)
    children: dict[bytes, TreeNode] = field(default_factory=dict)
    order: list[bytes] = field(default_factory=list)
    """Keys of the children, sorted."""
    last_used: int = 0
    n_pins: int = 0
    lives: bool = True
    is_resident: bool = True
    stored_mask: int = 0
    """Bit g: a lower tier has the block of group g."""
    n_holds: int = 0
    """Rows that are bringing back blocks of its path: it must stay meanwhile."""
    n_resident: int = 0
    """Of the children."""
    n_stored: int = 0
    """Of the children."""

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def is_stored(self) -> bool:
        return self.stored_mask != 0

    @property
    def may_leave(self) -> bool:
        """Its blocks can be given up: no block that stays needs them."""
        return self.lives and self.is_resident and not self.n_resident

    @property
    def may_be_unstored(self) -> bool:
        """Its stored copy can be given up: no other stored copy continues it."""
        return self.lives and self.is_stored and not self.n_stored

    @property
    def n_tokens(self) -> int:
        return len(self.key) // TOKEN_BYTES

    def add(self, child: TreeNode) -> None:
        self.children[child.key] = child
        insort(self.order, child.key)

    def remove(self, child: TreeNode) -> None:
        del self.children[child.key]
        del self.order[bisect_left(self.order, child.key)]

    def path(self) -> Iterator[TreeNode]:
        """This node and its ancestors, without the root."""
        node: TreeNode | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes from the root down; the last one may be covered in part. `n_tokens` counts all matched tokens."""

    nodes: tuple[TreeNode, ...]
    n_tokens: int


class PrefixTree:
    """Owner of the nodes and of their order of use. Knows nothing of pools: whoever holds it keeps and drops blocks."""

    def __init__(self) -> None:
        self._roots: dict[int, TreeNode] = {}
        self._clock = count(1)
        self._resident: AgeOrder[TreeNode] = AgeOrder(lambda node: node.may_leave)
        self._stored: AgeOrder[TreeNode] = AgeOrder(lambda node: node.may_be_unstored)
        self.n_nodes = 0
        self.n_resident = 0

    def root(self, reuse_group: int) -> TreeNode:
        """Prefixes of different groups (Row.reuse_group) share nothing."""
        found = self._roots.get(reuse_group)
        if found is None:
            found = self._roots[reuse_group] = TreeNode(b"", None, root_hash(reuse_group), reuse_group)
        return found

    def forget_empty_roots(self, but: Collection[TreeNode]) -> None:
        """Groups come and go with what clients choose (salts): those of which nothing is known take no memory."""
        if len(self._roots) > _MOST_EMPTY_ROOTS:
            self._roots = {group: node for group, node in self._roots.items() if node.children or node in but}

    def match(self, key: bytes, reuse_group: int, n_tokens: int) -> Match:
        """The longest known prefix of `key`, at most `n_tokens` tokens of it. Marks what it finds as used."""
        if reuse_group not in self._roots:
            return Match((), 0)
        node, nodes, at = self._roots[reuse_group], [], 0
        end = n_tokens * TOKEN_BYTES
        while at + BLOCK_BYTES <= end:
            child = node.children.get(key[at : at + BLOCK_BYTES])
            if child is None:
                break
            nodes.append(child)
            node, at = child, at + BLOCK_BYTES
        rest = key[at : min(at + BLOCK_BYTES, end)]
        best, n_best = _longest_common(node, rest)
        if best is not None and n_best:
            nodes.append(best)
            at += n_best * TOKEN_BYTES
        self.touch(nodes)
        return Match(tuple(nodes), at // TOKEN_BYTES)

    def insert(self, parent: TreeNode, key: bytes, blocks: list[int]) -> tuple[TreeNode, bool]:
        """The child of `parent` for the tokens `key`, and whether it is new (its blocks then are `blocks`).

        A new full block makes partial leaves that begin it useless; `covered` names them.
        """
        known = parent.children.get(key)
        if known is not None:
            self.touch([known])
            return known, False
        node = self._add(parent, key, blocks)
        node.is_resident = True
        parent.n_resident += 1
        self.n_resident += 1
        self.touch([node])
        return node, True

    def insert_stored(self, parent: TreeNode, key: bytes, blocks: list[int], mask: int) -> TreeNode:
        """A node whose blocks only a lower tier has. The caller knows that it isn't there yet."""
        node = self._add(parent, key, list(blocks))
        self.store(node, mask)
        self.touch([node])
        return node

    def _add(self, parent: TreeNode, key: bytes, blocks: list[int]) -> TreeNode:
        node = TreeNode(key, parent, content_hash(parent.digest, key), parent.reuse_group, blocks, is_resident=False)
        parent.add(node)
        self.n_nodes += 1
        return node

    def covered(self, node: TreeNode) -> list[TreeNode]:
        """Unpinned partial siblings of `node` whose tokens it begins with: it serves every match that they do."""
        if node.parent is None:
            return []
        found = []
        for size in range(TOKEN_BYTES, len(node.key), TOKEN_BYTES):
            sibling = node.parent.children.get(node.key[:size])
            if sibling is not None and not (sibling.n_pins or sibling.n_holds or sibling.children):
                found.append(sibling)
        return found

    # --- where a node's contents are ------------------------------------------------------------

    def demote(self, node: TreeNode) -> None:
        """The pools no longer have it; a lower tier does."""
        assert node.may_leave and node.is_stored and node.parent is not None
        node.is_resident = False
        node.parent.n_resident -= 1
        self.n_resident -= 1
        self._resident.offer(node.parent)

    def promote(self, node: TreeNode, blocks: list[int]) -> None:
        """The pools have it again. Its parent must be resident."""
        assert not node.is_resident and node.parent is not None
        node.blocks, node.is_resident = blocks, True
        node.parent.n_resident += 1
        self.n_resident += 1
        self._resident.offer(node)

    def store(self, node: TreeNode, mask: int) -> None:
        """A lower tier has a copy of the cache groups in `mask` (bit g = group g)."""
        assert mask and not node.is_stored and node.parent is not None
        node.stored_mask = mask
        node.parent.n_stored += 1
        self._stored.offer(node)

    def unstore(self, node: TreeNode) -> None:
        """The lower tier's copy is gone. Whoever isn't resident either must be removed."""
        assert node.is_stored and node.parent is not None
        node.stored_mask = 0
        node.parent.n_stored -= 1
        self._stored.offer(node.parent)

    def remove(self, node: TreeNode) -> None:
        """Take a node without children out of the tree."""
        if node.children or node.parent is None:
            raise RuntimeError("only leaves can be removed")
        if node.is_stored:
            self.unstore(node)
        node.parent.remove(node)
        node.lives = False
        self.n_nodes -= 1
        if node.is_resident:
            node.parent.n_resident -= 1
            self.n_resident -= 1
        if node.parent.parent is not None:
            self._resident.offer(node.parent)

    # --- order of use ---------------------------------------------------------------------------

    def leaves_by_age(self) -> Iterator[TreeNode]:
        """Unpinned nodes that may leave, least recently used first. What the caller leaves alone is offered again."""
        return self._resident.oldest_first()

    def stored_by_age(self) -> Iterator[TreeNode]:
        """Unpinned nodes whose stored copy may be given up, least recently used first."""
        return self._stored.oldest_first()

    def touch(self, nodes: list[TreeNode]) -> None:
        now = next(self._clock)
        for node in nodes:
            node.last_used = now
            if not node.n_resident:
                self._resident.offer(node)
            if node.stored_mask and not node.n_stored:
                self._stored.offer(node)

    def offer(self, node: TreeNode) -> None:
        """The node may be given up again (its pin is gone)."""
        self._resident.offer(node)
        self._stored.offer(node)

    def nodes(self) -> Iterator[TreeNode]:
        """All nodes, parents before children."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def serves(self, parent: TreeNode, key: bytes) -> bool:
        """Some child of `parent` begins with all of `key`."""
        return _longest_common(parent, key)[1] * TOKEN_BYTES == len(key)

    def check(self) -> None:
        """Counts and states agree. Raises AssertionError."""
        nodes = list(self.nodes())
        assert len(nodes) == self.n_nodes, "a node is lost"
        assert sum(node.is_resident for node in nodes) == self.n_resident
        for node in [*self._roots.values(), *nodes]:
            assert node.n_resident == sum(child.is_resident for child in node.children.values())
            assert node.n_stored == sum(child.is_stored for child in node.children.values())
        for node in nodes:
            assert node.lives and (node.is_resident or node.is_stored), "a node whose contents nobody has"
            assert node.parent is not None and (node.parent.is_resident or not node.is_resident), "a hole in a path"
            assert node.digest == content_hash(node.parent.digest, node.key)


def _longest_common(node: TreeNode, rest: bytes) -> tuple[TreeNode | None, int]:
    """The child that shares most leading tokens with `rest`, and how many."""
    best, n_best = None, 0
    place = bisect_left(node.order, rest)
    for key in node.order[max(0, place - 1) : place + 1]:
        n_common = _common_tokens(key, rest)
        if n_common > n_best:
            best, n_best = node.children[key], n_common
    return best, n_best


def _common_tokens(a: bytes, b: bytes) -> int:
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size // TOKEN_BYTES
    x, y = np.frombuffer(a[:size], ">i4"), np.frombuffer(b[:size], ">i4")
    return int(np.argmax(x != y))
