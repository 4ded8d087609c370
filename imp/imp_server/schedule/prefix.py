"""The seam for reuse of computed prefixes: what the scheduler asks an index, and the index that never answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from imp_server.models.architecture import CacheGroup
from imp_server.schedule.blocks import BlockPool
from imp_server.schedule.memory import Memory
from imp_server.schedule.rows import Row
from imp_server.schedule.snapshots import Snapshot
from imp_server.schedule.tree import TreeNode


def n_common(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """How many leading ids two texts share."""
    size = min(len(a), len(b))
    differ = a[:size] != b[:size]
    return int(np.argmax(differ)) if differ.any() else size


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What is known of a prompt: its first `n_tokens` tokens, any number of them.

    `blocks[g]`: blocks of group g that cover them (whole blocks are shared; the last one is copied if it is
    covered in part, since the row will write into it). `wait_for`: a row that is computing a longer prefix.
    """

    n_tokens: int = 0
    blocks: tuple[tuple[int, ...], ...] = ()
    wait_for: Row | None = field(default=None, compare=False)
    nodes: tuple[TreeNode, ...] = field(default=(), compare=False)
    """The index's own."""
    is_below: bool = False
    """Some blocks, or the state, are missing yet. `PrefixIndex.restore` brings them back."""
    snapshot: Snapshot | None = field(default=None, compare=False)
    """The state after these tokens, for models with state groups."""
    is_unusable: bool = False
    """Tokens are known, and there is no state to go on from."""


class PrefixIndex(Protocol):
    """Owner of what is kept in the pools beyond the rows' lives."""

    @property
    def n_evicted_tokens(self) -> int:
        """Kept tokens given up so far because somebody needed their memory."""
        ...

    @property
    def keeps(self) -> bool:
        """What rows compute is kept at all."""
        ...

    def match(self, ids: NDArray[np.int32], reuse_group: int) -> PrefixHit:
        """The longest usable prefix. Asked when a row is about to be admitted."""
        ...

    def begin(self, row: Row, hit: PrefixHit | None = None) -> None:
        """The row has tables: admitted with `hit`, or forked (None)."""
        ...

    def restore(self, row: Row, budget_ms: float) -> int | None:
        """Bring back more of what its hit lacked; None while some is missing, else the tokens its tables hold."""
        ...

    def publish(self, row: Row) -> None:
        """`row.n_computed` grew: its blocks hold what its history says."""
        ...

    def retire(self, row: Row) -> None:
        """The row is about to give its blocks back (it is over, or preempted)."""
        ...

    def disown(self, row: Row) -> None:
        """What the row's blocks hold is unknown: nothing more of it is kept."""
        ...

    def reclaim(self, group: int, n_blocks: int) -> int:
        """Give up cached blocks (the least useful first); how many became free."""
        ...

    def pin(self, ids: NDArray[np.int32], reuse_group: int, session_id: str | None = None) -> None:
        """Hold what is kept of this prefix."""
        ...

    def release_session(self, session_id: str) -> int:
        """Blocks that no pin holds any more."""
        ...

    def expire(self) -> None:
        """Release pins whose time is over."""
        ...

    def idle_fault(self) -> str:
        """What is left over when no row lives; "" = nothing. Cheap."""
        ...

    def tidy(self) -> bool:
        """Do a small piece of the work that waits for idle time; True if there is more."""
        ...

    def close(self, budget_s: float = 3.0) -> None:
        """The engine ends."""
        ...

    def counters(self) -> dict[str, float]:
        """For metrics, by name."""
        ...

    def check(self) -> None:
        """Integrity. Raises AssertionError."""
        ...


MakeIndex = Callable[[Sequence[CacheGroup], Sequence[BlockPool]], PrefixIndex]
"""Builds the index over the pools that the scheduler's memory has made."""


class NoPrefixIndex:
    """prefix_cache.enabled=false."""

    keeps = False
    n_evicted_tokens = 0

    def match(self, ids: NDArray[np.int32], reuse_group: int) -> PrefixHit:
        return PrefixHit()

    def begin(self, row: Row, hit: PrefixHit | None = None) -> None:
        return None

    def restore(self, row: Row, budget_ms: float) -> int | None:
        return 0

    def publish(self, row: Row) -> None:
        return None

    def retire(self, row: Row) -> None:
        return None

    def disown(self, row: Row) -> None:
        return None

    def reclaim(self, group: int, n_blocks: int) -> int:
        return 0

    def pin(self, ids: NDArray[np.int32], reuse_group: int, session_id: str | None = None) -> None:
        return None

    def release_session(self, session_id: str) -> int:
        return 0

    def expire(self) -> None:
        return None

    def idle_fault(self) -> str:
        return ""

    def tidy(self) -> bool:
        return False

    def close(self, budget_s: float = 3.0) -> None:
        return None

    def counters(self) -> dict[str, float]:
        return {}

    def check(self) -> None:
        return None


def index_over(memory: Memory, make: MakeIndex | None) -> PrefixIndex:
    """The index that gives up blocks when the memory runs short. `make` None: nothing is kept."""
    index = NoPrefixIndex() if make is None else make(memory.groups, memory.pools)
    memory.reclaim = index.reclaim
    return index
