"""Rows: sequences that hold KV memory or wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.backends.base import AdapterShare
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
    adapters: tuple[AdapterShare, ...] = ()
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
    n_begun: int = 0
    """These, and those that steps under way compute."""
    generation: int = 0
    """Steps under way that were planned in an earlier one are void for this row."""
    goes_ahead: bool = False
    """It may be run on with the token that a step under way is sampling; set by the engine before `plan`."""
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
    """Ids proposed for its next step, or under way in its newest; set by the engine before `plan`, and cleared when
    they are settled or void."""
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
    def n_left(self) -> int:
        """Of these, ids that no step under way runs."""
        return self.sampler.length - self.n_begun

    @property
    def is_under_way(self) -> bool:
        return self.n_begun > self.n_computed

    @property
    def awaits_token(self) -> bool:
        """A step under way samples behind the end of its history: what follows depends on that."""
        return self.n_begun > self.n_computed and self.n_begun == self.sampler.length

    @property
    def is_decoding(self) -> bool:
        """Its prompt is computed, or will be: what is pending are sampled ids, or a few forced ones."""
        at_the_end = self.n_begun >= self.sampler.n_prompt - 1
        return at_the_end and self.leader is None and self.n_left <= _MOST_FORCED

    def void_steps(self) -> None:
        """What is under way for the row is of no use any more."""
        self.generation += 1
        self.n_begun = self.n_computed
        self.drafts = self.drafts[:0]

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts rows: the more urgent first, then the older."""
        return (-self.urgency, self.number)


class Chunk(NamedTuple):
    """A row's part of a step: `n_tokens` ids of the history from `start`, then the row's drafts.

    `is_ahead`: its only id is the one that a step under way is sampling.
    """

    row: Row
    start: int
    n_tokens: int
    n_drafts: int = 0
    is_ahead: bool = False
    generation: int = 0

    @property
    def end(self) -> int:
        """Ids of the history in front of what is sampled or drafted."""
        return self.start + self.n_tokens

    @property
    def may_sample(self) -> bool:
        """When the step is made: the chunk reaches the end of what the row will have by then."""
        return self.end == self.row.sampler.length + self.is_ahead

    @property
    def is_last(self) -> bool:
        """When the step is done: it has reached the end of the history, so the row was sampled."""
        return self.end == self.row.sampler.length

    @property
    def is_void(self) -> bool:
        """Its row was removed, or lost its memory, or turned out to go on in another way."""
        return self.generation != self.row.generation


@dataclass(slots=True)
class PlannedStep:
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

    def finish(self) -> PlannedStep:
        # A block whose row was preempted after its copy was planned may be the target of a later one: the last wins.
        last = {(copy.group, copy.target): copy for copy in self.copies}
        return PlannedStep(list(self.chunks.values()), list(last.values()))
