"""The prefix tree: KV blocks kept for their contents, found by token ids alone.

One node per block of 16 tokens; a leaf may hold fewer (the tail of a finished row). Keys are the tokens
themselves, so a match can never give blocks of other tokens. A look-up costs one dictionary access per
block of the prompt and one bisection at its end: among sorted keys the longest common prefix stands
next to the place where the key would be.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from imp_server.backends.base import BLOCK_TOKENS

EMPTY = -1
TOKEN_BYTES = 4
BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES


def key_of(ids: NDArray[np.int32]) -> bytes:
    """Token ids as big-endian bytes: sorting them sorts by token, so common prefixes are neighbours."""
    return ids.astype(">i4").tobytes()


@dataclass(slots=True, eq=False)
class Node:
    """A kept block: its tokens, one block id per cache group (-1 = that group lacks it), its place in the tree."""

    key: bytes
    parent: Node | None
    blocks: list[int] = field(default_factory=list)
    children: dict[bytes, Node] = field(default_factory=dict)
    order: list[bytes] = field(default_factory=list)
    """Keys of the children, sorted."""
    last_used: int = 0
    n_pins: int = 0
    lives: bool = True

    @property
    def n_tokens(self) -> int:
        return len(self.key) // TOKEN_BYTES

    def add(self, child: Node) -> None:
        self.children[child.key] = child
        insort(self.order, child.key)

    def remove(self, child: Node) -> None:
        del self.children[child.key]
        del self.order[bisect_left(self.order, child.key)]

    def path(self) -> Iterator[Node]:
        """This node and its ancestors, without the root."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes from the root down; the last one may be covered in part. `n_tokens` counts all matched tokens."""

    nodes: tuple[Node, ...]
    n_tokens: int


class PrefixTree:
    """Owner of the nodes and of their order of use. Knows nothing of pools: whoever holds it keeps and drops blocks."""

    def __init__(self) -> None:
        self._roots: dict[int, Node] = {}
        self._clock = count(1)
        self._leaves: list[tuple[int, int, Node]] = []
        self._tie = count()
        self.n_nodes = 0

    def root(self, adapter: int) -> Node:
        """Prefixes of different adapters share nothing."""
        return self._roots.setdefault(adapter, Node(b"", None))

    def match(self, key: bytes, adapter: int, n_tokens: int) -> Match:
        """The longest known prefix of `key`, at most `n_tokens` tokens of it. Marks what it finds as used."""
        node, nodes, at = self.root(adapter), [], 0
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
        self._touch(nodes)
        return Match(tuple(nodes), at // TOKEN_BYTES)

    def insert(self, parent: Node, key: bytes, blocks: list[int]) -> tuple[Node, bool]:
        """The child of `parent` for the tokens `key`, and whether it is new (its blocks then are `blocks`).

        A new full block makes partial leaves that begin it useless; `covered` names them.
        """
        known = parent.children.get(key)
        if known is not None:
            self._touch([known])
            return known, False
        node = Node(key, parent, blocks)
        parent.add(node)
        self.n_nodes += 1
        self._touch([node])
        return node, True

    def covered(self, node: Node) -> list[Node]:
        """Unpinned partial siblings of `node` whose tokens it begins with: it serves every match that they do."""
        if node.parent is None:
            return []
        found = []
        for size in range(TOKEN_BYTES, len(node.key), TOKEN_BYTES):
            sibling = node.parent.children.get(node.key[:size])
            if sibling is not None and not sibling.n_pins and not sibling.children:
                found.append(sibling)
        return found

    def remove(self, node: Node) -> None:
        """Take a leaf out of the tree."""
        if node.children or node.parent is None:
            raise RuntimeError("only leaves can be removed")
        node.parent.remove(node)
        node.lives = False
        self.n_nodes -= 1
        if node.parent.parent is not None and not node.parent.children:
            self._offer(node.parent)

    def leaves_by_age(self) -> Iterator[Node]:
        """Unpinned leaves, least recently used first. Leaves that the caller doesn't remove are offered again."""
        passed: list[Node] = []
        try:
            while self._leaves:
                used, _, node = heapq.heappop(self._leaves)
                if not node.lives or node.children or used != node.last_used:
                    continue
                passed.append(node)
                if not node.n_pins:
                    yield node
        finally:
            for node in passed:
                if node.lives:
                    self._offer(node)

    def nodes(self) -> Iterator[Node]:
        """All nodes, parents before children."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _touch(self, nodes: list[Node]) -> None:
        now = next(self._clock)
        for node in nodes:
            node.last_used = now
        if nodes and not nodes[-1].children:
            self._offer(nodes[-1])

    def serves(self, parent: Node, key: bytes) -> bool:
        """Some child of `parent` begins with all of `key`."""
        return _longest_common(parent, key)[1] * TOKEN_BYTES == len(key)

    def offer(self, node: Node) -> None:
        """The node may be given up again (its pin is gone)."""
        if node.lives and not node.children:
            self._offer(node)

    def _offer(self, node: Node) -> None:
        heapq.heappush(self._leaves, (node.last_used, next(self._tie), node))


def _longest_common(node: Node, rest: bytes) -> tuple[Node | None, int]:
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
