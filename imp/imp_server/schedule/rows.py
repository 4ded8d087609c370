"""Rows: sequences that hold KV memory or wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.decode.state import SamplerState
from imp_server.schedule.memory import BlockCopy, RowTables

_numbers = count()
_MOST_FORCED = 64


@dataclass(slots=True, eq=False)
class Row:
    """One choice of one request. The scheduler owns every field but `sampler`, which the engine appends to."""

    key: int
    choice: int
    sampler: SamplerState
    priority: int = 0
    """Among the rows of its client; higher first."""
    urgency: int = 0
    """Among all rows; higher first."""
    client: str = ""
    """Whose work it is (shares.py)."""
    adapter: int = 0
    """The backend's slot of it; 0 = none."""
    reuse_group: int = 0
    """Rows of different groups share no prefix: 0 is the model itself, others are adapters, by their contents."""
    reuse_prefix: bool = True
    max_chunk: int = 0
    """Most tokens of one step; 0 = the scheduler's choice."""
    whole: bool = False
    """All pending tokens must go in one step (encoders)."""
    number: int = field(default_factory=lambda: next(_numbers))
    """Order of arrival; ties of a request's choices are in order of choice."""
    wanted_slot: int = -1
    """The slot that the client asked for (id_slot): the row waits until it is free; -1 = any."""
    slot: int = -1
    """Row slot while admitted, for life; -1 = waiting."""
    tables: RowTables | None = None
    n_computed: int = 0
    """Positions whose K and V are in the tables."""
    n_cached: int = 0
    """Of them, how many came from the prefix index when the row was admitted first."""
    n_evicted: int = 0
    """Cached tokens that were given up to make room for this row."""
    n_written: int = 0
    """Most positions that were ever computed, for telling recomputed ones apart."""
    leader: Row | None = None
    """The row whose prompt this one will share once it is computed (n > 1)."""
    due: float = 0.0
    """When its turn comes, by the clock of work: the later, the longer it is."""
    n_paid: float = 0.0
    """Tokens that its client has been charged for and that it hasn't computed yet."""
    n_run: int = 0
    """Tokens computed since it was admitted last."""
    drafts: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    """Ids proposed for the next step; set by the engine before `plan`, cleared by `settle`."""
    snapshot_points: tuple[int, ...] = ()
    """Positions of its prompt at which its state is kept (models with state groups): chunks end there."""
    is_restoring: bool = False
    """Its prefix is coming back from a lower tier; until then it runs nothing."""
    is_held_back: bool = False
    """Its mask isn't ready: the last pending id, after which it would be sampled, sits out the next step."""

    @property
    def n_pending(self) -> int:
        """Ids of the history that haven't been run yet; none only while a sampled id awaits its verdict."""
        return self.sampler.length - self.n_computed

    @property
    def is_decoding(self) -> bool:
        """Its prompt is computed: what is pending are sampled ids, or a few forced ones."""
        at_the_end = self.n_computed >= self.sampler.n_prompt - 1
        return at_the_end and self.leader is None and self.n_pending <= _MOST_FORCED

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts rows: the more urgent first, then the older."""
        return (-self.urgency, self.number)


class Chunk(NamedTuple):
    """A row's part of a step: `n_tokens` ids of the history from `start`, then the row's drafts."""

    row: Row
    start: int
    n_tokens: int
    n_drafts: int = 0

    @property
    def is_last(self) -> bool:
        """The chunk reaches the end of the history, so the row can be sampled."""
        return self.start + self.n_tokens == self.row.sampler.length


@dataclass(slots=True)
class StepPlan:
    chunks: list[Chunk]
    copies: list[BlockCopy]

    @property
    def n_tokens(self) -> int:
        return sum(chunk.n_tokens + chunk.n_drafts for chunk in self.chunks)


class PlanBuilder:
    """The step under construction."""

    def __init__(self) -> None:
        self.chunks: dict[Row, Chunk] = {}
        self.copies: list[BlockCopy] = []

    def add(self, chunk: Chunk) -> None:
        self.chunks[chunk.row] = chunk

    def drop(self, row: Row) -> None:
        self.chunks.pop(row, None)

    def finish(self) -> StepPlan:
        # A block whose row was preempted after its copy was planned may be the target of a later one: the last wins.
        last = {(copy.group, copy.target): copy for copy in self.copies}
        return StepPlan(list(self.chunks.values()), list(last.values()))
