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
  local reads no bytes, so its row is free to be indexed by results (0..255).

Owner: one `Tables` per grammar space. Rows grow by doubling: the address changes, so a native walker reads
`rows_address` anew after each fill.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

DEAD, HOLE, ASK = -1, -2, -3
FIRST_OP = -4
POP, POP_AGAIN = -1, -2


class Tables:
    """Owner of the rows and operations."""

    def __init__(self, fill: Callable[[int, int], int], capacity: int = 256) -> None:
        """`capacity`: rows reserved at once; memory is only touched as locals are made.

        `fill(local, byte)` returns the entry, after having stored it with `put` (or a whole row with `put_row`)."""
        self.fill = fill
        self.n_locals = 0
        self.rows: NDArray[np.int32] = np.empty((capacity, 256), dtype=np.int32)
        self.rows_address: int = self.rows.ctypes.data
        self.ops: NDArray[np.int32] = np.zeros((4096, 2), dtype=np.int32)
        self.ops_address: int = self.ops.ctypes.data
        self._op_ids: dict[tuple[int, int], int] = {}
        self._operations: list[tuple[int, int]] = []

    def new_local(self) -> int:
        local = self.n_locals
        if local == len(self.rows):
            grown = np.empty((2 * local, 256), dtype=np.int32)
            grown[:local] = self.rows
            self.rows = grown
            self.rows_address = grown.ctypes.data
        self.rows[local] = HOLE
        self.n_locals = local + 1
        return local

    def op(self, a: int, b: int) -> int:
        """The entry that stands for operation (a, b)."""
        number = self._op_ids.get((a, b))
        if number is None:
            number = self._op_ids[a, b] = len(self._op_ids)
            if number == len(self.ops):
                self.ops = np.concatenate([self.ops, np.zeros_like(self.ops)])
                self.ops_address = self.ops.ctypes.data
            self.ops[number] = a, b
            self._operations.append((a, b))
        return FIRST_OP - number

    def entry(self, local: int, byte: int) -> int:
        value = int(self.rows[local, byte])
        return self.fill(local, byte) if value == HOLE else value

    def operation(self, entry: int) -> tuple[int, int]:
        """(a, b) of an entry <= FIRST_OP."""
        return self._operations[FIRST_OP - entry]
