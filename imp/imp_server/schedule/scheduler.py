"""Decides what runs in the next step: admission, chunks under a time budget, preemption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from imp_server.backends.base import BLOCK_TOKENS
from imp_server.models.architecture import CacheGroup
from imp_server.schedule.cost import CostTable, VerifyCosts
from imp_server.schedule.memory import Memory, RowTables
from imp_server.schedule.prefix import MakeIndex, PrefixHit, index_over
from imp_server.schedule.queue import RequestQueue, Ticket, in_order
from imp_server.schedule.rows import Chunk, PlanBuilder, PlannedStep, Row

_TURN_TOKENS = 8
"""That a row computes at least before it makes place for another client's."""


@dataclass(frozen=True, slots=True)
class ScheduleLimits:
    """`step_ms` with decoders present, `step_alone_ms` when a step only prefills."""

    n_rows: int = 8
    context_length: int = 8192
    step_ms: float = 50.0
    step_alone_ms: float = 200.0
    prefill_chunk: int = 0
    """Most prompt tokens of one row in a step; 0 = what the budget allows."""


class Scheduler:
    """Owner of the queue, the row slots and, through Memory, of all KV blocks."""

    def __init__(
        self,
        limits: ScheduleLimits,
        groups: Sequence[CacheGroup],
        n_blocks: Sequence[int],
        *,
        costs: CostTable | None = None,
        decode_costs: CostTable | None = None,
        make_index: MakeIndex | None = None,
    ) -> None:
        """`costs`: of any step, by tokens; `decode_costs`: of steps in which every position is sampled."""
        self.limits = limits
        self.memory = Memory(groups, n_blocks)
        self.index = index_over(self.memory, make_index)
        self.costs = costs or CostTable()
        self.decode_costs = decode_costs or VerifyCosts()
        self.queue = RequestQueue()
        self.n_preemptions = 0
        self.n_kept_back = 0
        """Rows that weren't run on beside a step of their own, since memory was short."""
        self.n_refused_rollbacks = 0
        self.n_resumed_tokens = 0
        """Of rows that lost their memory, what was found again."""
        self.n_recomputed_tokens = 0
        """What such rows computed a second time."""
        self._rows: list[Row] = []
        self._started: list[Row] = []
        self._free_slots = list(range(limits.n_rows - 1, -1, -1))

    # --- what the engine asks -------------------------------------------------------------------

    @property
    def rows(self) -> list[Row]:
        """Admitted rows, highest rank first."""
        return list(self._rows)

    @property
    def n_waiting(self) -> int:
        return len(self.queue)

    @property
    def has_work(self) -> bool:
        return bool(self._rows or len(self.queue))

    def submit(self, rows: list[Row], n_known: int = 0) -> None:
        """The choices of one request, in order; they share the computation of their prompt.

        `n_known`: tokens of it that the prefix index holds.
        """
        for row in rows[1:]:
            row.leader = rows[0]
        self.queue.submit(list(rows), rows[0].sampler.length - n_known)

    def remove(self, row: Row) -> None:
        """The row is over or unwanted, at whatever stage; its slot and blocks are free at once. Idempotent."""
        if row.slot >= 0:
            self._rows.remove(row)
            self._free_slots.append(row.slot)
            row.slot = -1
        elif not self.queue.remove(row):
            return
        self._hand_over_prompt(row)
        self._release(row)
        self.queue.shares.leave(row.client)

    def admit(self) -> list[Row]:
        """Give slots and memory to waiting requests, in the queue's order; none overtakes one that doesn't fit yet.

        Only a request that waits for something of its own is passed over: for a prefix that another row is
        computing right now, or for the slot that its client named.
        """
        admitted: list[Row] = []
        passed: list[Ticket] = []
        while (ticket := self.queue.first(passed, but=self._holders())) is not None:
            victim = None if self._free_slots else self._victim(ticket)
            if not self._free_slots and victim is None:
                break
            wanted = ticket.rows[0].wanted_slot
            fitting = Ticket(ticket.rows[: max(1, len(self._free_slots))])
            hit = self._match(fitting)
            if hit.wait_for is not None or (wanted >= 0 and wanted not in self._free_slots):
                passed.append(ticket)
                continue
            if victim is not None:
                self._preempt(victim, PlanBuilder())
                hit = self._match(fitting)
            if not self._fits(fitting, hit):
                break
            admitted += self._admit(ticket, hit)
        if admitted:
            self._rows.sort(key=lambda row: row.rank)
        return admitted

    def n_known(self, row: Row) -> int:
        """Tokens of a prompt that hasn't been submitted yet that the prefix index would give now."""
        return self._match(Ticket([row])).n_tokens

    def take_started(self) -> list[Row]:
        """Rows whose `n_cached` has become known since the last call: the first step of each is yet to run."""
        started, self._started = self._started, []
        return started

    def plan(self) -> PlannedStep:
        """The next step: every decode first, then prompts, shortest first with ageing, within the time budget."""
        planned = PlanBuilder()
        self.memory.settle_copies()
        self._bring_back()
        self._fork_followers()
        runnable = [row for row in self._rows if row.leader is None and self._n_runnable(row) > 0]
        decoding = [row for row in runnable if row.is_decoding]
        for row in decoding:
            if row.slot >= 0:
                self._plan_row(row, self._n_runnable(row), planned)
        prefilling = [row for row in runnable if row.slot >= 0 and not row.is_decoding]
        prefilling = in_order(prefilling)
        if prefilling:
            left = self._prefill_tokens(sum(self._n_runnable(row) + len(row.drafts) for row in decoding))
            for row in prefilling:
                if left > 0 and row.slot >= 0 and (size := self._chunk_size(row, left)) > 0:
                    left -= self._plan_row(row, size, planned)
        return planned.finish()

    def settle(self, plan: PlannedStep, n_accepted: Iterable[int], elapsed_ms: float) -> None:
        """The step has run; `n_accepted`: accepted drafts per chunk. Call before appending sampled ids."""
        self.memory.settle_copies()
        self.costs.observe(max(1, plan.n_tokens), elapsed_ms)
        if all(chunk.n_tokens == 1 and chunk.is_last for chunk in plan.chunks):
            self.decode_costs.observe(plan.n_tokens, elapsed_ms)
        for chunk, accepted in zip(plan.chunks, n_accepted, strict=True):
            row = chunk.row
            if chunk.is_void:
                continue
            row.n_computed = chunk.end + accepted
            row.n_begun = max(row.n_begun, row.n_computed)
            row.n_written = max(row.n_written, row.n_computed)
            if chunk.n_drafts:
                row.drafts = row.drafts[:0]
            self._charge(row, chunk.n_tokens)
        self.queue.shares.note_work(plan.n_tokens)

    def _charge(self, row: Row, n_tokens: int) -> None:
        """What its client hasn't paid for yet."""
        row.n_run += n_tokens
        row.n_paid -= n_tokens
        if row.n_paid < 0.0:
            self.queue.shares.charge(row.client, -row.n_paid)
            row.n_paid = 0.0

    def rewind(self, row: Row, n_computed: int) -> None:
        """The row's positions from `n_computed` on aren't what they should be; they may be run again.

        What is under way beyond is void. A state can't be rolled back: such a row is cleared and resumes from its
        newest snapshot, or from zero.
        """
        if n_computed < row.n_begun:
            row.void_steps()
        if n_computed >= row.n_computed:
            return
        if not self.memory.has_state or row.tables is None:
            row.n_computed = row.n_begun = n_computed
            return
        self.n_refused_rollbacks += 1
        self.index.disown(row)
        row.tables.release()
        row.n_computed = row.n_begun = 0
        self._begin(row, self._match(Ticket([row])))

    def shift(self, row: Row, keep: int, discard: int) -> None:
        """The row's history loses ids from its middle; what is behind them is computed anew, at its new positions."""
        self.index.disown(row)
        if row.tables is not None:
            row.tables.release()
        row.void_steps()
        row.n_computed = row.n_begun = 0
        row.snapshot_points = ()
        row.sampler.shift(keep, discard)
        if row.tables is not None:
            self._begin(row, self._match(Ticket([row])))

    def failed(self, plan: PlannedStep) -> None:
        """The step raised: what its rows' blocks hold is unknown. Call before the rows are removed."""
        for chunk in plan.chunks:
            if not chunk.is_void:
                self.index.disown(chunk.row)

    def publish(self, plan: PlannedStep) -> None:
        """Tell the prefix index what the step computed. Call after the sampled ids were appended."""
        for chunk in plan.chunks:
            row = chunk.row
            if row.tables is None or chunk.is_void:
                continue
            if row.reuse_prefix:
                self.index.publish(row)
            # After publishing, so that a window can be resumed anywhere. Not to n_computed: a sampled token or an
            # accepted draft may yet be taken back.
            row.tables.trim(max(0, min(row.n_computed, chunk.end) - 1))

    def check(self) -> None:
        """Integrity: blocks, slots and ranks agree. Raises AssertionError."""
        self.index.check()
        self.memory.check(row.tables for row in self._all_rows() if row.tables is not None)
        slots = [row.slot for row in self._rows]
        assert sorted(slots + self._free_slots) == list(range(self.limits.n_rows)), "a row slot is lost or used twice"
        assert all(row.slot == -1 and row.tables is None for ticket in self.queue for row in ticket.rows)

    def idle_fault(self) -> str:
        """What is wrong with memory that nobody uses; "" = nothing. Cheap enough for every pause."""
        if self._rows or len(self.queue):
            return ""
        if len(self._free_slots) != self.limits.n_rows:
            return f"{self.limits.n_rows - len(self._free_slots)} row slots are lost"
        faults = [f"group {g}: {fault}" for g, pool in enumerate(self.memory.pools) if (fault := pool.idle_fault())]
        return "; ".join(faults) or self.index.idle_fault()

    # --- admission ------------------------------------------------------------------------------

    def _admit(self, ticket: Ticket, hit: PrefixHit) -> list[Row]:
        rows = self.queue.take(ticket, len(self._free_slots))
        for row in rows:
            row.slot = self._take_slot(row)
            self._rows.append(row)
        self._begin(rows[0], hit)
        return rows

    def _holders(self) -> Collection[str]:
        """Clients who get nothing more: where no slot is free, those that have one."""
        return () if self._free_slots else {row.client for row in self._rows}

    def _victim(self, ticket: Ticket) -> Row | None:
        """Whose place a client without rows may have: the youngest row's of the one that has most of them.

        Who has only one keeps it, and every row has its turn first: it has computed as much as its return may cost.
        """
        client, n_held = Counter(row.client for row in self._rows).most_common(1)[0]
        if n_held < 2:
            return None
        urgency = ticket.rows[0].urgency
        may = (row for row in reversed(self._rows) if row.client == client and row.urgency <= urgency)
        return next((row for row in may if row.tables is not None and row.n_run >= self._turn(row)), None)

    def _turn(self, row: Row) -> int:
        """Tokens that a row may compute before it has to make place."""
        is_kept = row.reuse_prefix and self.index.keeps and not self.memory.has_state
        return _TURN_TOKENS if is_kept else max(_TURN_TOKENS, row.sampler.length)

    def _take_slot(self, row: Row) -> int:
        if row.wanted_slot in self._free_slots:
            self._free_slots.remove(row.wanted_slot)
            return row.wanted_slot
        return self._free_slots.pop()

    def _match(self, ticket: Ticket) -> PrefixHit:
        """At least one id is always run, and followers fork at the last token of the prompt."""
        row = ticket.rows[0]
        if not row.reuse_prefix:
            return PrefixHit()
        shares = any(other.leader is row for other in ticket.rows)
        ids = row.sampler.history[: row.sampler.n_prompt - 1 if shares else -1]
        hit = self.index.match(ids, row.reuse_group)
        if self.memory.can_copy(hit.n_tokens, row.sampler.length + 1):
            return hit
        # It would fill the pool with blocks of its own that it may not write to, and step back for ever.
        whole = self.index.match(ids[: hit.n_tokens - hit.n_tokens % BLOCK_TOKENS], row.reuse_group)
        return replace(whole, wait_for=hit.wait_for)

    def _fits(self, ticket: Ticket, hit: PrefixHit) -> bool:
        if not self._rows:
            return True  # alone it always fits: acceptance saw to that
        length = ticket.rows[0].sampler.length + 1
        for group in range(len(self.memory.groups)):
            n_shared = self.memory.n_shared(group, hit.blocks)
            wanted = self.memory.n_needed(group, length) + len(ticket.rows) - 1 - n_shared
            promised = sum(self._still_needed(row, group) for row in self._rows)
            if wanted + promised > self.memory.n_available(group):
                return False
        return True

    def _still_needed(self, row: Row, group: int) -> int:
        """Blocks that an admitted row's history lacks yet, and one to grow into."""
        if row.leader is not None:
            return 1
        held = 0 if row.tables is None else row.tables.n_held(group)
        return max(0, self.memory.n_needed(group, row.sampler.length) - held) + 1

    def _begin(self, row: Row, hit: PrefixHit) -> None:
        row.tables = RowTables(self.memory, self.limits.context_length)
        row.tables.adopt(hit.blocks)
        row.is_restoring = hit.is_below
        if row.reuse_prefix:
            self.index.begin(row, hit)
        if not row.is_restoring:
            self._start_at(row, hit.n_tokens)

    def _start_at(self, row: Row, n_tokens: int) -> None:
        """The row's tables hold its first `n_tokens` positions."""
        row.n_computed = row.n_begun = n_tokens
        if row.n_written == 0:
            row.n_cached = n_tokens
            self._started.append(row)
        else:
            self.n_resumed_tokens += n_tokens
            self.n_recomputed_tokens += max(0, row.n_written - n_tokens)

    def _bring_back(self) -> None:
        """Prefixes that a lower tier has come back in pieces, so that others' tokens don't wait for long ones."""
        restoring = [row for row in self._rows if row.is_restoring]
        if not restoring:
            return
        is_alone = not any(row.is_decoding for row in self._rows)
        budget_ms = (self.limits.step_alone_ms if is_alone else self.limits.step_ms) / (2 * len(restoring))
        for row in restoring:
            n_before = self.index.n_evicted_tokens
            n_tokens = self.index.restore(row, budget_ms)
            row.n_evicted += self.index.n_evicted_tokens - n_before
            if n_tokens is not None:
                row.is_restoring = False
                self._start_at(row, n_tokens)

    # --- choices that share a prompt ------------------------------------------------------------

    def _fork_followers(self) -> None:
        """n > 1: all choices run the last prompt token themselves, each with noise of its own."""
        for row in self._rows:
            leader = row.leader
            if leader is not None and leader.tables is not None and leader.n_computed >= leader.sampler.n_prompt - 1:
                row.tables = leader.tables.fork()
                row.n_computed = row.n_begun = row.n_written = leader.n_computed
                row.leader = None
                self._started.append(row)
                if row.reuse_prefix:
                    self.index.begin(row)

    def _hand_over_prompt(self, row: Row) -> None:
        """The first of the rows that wait for this one's prompt computes it instead."""
        followers = [other for other in self._all_rows() if other.leader is row]
        if not followers:
            return
        heir = followers[0]
        heir.leader = None
        for other in followers[1:]:
            other.leader = heir
        if row.is_restoring:
            self._release(row)
            self._begin(heir, self._match(Ticket([heir, *followers[1:]])))
            return
        heir.tables, row.tables = row.tables, None
        heir.n_computed = heir.n_begun = row.n_computed
        heir.n_written, heir.n_cached = row.n_written, row.n_cached
        if heir.tables is not None:
            heir.tables.tell_all()
        if heir.tables is not None and heir.reuse_prefix:
            self.index.begin(heir)

    def _has_followers(self, row: Row) -> bool:
        return any(other.leader is row for other in self._rows)

    # --- planning -------------------------------------------------------------------------------

    def _prefill_tokens(self, n_decoding: int) -> int:
        """Prompt tokens that the budget leaves; at least a block, so a prefill always moves."""
        budget_ms = self.limits.step_ms if n_decoding else self.limits.step_alone_ms
        return max(BLOCK_TOKENS, self.costs.tokens_within(budget_ms) - n_decoding)

    def _chunk_size(self, row: Row, left: int) -> int:
        pending = self._n_runnable(row)
        if self._has_followers(row):
            # n > 1: the leader stops before the last prompt token, which every choice runs for itself.
            pending = row.sampler.n_prompt - 1 - row.n_begun
        if row.whole:
            return pending
        point = next((p for p in row.snapshot_points if p > row.n_begun), None)
        if point is not None:
            pending = min(pending, point - row.n_begun)
        limits = [pending, left] + [n for n in (row.max_chunk, self.limits.prefill_chunk) if n]
        return min(limits)

    def _plan_row(self, row: Row, n_tokens: int, planned: PlanBuilder) -> int:
        """Reserve memory for the row's part, at the cost of lower ranks if need be; tokens planned."""
        assert row.tables is not None
        start, is_ahead = row.n_begun, row.awaits_token
        while True:
            n_before = self.index.n_evicted_tokens
            copies, enough = row.tables.reserve(start, start + n_tokens + len(row.drafts))
            row.n_evicted += self.index.n_evicted_tokens - n_before
            planned.copies += copies
            if enough:
                planned.add(Chunk(row, start, n_tokens, len(row.drafts), is_ahead, row.generation))
                return n_tokens
            if len(row.drafts):
                row.drafts = row.drafts[:0]
                continue
            if n_tokens > BLOCK_TOKENS and not row.whole:
                n_tokens //= 2
                continue
            if row.is_under_way:
                self.n_kept_back += 1  # once its step is done it may take what it needs from others
                return 0
            victim = next(other for other in reversed(self._rows) if other.tables is not None)
            self._preempt(victim, planned)
            if victim is row:
                return 0

    def _preempt(self, row: Row, planned: PlanBuilder) -> None:
        """Take everything from the row and let it wait, with its history; it is recomputed later."""
        self.n_preemptions += 1
        planned.drop(row)
        together = [row] + [other for other in self._rows if other.leader is row]
        for each in together:
            self._rows.remove(each)
            self._free_slots.append(each.slot)
            each.slot = -1
            self._release(each)
        self.queue.push(Ticket(together))

    def _release(self, row: Row) -> None:
        if row.reuse_prefix:
            self.index.retire(row)
        if row.tables is not None:
            row.tables.release()
            row.tables = None
        self.queue.shares.charge(row.client, -row.n_paid)
        row.n_paid = 0.0
        row.n_computed = row.n_run = 0
        row.void_steps()
        row.is_restoring = False

    def _all_rows(self) -> Iterator[Row]:
        yield from self._rows
        for ticket in self.queue:
            yield from ticket.rows

    def _n_runnable(self, row: Row) -> int:
        """Pending ids that may run; a row without its mask keeps the last one, since it would sample behind that."""
        if row.is_restoring:
            return 0
        if not row.is_under_way:
            return max(0, row.n_left - row.is_held_back)
        # A snapshot is the state behind the newest step that is done.
        if self.memory.has_state or self._waits_to_fork(row):
            return 0
        return int(row.goes_ahead) if row.awaits_token else max(0, row.n_left - row.is_held_back)

    def _waits_to_fork(self, row: Row) -> bool:
        """Once what is under way is done, others will go on from the same place."""
        return row.n_begun >= row.sampler.n_prompt - 1 and self._has_followers(row)
