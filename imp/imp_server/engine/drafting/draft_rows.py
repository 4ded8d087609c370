"""Rows of a draft model: their place in its text, and in its KV memory, which keeps what it has computed.

A row holds memory for all of its text or none, and older rows come first: what isn't enough for everybody lets some
draft instead of nobody. Rows that hold nothing find again what they had, if it is still cached, and what another row,
an earlier turn or another choice has computed of the same text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.decode.drafter import Draft, Float32s
from imp_server.decode.state import SamplerState
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.blocks import BlockCounts
from imp_server.schedule.memory import BlockCopy, Memory, RowTables
from imp_server.schedule.prefix import MakeIndex, PrefixHit, index_over, n_common
from imp_server.schedule.rows import Row


class ModelRow:
    """Owner of one row's text in the draft model. `place`: where it is in memory, as the prefix index knows rows."""

    silent_until = 0

    def __init__(self, target: SamplerState, memory: DraftMemory, most_drafts: int, reuse_group: int = 0) -> None:
        self.target = target
        prompt = target.history[: target.n_prompt]
        self.state = SamplerState(
            target.params, target.choice, prompt, target.capacity + most_drafts, target.token_bytes
        )
        self.place = Row(0, target.choice, self.state, reuse_group=reuse_group)
        self._memory = memory
        self._n_synced = target.n_prompt

    @property
    def n_computed(self) -> int:
        return self.place.n_computed

    @property
    def n_pending(self) -> int:
        return self.state.length - self.place.n_computed

    def sync(self) -> None:
        """Forget the drafts that weren't accepted, take in what was written since."""
        ours, theirs = self.state.history[self._n_synced :], self.target.history[self._n_synced :]
        n_equal = n_common(ours, theirs)
        self.state.length = self._n_synced + n_equal
        self.state.append(theirs[n_equal:].tolist())
        # The last id is run again if need be: a draft is sampled behind it.
        self.place.n_computed = min(self.place.n_computed, self._n_synced + n_equal, self.state.length - 1)
        self.state.mirostat_mu = self.target.mirostat_mu
        self._n_synced = self.target.length
        self._memory.publish(self)

    def propose(self, limit: int) -> Draft:
        raise RuntimeError("rows of a draft model draft together: ModelDrafter.propose_all")

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        return None

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        return None

    def close(self) -> None:
        """What it has computed stays cached, as long as nobody needs the memory."""
        if self.place.tables is not None:
            self.sync()
            self._memory.step_back(self)


class DraftMemory:
    """Owner of the draft model's KV memory and of which rows hold some of it."""

    def __init__(
        self, groups: Sequence[CacheGroup], n_blocks: Sequence[int], n_positions: int, make_index: MakeIndex | None
    ) -> None:
        """`n_positions`: of a row at most. `make_index` None: nothing is kept for later."""
        self.n_positions = n_positions
        self._memory = Memory(groups, n_blocks)
        self._index = index_over(self._memory, make_index)
        self._holders: dict[ModelRow, None] = {}
        self._asked: frozenset[ModelRow] = frozenset()

    @property
    def n_groups(self) -> int:
        return len(self._memory.groups)

    def counts(self) -> list[BlockCounts]:
        return self._memory.counts()

    def counters(self) -> dict[str, float]:
        """Of the prefix cache, for metrics, by name."""
        return self._index.counters()

    def n_unknown(self, row: ModelRow) -> int:
        """Ids of the row's text that would have to be computed, but for the last."""
        n_there = row.n_computed
        if row.place.tables is None:
            n_there = self._match(row).n_tokens
        return row.state.length - 1 - n_there

    def open_turn(self, asked: Collection[ModelRow]) -> None:
        """These draft now; the memory of others is theirs only while nobody wants it."""
        self._asked = frozenset(asked)

    def begin(self, row: ModelRow, growth: int) -> bool:
        """Memory for the row's text, beginning with what is known of it; False: not now.

        Not while an older row computes a part that both begin with, and not where older rows leave no room.
        """
        if row.place.tables is not None:
            return True
        hit = self._match(row)
        if hit.wait_for is not None and any(other.place is hit.wait_for for other in self._asked):
            return False
        while not self._fits(row, growth, hit):
            victim = self._idle_holder()
            if victim is None:
                if self._holders:
                    return False
                break  # alone it always fits
            self.step_back(victim)
            hit = self._match(row)
        row.place.tables = RowTables(self._memory, self.n_positions)
        row.place.tables.adopt(hit.blocks)
        row.place.n_computed = hit.n_tokens
        self._index.begin(row.place, hit)
        self._holders[row] = None
        return True

    def grow(self, row: ModelRow, n_tokens: int) -> list[BlockCopy] | None:
        """Memory for the row's next ids, at the cost of idle and of younger rows; the copies that are due first.

        None: there is none, and the row has given back its own.
        """
        due: list[BlockCopy] = []
        while row.place.tables is not None:
            copies, enough = row.place.tables.reserve(row.n_computed, row.n_computed + n_tokens)
            due += copies
            if enough:
                return due
            self.step_back(self._idle_holder() or max(self._holders, key=lambda other: other.place.number))
        return None

    def settle_copies(self) -> None:
        self._memory.settle_copies()

    def publish(self, row: ModelRow) -> None:
        """What the row has computed of its text is known from now on. Not while it holds drafts."""
        if row.place.tables is not None:
            self._index.publish(row.place)

    def step_back(self, row: ModelRow) -> None:
        """Give back the row's memory; what it holds stays cached until somebody needs it."""
        if row.place.tables is None:
            return
        self._index.retire(row.place)
        row.place.tables.release()
        row.place.tables, row.place.n_computed = None, 0
        self._holders.pop(row, None)

    def check(self) -> None:
        """Integrity. Raises AssertionError."""
        self._index.check()
        self._memory.check(row.place.tables for row in self._holders if row.place.tables is not None)

    def _match(self, row: ModelRow) -> PrefixHit:
        """What is known of its text; whole blocks of it, where there would be none to copy the last one into."""
        ids = row.state.history[:-1]
        hit = self._index.match(ids, row.place.reuse_group)
        if self._memory.can_copy(hit.n_tokens, min(row.state.length + BLOCK_TOKENS, self.n_positions)):
            return hit
        whole = self._index.match(ids[: hit.n_tokens - hit.n_tokens % BLOCK_TOKENS], row.place.reuse_group)
        return replace(whole, wait_for=hit.wait_for)

    def _idle_holder(self) -> ModelRow | None:
        """The youngest row that has memory and doesn't draft now."""
        idle = [row for row in self._holders if row not in self._asked]
        return max(idle, key=lambda row: row.place.number, default=None)

    def _fits(self, row: ModelRow, growth: int, hit: PrefixHit) -> bool:
        for group in range(self.n_groups):
            wanted = self._memory.n_needed(group, row.state.length + growth) - self._memory.n_shared(group, hit.blocks)
            promised = sum(self._still_needed(other, growth, group) for other in self._holders)
            if wanted + promised > self._memory.n_available(group):
                return False
        return True

    def _still_needed(self, row: ModelRow, growth: int, group: int) -> int:
        held = 0 if row.place.tables is None else row.place.tables.n_held(group)
        return max(0, self._memory.n_needed(group, row.state.length + growth) - held)
