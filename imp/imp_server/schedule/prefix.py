"""The seam for reuse of computed prefixes: what the scheduler asks an index, and the index that never answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from imp_server.schedule.rows import Row


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What is known of a prompt: its first `n_tokens` tokens, any number of them.

    `blocks[g]`: blocks of group g that cover them (whole blocks are shared; the last one is copied if it is
    covered in part, since the row will write into it). `wait_for`: a row that is computing a longer prefix.
    """

    n_tokens: int = 0
    blocks: tuple[tuple[int, ...], ...] = ()
    wait_for: Row | None = field(default=None, compare=False)


class PrefixIndex(Protocol):
    """Owner of what is kept in the pools beyond the rows' lives."""

    def match(self, ids: NDArray[np.int32], adapter: int) -> PrefixHit:
        """The longest usable prefix. Asked when a row is about to be admitted."""
        ...

    def publish(self, row: Row) -> None:
        """`row.n_computed` grew, or the row is about to end: its blocks hold what its history says."""
        ...

    def reclaim(self, group: int, n_blocks: int) -> int:
        """Give up cached blocks (the least useful first); how many became free."""
        ...


class NoPrefixIndex:
    """prefix_cache.enabled=false."""

    def match(self, ids: NDArray[np.int32], adapter: int) -> PrefixHit:
        return PrefixHit()

    def publish(self, row: Row) -> None:
        return None

    def reclaim(self, group: int, n_blocks: int) -> int:
        return 0
