"""The walk of a vocabulary trie over the tables: the plain twin of the native walker (kernels/cpu/grammar)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.tables import ASK, DEAD, FIRST_OP, POP, Tables
from imp_server.grammar.trie import TokenTrie


class WalkResult(NamedTuple):
    depth_used: int
    """How many frames below the top the walk read (0: the mask depends on the top alone)."""
    asks: list[int]
    """Trie nodes whose whole subtree the caller has to test byte by byte."""


Stack = tuple[int, "Stack | None"]


def walk(tables: Tables, trie: TokenTrie, locals_: list[int], out: NDArray[np.uint32]) -> WalkResult:
    """Set in `out` the bit of every token that the stack can read (`locals_[0]` is its top); bits already set stay."""
    stack: Stack = (locals_[-1], None)
    for local in reversed(locals_[:-1]):
        stack = (local, stack)
    asks: list[int] = []
    lowest = 0
    # per depth of the trie: the stack, and its height relative to the original one
    path: list[tuple[Stack, int]] = [(stack, 0)] * (int(trie.depth.max(initial=0)) + 1)
    n_nodes, node = len(trie.byte), 0
    while node < n_nodes:
        depth = int(trie.depth[node])
        top, height = path[depth - 1]
        result, height, read = step_stack(tables, top, height, int(trie.byte[node]))
        lowest = min(lowest, read)
        if isinstance(result, int):
            if result == ASK:
                asks.append(node)
            node += int(trie.skip[node])
            continue
        path[depth] = (result, height)
        for token_id in trie.ids[trie.first[node] : trie.first[node + 1]]:
            out[token_id >> 5] |= np.uint32(1 << (int(token_id) & 31))
        node += 1
    return WalkResult(-lowest, asks)


def step_stack(tables: Tables, stack: Stack, height: int, byte: int) -> tuple[Stack | int, int, int]:
    """(stack after the byte, or DEAD or ASK; its height; the lowest height read on the way)."""
    lowest = height
    while True:
        top, below = stack
        entry = tables.entry(top, byte)
        if entry >= 0:
            return (entry, below), height, lowest
        if entry > FIRST_OP:
            return (ASK if entry == ASK else DEAD), height, lowest
        a, b = (int(x) for x in tables.ops[FIRST_OP - entry])
        if a >= 0:
            return (b, (a, below)), height + 1, lowest
        if below is None:
            return DEAD, height, lowest
        height -= 1
        lowest = min(lowest, height)
        resumed = tables.entry(below[0], b)
        if resumed < 0:
            return (ASK if resumed == ASK else DEAD), height, lowest
        stack = (resumed, below[1])
        if a == POP:
            return stack, height, lowest
