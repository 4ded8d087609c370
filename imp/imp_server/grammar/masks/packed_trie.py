"""A vocabulary trie as the native walker reads it (kernels/cpu/grammar/walk.cpp): breadth first.

Tokens with a quote stand in a second block, walked after the first, which knows for each node behind a quote the tokens
that from there on are plain text: where a free text begins they are set at once, and only the others are walked.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.machines import abi
from imp_server.grammar.masks.plain_tokens import plain_length
from imp_server.grammar.masks.trie import TokenTrie

QUOTE = 0x22
_COMMON = b'"{}[],: \n\t\r-.0123456789'
_ORDER = np.full(256, 255, np.int64)
_ORDER[list(_COMMON)] = np.arange(len(_COMMON))
"""Of siblings: what most walks go through comes first, so that it lies close together."""


class PackedTrie:
    """Owner of one trie's arrays."""

    def __init__(self, trie: TokenTrie, n_unquoted: int | None = None) -> None:
        """`n_unquoted`: so many tokens of the trie come first and have no quote (None: all stand in one block)."""
        n_nodes = len(trie.byte)
        split = n_nodes if n_unquoted is None else int(np.searchsorted(trie.first[:-1], n_unquoted))
        self.blocks = [_Block(trie, 0, split, None)]
        if split < n_nodes:
            self.blocks.append(_Block(trie, split, n_nodes, _Texts(trie, split)))
            self.blocks[0].struct.next = ctypes.addressof(self.blocks[1].struct)
        self._kept = trie
        self.n_bytes = sum(block.n_bytes for block in self.blocks)
        self.n_levels = max(block.struct.max_depth for block in self.blocks) + 1
        """Of the deepest block, and one more."""
        self.address = ctypes.addressof(self.blocks[0].struct)


class _Texts:
    """What a free text that begins at the last quote before a node does to the tokens below it."""

    def __init__(self, trie: TokenTrie, begin: int) -> None:
        """For the nodes from `begin` on; all arrays count from there."""
        n_tokens = len(trie.ids)
        quotes, keys = [], []
        path: list[int] = []
        text = bytearray()
        for node, (byte, depth) in enumerate(zip(trie.byte[begin:].tolist(), trie.depth[begin:].tolist(), strict=True)):
            del path[depth - 1 :], text[depth - 1 :]
            path.append(node if byte == QUOTE else path[-1] if path else -1)
            text.append(byte)
            quotes.append(path[-1])
            if path[-1] < 0 or trie.first[begin + node] == trie.first[begin + node + 1]:
                continue
            rest = bytes(text[path.index(path[-1]) + 1 :])
            if not rest or plain_length(rest) is not None:
                keys += [path[-1] * n_tokens + i for i in range(trie.first[begin + node], trie.first[begin + node + 1])]
        quote, key = np.array(quotes, np.int64), np.sort(np.array(keys, np.int64))
        self.staying = trie.ids[key % n_tokens]
        last = np.arange(begin, len(trie.byte)) + trie.skip[begin:]
        self.begin = np.searchsorted(key, quote * n_tokens + trie.first[begin:-1]).astype(np.int32)
        self.end = np.searchsorted(key, quote * n_tokens + trie.first[last]).astype(np.int32)
        self.begin[quote < 0] = self.end[quote < 0] = 0
        n_below = trie.first[last] - trie.first[begin:-1]
        self.is_mixed = (trie.byte[begin:] == QUOTE) | (self.end - self.begin < n_below)


class _Block:
    """Nodes [begin, end) of a trie, which are whole subtrees."""

    def __init__(self, trie: TokenTrie, begin: int, end: int, texts: _Texts | None) -> None:
        number, levels, parent_of = _breadth_first(trie, begin, end, None if texts is None else texts.is_mixed)
        n_children = np.zeros(len(number) + 1, np.int32)
        n_children[:-1] = np.bincount(parent_of, minlength=len(number))[: len(number)]
        n_ids = np.append(np.diff(trie.first[begin : end + 1])[number - begin], 0)
        first_id = (np.cumsum(n_ids) - n_ids).astype(np.int32)
        first_child = (levels[0] + np.cumsum(n_children) - n_children).astype(np.int32)
        links = np.stack([first_child, first_id], axis=1)
        at = np.repeat(trie.first[number] - first_id[:-1], n_ids[:-1]) + np.arange(first_id[-1])
        arrays: list[NDArray[np.generic]] = [trie.byte[number], links, trie.ids[at], number]
        if texts is not None:
            here = number - begin
            mixed = np.bincount(parent_of, weights=texts.is_mixed[here[levels[0] :]], minlength=len(number))
            mixed_end = first_child[:-1] + mixed[: len(number)].astype(np.int32)
            arrays += [
                np.stack([mixed_end, texts.begin[here], texts.end[here]], axis=1).astype(np.int32),
                texts.staying,
            ]
        self.arrays = arrays
        self.n_bytes = sum(array.nbytes for array in arrays)
        addresses: list[int | None] = [array.ctypes.data for array in arrays]
        addresses += [None] * (6 - len(addresses))
        self.struct = abi.Trie(*addresses, None, int(levels[0]), int(trie.depth[begin:end].max(initial=0)))


def _breadth_first(
    trie: TokenTrie, begin: int, end: int, is_mixed: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int32], list[int], NDArray[np.int64]]:
    """(nodes in the new order, size of each level, new number of the parent of each that has one)."""
    by_depth = (begin + np.argsort(trie.depth[begin:end], kind="stable")).astype(np.int32)
    bounds = np.searchsorted(trie.depth[by_depth], np.arange(1, int(trie.depth[begin:end].max(initial=0)) + 2))
    number, parents_of, sizes = np.empty_like(by_depth), [], [0]
    above = last = np.zeros(0, np.int32)
    for depth, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        nodes = by_depth[low:high]
        place = np.zeros(len(nodes), np.int64)
        if depth:
            # depth first, a node's parent is the nearest one before it that is less deep
            place = np.argsort(last, kind="stable")[np.searchsorted(above, nodes) - 1]
        keys: list[NDArray[Any]] = [trie.byte[nodes], _ORDER[trie.byte[nodes]]]
        if is_mixed is not None:
            keys.append(~is_mixed[nodes - begin])
        order = np.lexsort((*keys, place))
        number[low:high] = last = nodes[order]
        above = nodes
        if depth:
            parents_of.append(int(bounds[depth - 1]) + place[order])
        sizes[depth:] = [high - low]
    return number, sizes, np.concatenate(parents_of) if parents_of else np.zeros(0, np.int64)
