"""A second, small model that drafts for the large one: `--draft-model`. Owner of its backend; draft_rows.py has its KV.

Rows draft together: one forward per draft position, for all rows that are asked. Each samples with its own parameters
and the very noise that the large model will use at that place, so that under sampling, too, the two models draw the
same token where they think alike. What the large model didn't accept is forgotten before the next draft.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from math import exp

import numpy as np

from imp_server.backends.base import BLOCK_TOKENS, WANT_NOTHING, WANT_SAMPLE, Backend, KvSpec, RowResult, StepRow
from imp_server.backends.step_builder import StepBuilder
from imp_server.core import SamplingParams
from imp_server.decode.drafter import ANY_ROWS, Draft, DraftedRow, RowDrafter
from imp_server.decode.state import SamplerState
from imp_server.engine.drafting.draft_rows import DraftMemory, ModelRow
from imp_server.schedule.cost import CostTable, VerifyCosts
from imp_server.schedule.memory import BlockCopy, RowTables
from imp_server.schedule.prefix import MakeIndex

log = logging.getLogger(__name__)

_MOST_PENDING = 16
"""Tokens that a row may be behind and still draft in this step; a longer way is gone first, piece by piece."""


class ModelDrafter:
    """Owner of the draft model. Its faults end its drafting, never a request."""

    name = "model"
    confidence = 0.7
    wants_hidden = False
    most_rows = ANY_ROWS

    def __init__(
        self,
        backend: Backend,
        kv: KvSpec,
        n_ids: int,
        *,
        k: int = 8,
        p_min: float = 0.0,
        catch_up_ms: float = 25.0,
        make_index: MakeIndex | None = None,
    ) -> None:
        """`n_ids`: ids that both models know. `k`: longest draft. `p_min`: an unlikelier token ends a draft.

        `catch_up_ms`: of a step, for reading text that the draft model doesn't know yet. `make_index`: what it has read
        is kept there for later rows.
        """
        backend.allocate(kv)
        self.k = k
        self._n_positions = min(backend.architecture.context_length, min(kv.n_blocks) * BLOCK_TOKENS)
        self.memory = DraftMemory(backend.architecture.cache_groups, kv.n_blocks, self._n_positions, make_index)
        self._backend = backend
        self._n_ids = min(n_ids, backend.architecture.vocab_size)
        self._p_min = p_min
        self._catch_up_ms = catch_up_ms
        self._prefill_costs, self._costs = CostTable(), VerifyCosts()
        self._has_failed = False

    def start(self, row: DraftedRow) -> ModelRow | None:
        known = row.sampler.history
        if len(known) and int(known.max()) >= self._n_ids:
            return None
        return ModelRow(row.sampler, self.memory, self.k, row.reuse_group)

    def price_ms(self, n_rows: int) -> float:
        """Milliseconds that one drafted token of one of `n_rows` takes."""
        return self._costs.estimate_ms(n_rows) / max(1, n_rows)

    def behind_ms(self, row: RowDrafter) -> float:
        """Milliseconds until it can draft for the row: for the text that it has yet to read."""
        n = self.memory.n_unknown(row) if isinstance(row, ModelRow) else 0
        return self._prefill_costs.estimate_ms(n) if n >= _MOST_PENDING else 0.0

    def propose_all(self, asked: Sequence[tuple[RowDrafter, int]]) -> list[Draft]:
        """A draft per row, of at most as many ids as asked for."""
        drafts: dict[RowDrafter, list[int]] = {row: [] for row, _ in asked}
        if not self._has_failed:
            try:
                self._draft([(row, limit) for row, limit in asked if isinstance(row, ModelRow)], drafts)
            except Exception:
                log.exception("the draft model failed; it is left alone from now on")
                self._has_failed = True
        return [Draft(np.array(drafts[row], dtype=np.int32)) for row, _ in asked]

    def measure(self) -> None:
        """Learn what a draft position costs before anybody waits for it."""
        for n_rows in (1, 2, 4, 8):
            if n_rows <= min(sum(counts) for counts in self.memory.counts()):
                self._costs.observe(n_rows, min(self._timed(n_rows) for _ in range(2)))

    def counters(self) -> dict[str, float]:
        """Its own prefix cache's; those of the large model's have the same names without `draft_`."""
        return {
            f"draft_{name}": value for name, value in self.memory.counters().items() if name.endswith("tokens_total")
        }

    def close(self) -> None:
        self._backend.close()

    def _timed(self, n_rows: int) -> float:
        """Milliseconds of a step of one position for each of `n_rows`, in memory that nobody holds yet."""
        state = SamplerState(SamplingParams(temperature=0.0), 0, np.zeros(1, np.int32), 2)
        builder = StepBuilder(self.memory.n_groups)
        for block in range(n_rows):
            tables = [np.array([block], dtype=np.int32)] * self.memory.n_groups
            builder.add_alone(StepRow(WANT_SAMPLE, sampler=state), np.zeros(1, dtype=np.int32), 0, tables)
        step = builder.finish()
        began = time.perf_counter()
        self._backend.run(step)
        return 1e3 * (time.perf_counter() - began)

    def _draft(self, asked: Sequence[tuple[ModelRow, int]], drafts: dict[RowDrafter, list[int]]) -> None:
        able: list[ModelRow] = []
        limits: dict[ModelRow, int] = {}
        for row, limit in sorted(asked, key=lambda each: each[0].place.number):
            row.sync()
            limits[row] = min(limit, self.k, self._n_positions - row.state.length)
            unread = row.state.history[row.n_computed :]
            if limits[row] > 0 and int(unread.max()) < self._n_ids:
                able.append(row)
        self.memory.open_turn(able)
        active = self._caught_up(able)
        is_measured = False  # the first forward may run more than one position of a row
        while active:
            began = time.perf_counter()
            results = self._run([(row, row.n_pending) for row in active], sample=True)
            if is_measured:
                self._costs.observe(len(active), 1e3 * (time.perf_counter() - began))
            is_measured = True
            going_on = []
            for row, result in results:
                if self._take(row, result, drafts[row]) and len(drafts[row]) < limits[row]:
                    going_on.append(row)
            active = going_on

    def _take(self, row: ModelRow, result: RowResult, draft: list[int]) -> bool:
        """False: the draft ends here."""
        if not len(result.tokens) or int(result.tokens[0]) >= self._n_ids:
            return False
        if result.logprobs is not None and exp(float(result.logprobs.token[0])) < self._p_min:
            return False
        row.state.append([int(result.tokens[0])])
        draft.append(int(result.tokens[0]))
        if result.mirostat_mus:
            row.state.mirostat_mu = result.mirostat_mus[0]
        return True

    def _caught_up(self, rows: Sequence[ModelRow]) -> list[ModelRow]:
        """Those that know their text but for a few ids; the others are brought nearer, within the time budget.

        Whoever is nearest goes first: shared out among all, the budget would let none of them begin for long, and a
        long prompt would keep all behind it from drafting. At least a block, as in the scheduler: on a busy machine
        the smallest forward exceeds the budget, and token by token nobody arrives.
        """
        begun = [row for row in rows if self.memory.begin(row, self.k)]
        left = max(BLOCK_TOKENS, self._prefill_costs.tokens_within(self._catch_up_ms))
        pieces: dict[ModelRow, int] = {}
        for row in sorted(begun, key=lambda row: row.n_pending):
            n = min(row.n_pending - 1, left)
            if row.n_pending > _MOST_PENDING and n > 0:
                pieces[row] = n
                left -= n
        behind = [(row, pieces[row]) for row in begun if row in pieces]
        if behind:
            began = time.perf_counter()
            read = self._run(behind, sample=False)
            self._prefill_costs.observe(sum(n for _, n in behind), 1e3 * (time.perf_counter() - began))
            for row, _ in read:
                self.memory.publish(row)
        return [row for row in rows if row.place.tables is not None and row.n_pending <= _MOST_PENDING]

    def _run(self, wanted: Sequence[tuple[ModelRow, int]], *, sample: bool) -> list[tuple[ModelRow, RowResult]]:
        """Run the next ids of each row, oldest first; rows that get no memory are left out."""
        parts: list[tuple[ModelRow, RowTables, int]] = []
        copies: dict[tuple[int, int], BlockCopy] = {}
        for row, n in wanted:
            due = self.memory.grow(row, n)
            if due is not None and row.place.tables is not None:
                copies |= {(copy.group, copy.target): copy for copy in due}
                parts.append((row, row.place.tables, n))
        if not parts:
            return []
        for group in range(self.memory.n_groups):
            pairs = [(copy.source, copy.target) for copy in copies.values() if copy.group == group]
            if pairs:
                self._backend.copy_blocks(group, np.array(pairs, dtype=np.int32))
        wants = WANT_SAMPLE if sample else WANT_NOTHING
        n_logprobs = 0 if self._p_min > 0 else -1
        builder = StepBuilder(self.memory.n_groups)
        for row, tables, n in parts:
            first, columns = row.n_computed, [tables.columns(group) for group in range(self.memory.n_groups)]
            wanted_of_row = StepRow(wants, sampler=row.state, n_logprobs=n_logprobs)
            builder.add_alone(wanted_of_row, row.state.history[first : first + n], first, columns)
        results = self._backend.run(builder.finish()).rows
        self.memory.settle_copies()
        for row, _, n in parts:
            row.place.n_computed += n
        return [(row, result) for (row, _, _), result in zip(parts, results, strict=True)]
