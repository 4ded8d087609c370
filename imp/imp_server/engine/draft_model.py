"""A second, small model that drafts for the large one: `--draft-model`. Owner of its backend and of its KV.

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

from imp_server.backends.base import BLOCK_TOKENS, WANT_NOTHING, WANT_SAMPLE, Backend, KvSpec, RowResult, Step, StepRow
from imp_server.core import SamplingParams
from imp_server.decode.drafter import Draft, DraftedRow, Float32s, RowDrafter
from imp_server.decode.state import SamplerState
from imp_server.engine.assemble import padded_tables
from imp_server.schedule.cost import CostTable, VerifyCosts
from imp_server.schedule.memory import Memory, RowTables
from imp_server.schedule.prefix import NoPrefixIndex

log = logging.getLogger(__name__)

_MOST_PENDING = 16
"""Tokens that a row may be behind and still draft in this step; a longer way is gone first, piece by piece."""
_STARVED_TOKENS = 64
"""Tokens for which a row that got no memory leaves drafting alone."""


class ModelRow:
    """Owner of one row's place in the draft model: the ids it was given, of which the first `n_computed` have run."""

    def __init__(self, target: SamplerState, memory: Memory, n_positions: int, most_drafts: int) -> None:
        self.target = target
        prompt = target.history[: target.n_prompt]
        self.state = SamplerState(target.params, target.choice, prompt, target.capacity + most_drafts)
        self.tables: RowTables | None = RowTables(memory, n_positions)
        self.n_computed = 0
        self.silent_until = 0
        self._n_synced = target.n_prompt

    @property
    def n_pending(self) -> int:
        return self.state.length - self.n_computed

    def sync(self) -> None:
        """Forget the drafts that weren't accepted, take in what was written since."""
        ours, theirs = self.state.history[self._n_synced :], self.target.history[self._n_synced :]
        n = min(len(ours), len(theirs))
        differ = ours[:n] != theirs[:n]
        n_equal = int(np.argmax(differ)) if differ.any() else n
        self.state.length = self._n_synced + n_equal
        self.state.append(theirs[n_equal:].tolist())
        # The last id is run again if need be: a draft is sampled behind it.
        self.n_computed = min(self.n_computed, self._n_synced + n_equal, self.state.length - 1)
        self.state.mirostat_mu = self.target.mirostat_mu
        self._n_synced = self.target.length

    def propose(self, limit: int) -> Draft:
        raise RuntimeError("rows of a draft model draft together: ModelDrafter.propose_all")

    def settle(self, n_drafted: int, n_accepted: int) -> None:
        return None

    def take_hidden(self, position: int, hidden: Float32s) -> None:
        return None

    def starve(self) -> None:
        """No memory: give back what there is, so that others can go on, and begin anew after a while."""
        if self.tables is not None:
            self.tables.release()
        self.n_computed = 0
        self.silent_until = self.target.position + _STARVED_TOKENS

    def close(self) -> None:
        if self.tables is not None:
            self.tables.release()
            self.tables = None


