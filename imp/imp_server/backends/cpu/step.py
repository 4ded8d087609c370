"""One step: flat arrays to the native forward and back. Owner of the native model handle and of the logits buffer."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from imp_server.backends.base import (
    WANT_HIDDEN,
    WANT_LOGITS,
    WANT_POOLED,
    WANT_PROMPT_LOGITS,
    WANT_SAMPLE,
    Float32s,
    RowResult,
    Step,
    StepResult,
    StepRow,
)
from imp_server.backends.cpu import abi
from imp_server.backends.cpu.lowering import LoweredModel
from imp_server.backends.cpu.sampling import NativeSampling, is_plain_best, on_host_reason
from imp_server.backends.cpu.thread_choice import ThreadChoice
from imp_server.backends.results import sample_when_masked, wanted_positions
from imp_server.core import EngineFaulted, HostOutOfMemory
from imp_server.models import rotation

_WRONG = {
    1: "the rows don't cover the ids",
    2: "a row's positions aren't consecutive",
    3: "a block table doesn't cover its row",
    4: "an id is outside the vocabulary",
    5: "a position is beyond the rope table",
}
_FIRST_POSITIONS = 2048
_LOGITS_WANTED = WANT_LOGITS | WANT_PROMPT_LOGITS


class StepRunner:
    """Runs steps of one model on one pool."""

    def __init__(
        self,
        library: ctypes.CDLL,
        lowered: LoweredModel,
        pools: list[npt.NDArray[np.uint8]],
        n_threads: int,
        max_positions: int,
        spin_us: int,
    ) -> None:
        self._library = library
        self._lowered = lowered
        self._width = lowered.architecture.width
        self._vocab = lowered.architecture.vocab_size
        self._max_positions = max_positions
        self.threads = ThreadChoice(n_threads)
        self._handle = library.imp_cpu_open(ctypes.byref(lowered.plan), n_threads, spin_us)
        if not self._handle:
            raise HostOutOfMemory("the native model can't be made: memory or threads are short")
        plans = (abi.PoolPlan * len(pools))(*(abi.PoolPlan(p.ctypes.data, p.shape[1], len(p)) for p in pools))
        library.imp_cpu_set_pools(self._handle, plans)
        self._ropes: list[Float32s] = []
        self._rope_positions = np.zeros(max(1, len(lowered.ropes)), dtype=np.int32)
        self._rope_pointers = np.zeros(max(1, len(lowered.ropes)), dtype=np.uint64)
        self._grow_ropes(min(_FIRST_POSITIONS, max_positions))
        self._logits = np.empty((0, self._vocab), dtype=np.float32)
        self.native_s = 0.0
        """Seconds of the last native call."""

    def close(self) -> None:
        self._library.imp_cpu_close(self._handle)
        self._handle = None

    def run(self, step: Step, n_threads: int = 0) -> StepResult:
        """Raises EngineFaulted for a step that contradicts itself; nothing is written then."""
        if len(step.positions) and self._ropes and int(step.positions.max()) >= self._rope_positions[0]:
            self._grow_ropes(int(step.positions.max()) + 1)
        outputs = _Outputs(step, self)
        plan = outputs.plan
        tables = np.array([t.ctypes.data for t in step.block_tables], dtype=np.uint64)
        widths = np.array([t.shape[1] for t in step.block_tables], dtype=np.int32)
        plan.ids, plan.positions, plan.row_starts = _at(step.ids), _at(step.positions), _at(step.row_starts)
        plan.tables, plan.table_widths = _at(tables), _at(widths)
        plan.rope_tables, plan.rope_positions = _at(self._rope_pointers), _at(self._rope_positions)
        plan.n_tokens, plan.n_rows = len(step.ids), len(step.rows)
        plan.n_threads = n_threads or self.threads.threads_for(len(step.ids))
        began = time.perf_counter()
        code = self._library.imp_cpu_run(self._handle, ctypes.byref(plan))
        self.native_s = time.perf_counter() - began
        if code == -1:
            raise HostOutOfMemory("no memory for a step of this width; lower scheduler.prefill_chunk")
        if code:
            raise EngineFaulted(f"the cpu backend refused a step: {_WRONG[code]}")
        self.threads.observe(len(step.ids), plan.n_threads, self.native_s)
        return StepResult([outputs.row_result(index) for index in range(len(step.rows))])

    def read_bandwidth(self, buffer: npt.NDArray[np.uint8]) -> float:
        start = time.perf_counter()
        self._library.imp_cpu_read_all(buffer.ctypes.data, len(buffer) // 8)
        return len(buffer) / (time.perf_counter() - start)

    def room_for_logits(self, n: int) -> Float32s:
        """[n, vocab], reused from step to step and given back after a much wider one."""
        if n > len(self._logits) or len(self._logits) > 4 * max(n, 16):
            self._logits = np.empty((n, self._vocab), dtype=np.float32)
        return self._logits

    @property
    def sizes(self) -> tuple[int, int]:
        return self._width, self._vocab

    def _grow_ropes(self, n_positions: int) -> None:
        """Tables grow in powers of two: most contexts stay far below what a model could take."""
        n = min(1 << max(0, n_positions - 1).bit_length(), max(self._max_positions, n_positions))
        self._ropes = [np.ascontiguousarray(rotation.table(rope, n)) for rope in self._lowered.ropes]
        self._rope_pointers[: len(self._ropes)] = [table.ctypes.data for table in self._ropes]
        self._rope_positions[:] = n


class _Outputs:
    """The step's plan with all that it points to on the way out, and the results read from it."""

    def __init__(self, step: Step, runner: StepRunner) -> None:
        self._step = step
        width, vocab = runner.sizes
        self._wanted = wanted_positions(step)
        starts = self._wanted.starts
        keeps = np.repeat([not _only_the_best(row) for row in step.rows], np.diff(starts)).astype(np.bool_)
        self._logit_row = np.cumsum(keeps) - 1
        n_logits = int(keeps.sum())
        self._logits = runner.room_for_logits(n_logits)
        pointers = np.zeros(len(keeps), dtype=np.uint64)
        pointers[keeps] = self._logits.ctypes.data + 4 * vocab * np.arange(n_logits, dtype=np.uint64)
        self._hidden_rows = [i for i, row in enumerate(step.rows) if row.wants & (WANT_HIDDEN | WANT_POOLED)]
        hidden_tokens = np.array([step.row_starts[i + 1] - 1 for i in self._hidden_rows], dtype=np.int32)
        self._hidden = np.empty((len(hidden_tokens), width), dtype=np.float32)
        head_tokens = self._wanted.flat.astype(np.int32)
        best = np.empty(len(head_tokens), dtype=np.int32)
        self._keep = (pointers, hidden_tokens, head_tokens, best)
        self.plan = plan = abi.StepPlan()
        plan.head_tokens, plan.logits, plan.best = _at(head_tokens), _at(pointers), _at(best)
        plan.hidden_tokens, plan.hidden = _at(hidden_tokens), _at(self._hidden)
        plan.n_head, plan.n_hidden = len(head_tokens), len(hidden_tokens)
        self._plan_sampling(step, vocab)

    def _plan_sampling(self, step: Step, vocab: int) -> None:
        rows = [i for i, row in enumerate(step.rows) if _samples_natively(row)]
        self._plans = (abi.SamplerPlan * max(1, len(rows)))()
        self._sampling: dict[int, NativeSampling] = {}
        for plan, index in zip(self._plans, rows):  # the array has one plan even for no rows
            row = step.rows[index]
            end = int(step.row_starts[index + 1])
            assert row.sampler is not None
            drafts = step.ids[end - row.n_drafts : end]
            self._sampling[index] = NativeSampling(plan, row, row.sampler, drafts, step.masks, vocab, step.mask_flags)
            plan.first_head = self._wanted.starts[index + 1] - 1 - row.n_drafts
            plan.keep_logits = bool(row.wants & _LOGITS_WANTED)
        self.plan.samplers = self._plans
        self.plan.n_samplers = len(rows)

    def row_result(self, index: int) -> RowResult:
        step, row = self._step, self._step.rows[index]
        native = self._sampling.get(index)
        result = native.result() if native else RowResult(tokens=np.empty(0, dtype=np.int32))
        first, end = self._wanted.starts[index], self._wanted.starts[index + 1]
        if end > first and not _only_the_best(row):
            start = self._logit_row[first]
            logits = self._logits[start : start + end - first]
            if row.wants & WANT_SAMPLE and row.sampler is not None and native is None:
                last = int(step.row_starts[index + 1])
                result.on_host = on_host_reason(row.sampler.params)
                sample_when_masked(step, row, logits, step.ids[last - row.n_drafts : last], result)
            if row.wants & WANT_PROMPT_LOGITS:
                result.logits = logits.copy()
            elif row.wants & WANT_LOGITS:
                result.logits = (logits[-1] if row.logit_ids is None else logits[-1][row.logit_ids]).copy()
        if row.wants & (WANT_HIDDEN | WANT_POOLED):
            vector = self._hidden[self._hidden_rows.index(index)]
            result.hidden = vector if row.wants & WANT_HIDDEN else None
            result.pooled = vector if row.wants & WANT_POOLED else None
        return result


def _only_the_best(row: StepRow) -> bool:
    return not row.wants & _LOGITS_WANTED and is_plain_best(row)


def _samples_natively(row: StepRow) -> bool:
    return bool(row.wants & WANT_SAMPLE) and row.sampler is not None and not on_host_reason(row.sampler.params)


def _at(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)
