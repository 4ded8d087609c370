"""The walk of a vocabulary trie over the tables: the plain twin of the native walker (kernels/cpu/grammar)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.frames.tables import ASK, DEAD, FIRST_OP, POP, TransitionTables
from imp_server.grammar.masks.trie import TokenTrie

MAX_LISTS = 16


@dataclass(slots=True)
class Walk:
    """One walk of a trie, which may be done piece by piece: what was found so far, and where it goes on."""

    trie: TokenTrie
    out: NDArray[Any]
    """The bit of every token that can be read is set; bits already set stay."""
    address: int = 0
    """Of `out`."""
    depth_used: int = 0
    """How many frames below the top were read (0: the mask depends on the top alone)."""
    asks: list[int] = field(default_factory=list)
    """Trie nodes whose whole subtree the caller has to test byte by byte."""
    n_units: int = 0
    """Work of the last piece, which nobody has paid for yet."""
    nodes: list[int] = field(default_factory=list)
    block: int = 0
    """Where a native walk goes on (walk.h)."""
    is_over: bool = False

    @property
    def is_begun(self) -> bool:
        return self.is_over or bool(self.nodes)


Stack = tuple[int, "Stack | None"]


class _Lists(NamedTuple):
    """A trie as lists, which Python reads several times faster than arrays."""

    trie: TokenTrie
    byte: list[int]
    depth: list[int]
    skip: list[int]
    first: list[int]
    ids: list[int]
    max_depth: int


_lists: dict[int, _Lists] = {}


def _as_lists(trie: TokenTrie) -> _Lists:
    found = _lists.get(id(trie))
    if found is None:
        if len(_lists) >= MAX_LISTS:
            _lists.clear()
        # the trie itself is kept, too: its id can't be given to another one meanwhile
        byte, depth, skip, first, ids = (array.tolist() for array in trie)
        found = _lists[id(trie)] = _Lists(trie, byte, depth, skip, first, ids, max(depth, default=0))
    return found


def walk(tables: TransitionTables, done: Walk, locals_: list[int]) -> None:
    """Set in `done.out` the bit of every token that the stack can read (`locals_[0]` is its top)."""
    stack: Stack = (locals_[-1], None)
    for local in reversed(locals_[:-1]):
        stack = (local, stack)
    _, byte, depths, skip, first, ids, max_depth = _as_lists(done.trie)
    rows: dict[int, list[int]] = {}
    asks: list[int] = []
    allowed: list[int] = []
    lowest = 0
    # per depth of the trie: the stack, and its height relative to the original one
    path: list[tuple[Stack, int]] = [(stack, 0)] * (max_depth + 1)
    n_nodes, node = len(byte), 0
    while node < n_nodes:
        depth = depths[node]
        here, height = path[depth - 1]
        row = rows.get(here[0])
        if row is None:
            row = rows[here[0]] = tables.rows[here[0]].tolist()
        entry = row[byte[node]]
        if entry >= 0:
            path[depth] = (entry, here[1]), height
        elif entry == DEAD:
            node += skip[node]
            continue
        else:
            result, height, read = step_stack(tables, here, height, byte[node])
            rows.pop(here[0], None)  # a hole may have been filled
            lowest = min(lowest, read)
            if isinstance(result, int):
                if result == ASK:
                    asks.append(node)
                node += skip[node]
                continue
            path[depth] = result, height
        if first[node] < first[node + 1]:
            allowed += ids[first[node] : first[node + 1]]
        node += 1
    if allowed:
        found = np.array(allowed, np.int64)
        np.bitwise_or.at(done.out, found >> 5, np.uint32(1) << (found & 31).astype(np.uint32))
    done.depth_used, done.asks, done.is_over = -lowest, asks, True


def step_stack(tables: TransitionTables, stack: Stack, height: int, byte: int) -> tuple[Stack | int, int, int]:
    """(stack after the byte, or DEAD or ASK; its height; the lowest height read on the way)."""
    lowest = height
    while True:
        top, below = stack
        entry = tables.entry(top, byte)
        if entry >= 0:
            return (entry, below), height, lowest
        if entry > FIRST_OP:
            return (ASK if entry == ASK else DEAD), height, lowest
        a, b = tables.operation(entry)
        if a >= 0:
            return (b, (a, below)), height + 1, lowest
        if below is None:
            return DEAD, height, lowest
        height -= 1
        lowest = min(lowest, height)
        resumed = tables.resumed(below[0], b)
        if resumed < 0:
            return (ASK if resumed == ASK else DEAD), height, lowest
        stack = (resumed, below[1])
        if a == POP:
            return stack, height, lowest