class ModelDrafter:
    """Owner of the draft model. Its faults end its drafting, never a request."""

    name = "model"
    confidence = 0.7
    wants_hidden = False

    def __init__(
        self,
        backend: Backend,
        kv: KvSpec,
        n_ids: int,
        *,
        k: int = 8,
        p_min: float = 0.0,
        catch_up_ms: float = 25.0,
    ) -> None:
        """`n_ids`: ids that both models know. `k`: longest draft. `p_min`: an unlikelier token ends a draft."""
        backend.allocate(kv)
        self.k = k
        self.memory = Memory(backend.architecture.cache_groups, kv.n_blocks, lambda _groups, _pools: NoPrefixIndex())
        self._backend = backend
        self._n_ids = min(n_ids, backend.architecture.vocab_size)
        self._n_positions = min(backend.architecture.context_length, min(kv.n_blocks) * BLOCK_TOKENS)
        self._p_min = p_min
        self._catch_up_ms = catch_up_ms
        self._prefill_costs, self._costs = CostTable(), VerifyCosts()
        self._has_failed = False

    def start(self, row: DraftedRow) -> ModelRow | None:
        known = row.sampler.history
        if len(known) and int(known.max()) >= self._n_ids:
            return None
        return ModelRow(row.sampler, self.memory, self._n_positions, self.k)

    def price_ms(self, n_rows: int) -> float:
        """Milliseconds that one drafted token of one of `n_rows` takes."""
        return self._costs.estimate_ms(n_rows) / max(1, n_rows)

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
            if n_rows <= min(self.memory.pools, key=lambda pool: pool.n_blocks).n_blocks:
                self._costs.observe(n_rows, min(self._timed(n_rows) for _ in range(2)))

    def close(self) -> None:
        self._backend.close()

    def _timed(self, n_rows: int) -> float:
        """Milliseconds of a step of one position for each of `n_rows`, in memory that nobody holds yet."""
        state = SamplerState(SamplingParams(temperature=0.0), 0, np.zeros(1, np.int32), 2)
        tables = tuple(np.arange(n_rows, dtype=np.int32)[:, None] for _ in self.memory.groups)
        rows = [StepRow(WANT_SAMPLE, sampler=state) for _ in range(n_rows)]
        zeros = np.zeros(n_rows, dtype=np.int32)
        began = time.perf_counter()
        self._backend.run(Step(zeros, zeros, np.arange(n_rows + 1, dtype=np.int32), rows, tables))
        return 1e3 * (time.perf_counter() - began)

    def _draft(self, asked: Sequence[tuple[ModelRow, int]], drafts: dict[RowDrafter, list[int]]) -> None:
        able: list[ModelRow] = []
        limits: dict[ModelRow, int] = {}
        for row, limit in asked:
            row.sync()
            limits[row] = min(limit, self.k, self._n_positions - row.state.length)
            known = row.state.history[row.n_computed :]
            if limits[row] > 0 and row.target.position >= row.silent_until and int(known.max()) < self._n_ids:
                able.append(row)
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
        """Those that know their text but for a few ids; the others are brought nearer, within the time budget."""
        left = self._prefill_costs.tokens_within(self._catch_up_ms)
        behind: list[tuple[ModelRow, int]] = []
        for row in rows:
            n = min(row.n_pending - 1, left)
            if row.n_pending > _MOST_PENDING and n > 0:
                behind.append((row, n))
                left -= n
        if behind:
            began = time.perf_counter()
            self._run(behind, sample=False)
            self._prefill_costs.observe(sum(n for _, n in behind), 1e3 * (time.perf_counter() - began))
        return [row for row in rows if row.n_pending <= _MOST_PENDING]

    def _run(self, wanted: Sequence[tuple[ModelRow, int]], *, sample: bool) -> list[tuple[ModelRow, RowResult]]:
        """Run the next ids of each row; rows that get no memory are left out."""
        parts: list[tuple[ModelRow, RowTables, int]] = []
        for row, n in wanted:
            if row.tables is None:
                continue
            _, enough = row.tables.reserve(row.n_computed, row.n_computed + n)
            if enough:
                parts.append((row, row.tables, n))
            else:
                row.starve()
        if not parts:
            return []
        wants = WANT_SAMPLE if sample else WANT_NOTHING
        n_logprobs = 0 if self._p_min > 0 else -1
        step = Step(
            ids=np.concatenate([row.state.history[row.n_computed : row.n_computed + n] for row, _, n in parts]),
            positions=np.concatenate([np.arange(row.n_computed, row.n_computed + n) for row, _, n in parts]).astype(
                np.int32
            ),
            row_starts=np.cumsum([0, *(n for _, _, n in parts)]).astype(np.int32),
            rows=[StepRow(wants, sampler=row.state, n_logprobs=n_logprobs) for row, _, _ in parts],
            block_tables=tuple(
                padded_tables([tables for _, tables, _ in parts], group) for group in range(len(self.memory.groups))
            ),
        )
        results = self._backend.run(step).rows
        for row, _, n in parts:
            row.n_computed += n
        return [(row, result) for (row, _, _), result in zip(parts, results, strict=True)]
