"""The transition tables that both walkers read: a pushdown automaton with interned local states.

A configuration is a stack of locals (ints), top first. `rows[local, byte]` says what a byte does to the top:

* e >= 0: the top becomes e
* DEAD (-1): the byte is impossible
* HOLE (-2): not computed yet; `fill(local, byte)` computes the entry and writes it
* ASK (-3): the walker can't know; it reports the trie node, and the caller tests the tokens below one by one
* e <= FIRST_OP (-4): operation number FIRST_OP - e, a pair (a, b) in `ops`:
  - a >= 0: PUSH. The top becomes a (which now waits for its child), b is pushed. The byte is consumed.
  - a == POP (-1): the top is popped, its result is b, the byte is consumed.
  - a == POP_AGAIN (-2): popped likewise, but the byte isn't consumed: it is given to the frame below.
  After a pop the frame below resumes: rows[below, b] is its next local (>= 0, DEAD, HOLE or ASK). A waiting
  local reads no bytes, so its row is free to be indexed by results: one that may have more than 256 has several rows
  in a row.

Owner: one `Tables` per grammar space. The arrays grow by doubling, so their addresses change; native code reads
them from `head`, which it shares: it makes locals and operations of its own (frames/simple_objects.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from imp_server.grammar.machines import abi

DEAD, HOLE, ASK = -1, -2, -3
FIRST_OP = -4
POP, POP_AGAIN = -1, -2
READY = 1024
"""Rows touched at once."""
FOREIGN = 0
"""The kind of a local that `fill` knows; all others belong to native code."""


class TransitionTables:
    """Owner of the rows and operations."""

    def __init__(self, fill: Callable[[int, int], int], capacity: int = 256) -> None:
        """`capacity`: rows reserved at once; memory is only touched as locals are made.

        `fill(local, byte)` returns the entry, after having stored it or the whole row."""
        self.fill = fill
        self.intern: Callable[[int, int], int] | None = None
        """Who makes operations, if it isn't this class."""
        self.head = abi.Tables()
        self.rows: NDArray[np.int32] = np.empty((capacity, 256), dtype=np.int32)
        self.kinds: NDArray[np.uint8] = np.zeros(capacity, dtype=np.uint8)
        self._ops: NDArray[np.int32] = np.zeros((4096, 2), dtype=np.int32)
        self._op_ids: dict[tuple[int, int], int] = {}
        self._operations: list[tuple[int, int]] = []
        self._publish()
        self.make_ready()

    def make_ready(self) -> None:
        """Empty more rows than the next local needs: memory is touched in bulk, not in the middle of a walk."""
        begin = self.head.n_ready
        self.head.n_ready = min(begin + READY, len(self.rows))
        self.rows[begin : self.head.n_ready] = HOLE

    def _publish(self) -> None:
        head = self.head
        head.rows, head.kinds, head.capacity = self.rows.ctypes.data, self.kinds.ctypes.data, len(self.rows)
        head.ops, head.ops_capacity = self._ops.ctypes.data, len(self._ops)
        self.kind_of = self.kinds.data

    def grow(self) -> None:
        """Make room for another local and another operation, or touch it."""
        n_locals, n_ops = self.head.n_locals, self.head.n_ops
        if n_locals == len(self.rows):
            rows = np.empty((2 * n_locals, 256), dtype=np.int32)
            rows[:n_locals] = self.rows
            self.rows = rows
            self.kinds = np.concatenate([self.kinds, np.zeros_like(self.kinds)])
        if n_ops == len(self._ops):
            self._ops = np.concatenate([self._ops, np.zeros_like(self._ops)])
        self._publish()
        if n_locals == self.head.n_ready:
            self.make_ready()

    @property
    def n_locals(self) -> int:
        return int(self.head.n_locals)

    def new_local(self, n_rows: int = 1) -> int:
        """The first of `n_rows` rows in a row."""
        first = int(self.head.n_locals)
        for local in range(first, first + n_rows):
            if local == self.head.n_ready:
                self.grow()
            self.head.n_locals = local + 1
        return first

    def op(self, a: int, b: int) -> int:
        """The entry that stands for operation (a, b)."""
        found = self._op_ids.get((a, b))
        if found is None:
            found = self._op_ids[a, b] = self.intern(a, b) if self.intern else self._made(a, b)
        return found

    def _made(self, a: int, b: int) -> int:
        number = int(self.head.n_ops)
        if number == len(self._ops):
            self.grow()
        self._ops[number] = a, b
        self.head.n_ops = number + 1
        return FIRST_OP - number

    def entry(self, local: int, byte: int) -> int:
        value = int(self.rows[local, byte])
        return self.fill(local, byte) if value == HOLE else value

    def resumed(self, local: int, result: int) -> int:
        """The entry of a waiting local for a child's result."""
        value = int(self.rows[local + (result >> 8), result & 255])
        return self.fill(local, result) if value == HOLE else value

    def put(self, local: int, result: int, entry: int) -> None:
        """Keep that entry."""
        self.rows[local + (result >> 8), result & 255] = entry

    def operation(self, entry: int) -> tuple[int, int]:
        """(a, b) of an entry <= FIRST_OP."""
        number = FIRST_OP - entry
        known = self._operations
        if number >= len(known):
            known += [(a, b) for a, b in self._ops[len(known) : self.head.n_ops].tolist()]
        return known[number]
