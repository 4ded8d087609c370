"""One step: flat arrays to the native forward and back. Owner of the native model handle and of the logits buffer.

The host's share of a step is on every token's way, so what steps have in common is kept (buffers.py), not made anew.
"""

from __future__ import annotations

import ctypes
import time

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
from imp_server.backends.cpu.buffers import Buffer, StepBuffers
from imp_server.backends.cpu.lowering import LoweredModel
from imp_server.backends.cpu.sampling import NativeSampling, is_plain_best, on_host_reason
from imp_server.backends.cpu.thread_choice import ThreadChoice
from imp_server.backends.results import sample_when_masked
from imp_server.core import EngineFaulted, HostOutOfMemory
from imp_server.models import rotation

_WRONG = {
    1: "the rows don't cover the ids",
    2: "a row's positions aren't consecutive",
    3: "a block table doesn't cover its row",
    4: "an id is outside the vocabulary",
    5: "a position is beyond the rope table",
}
_BEYOND_ROPE = 5
_FIRST_POSITIONS = 2048
_LOGITS_WANTED = WANT_LOGITS | WANT_PROMPT_LOGITS
_VECTOR_WANTED = WANT_HIDDEN | WANT_POOLED
_NARROW = 8
"""Tokens of a step that may be over before the system gives the mask thread a core that this step holds. A wider one
takes long enough."""


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
        *,
        n_beside_masks: int,
    ) -> None:
        """`n_beside_masks`: threads that leave a core to the mask thread."""
        self._n_beside_masks = n_beside_masks
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
        self._buffers = StepBuffers(len(pools))
        self._plan = abi.StepPlan()
        self._ropes: list[Float32s] = []
        self._n_rope_positions = 0
        self._rope_pointers, self._rope_positions = Buffer(np.uint64, 1), Buffer(np.int32, 1)
        self._grow_ropes(min(_FIRST_POSITIONS, max_positions))
        self._logits = np.empty((0, self._vocab), dtype=np.float32)
        self.native_s = 0.0
        """Seconds of the last native call."""

    def close(self) -> None:
        self._library.imp_cpu_close(self._handle)
        self._handle = None

    def run(self, step: Step, n_threads: int = 0) -> StepResult:
        """Raises EngineFaulted for a step that contradicts itself; nothing is written then."""
        plan, n_tokens = self._plan, len(step.ids)
        self._plan_inputs(step)
        outputs = _Outputs(step, self, plan, self._buffers)
        depth = int(step.positions.sum()) // n_tokens
        chosen = n_threads or self.threads.threads_for(n_tokens, depth)
        if n_tokens <= _NARROW and step.mask_flags is not None and not step.mask_flags.all():
            chosen = min(chosen, self._n_beside_masks)
        plan.n_threads = chosen
        code = self._call(plan)
        if code == _BEYOND_ROPE and int(step.positions.max()) >= self._n_rope_positions:
            self._grow_ropes(int(step.positions.max()) + 1)
            code = self._call(plan)
        if code == -1:
            raise HostOutOfMemory("no memory for a step of this width; lower scheduler.prefill_chunk")
        if code:
            raise EngineFaulted(f"the cpu backend refused a step: {_WRONG[code]}")
        self.threads.observe(n_tokens, chosen, self.native_s, depth)
        return StepResult([outputs.row_result(index) for index in range(len(step.rows))])

    def _call(self, plan: abi.StepPlan) -> int:
        began = time.perf_counter()
        code: int = self._library.imp_cpu_run(self._handle, ctypes.byref(plan))
        self.native_s = time.perf_counter() - began
        return code

    def _plan_inputs(self, step: Step) -> None:
        plan, buffers = self._plan, self._buffers
        plan.ids = buffers.ids.hold(step.ids)
        plan.positions = buffers.positions.hold(step.positions)
        plan.row_starts = buffers.row_starts.hold(step.row_starts)
        for group, table in enumerate(step.block_tables):
            buffers.table_pointers.array[group] = buffers.tables[group].hold(table.reshape(-1))
            buffers.table_widths.array[group] = table.shape[1]
        plan.tables, plan.table_widths = buffers.table_pointers.address, buffers.table_widths.address
        plan.n_tokens, plan.n_rows = len(step.ids), len(step.rows)

    @property
    def panels_evaluated(self) -> int:
        """Panels of the head multiplied by the last search through its plane; 0: it was left to the full product."""
        return int(self._library.imp_cpu_panels_evaluated(self._handle))

    @property
    def masked_panels(self) -> int:
        """Panels of the head that the last step multiplied for rows whose masks allow few."""
        return int(self._library.imp_cpu_masked_panels(self._handle))

    def read_bandwidth(self, buffer: npt.NDArray[np.uint8]) -> float:
        start = time.perf_counter()
        self._library.imp_cpu_read_all(buffer.ctypes.data, len(buffer) // 8)
        return len(buffer) / (time.perf_counter() - start)

    def buffer_for_logits(self, n: int) -> Float32s:
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
        self._plan.rope_tables = self._rope_pointers.hold([table.ctypes.data for table in self._ropes])
        self._plan.rope_positions = self._rope_positions.hold([n] * len(self._ropes))
        self._n_rope_positions = n


class _Outputs:
    """What each row takes from the step: positions of the head, logits, samplers; and the results read from them."""

    __slots__ = ("_best", "_first", "_first_vector", "_hidden", "_keep", "_logit_row", "_logits", "_native", "_step")

    def __init__(self, step: Step, runner: StepRunner, plan: abi.StepPlan, buffers: StepBuffers) -> None:
        self._step, self._best = step, buffers.best
        width, vocab = runner.sizes
        starts: list[int] = step.row_starts.tolist()
        head_tokens: list[int] = []
        self._first: list[int] = []
        """Of each row among the head's positions."""
        self._logit_row: list[int] = []
        """First of each row's kept logits; -1: only the best ids are wanted."""
        samplers: list[int] = []
        kept: list[int] = []
        for index, row in enumerate(step.rows):
            first = len(head_tokens)
            head_tokens += _head_positions(row, starts[index], starts[index + 1])
            self._first.append(first)
            plain = not row.wants & _LOGITS_WANTED and is_plain_best(row)
            self._logit_row.append(-1 if plain else len(kept))
            if not plain:
                kept.extend(range(first, len(head_tokens)))
            if row.wants & WANT_SAMPLE and (row.n_drafts if plain else _samples_natively(row)):
                samplers.append(index)
        n_head = len(head_tokens)
        self._first.append(n_head)
        plan.head_tokens, plan.n_head = buffers.head_tokens.hold(head_tokens), n_head
        plan.best = buffers.best.at_least(n_head)
        self._logits = runner.buffer_for_logits(len(kept))
        pointers = [0] * n_head
        if kept:
            base = int(self._logits.ctypes.data)
            for at, position in enumerate(kept):
                pointers[position] = base + 4 * vocab * at
        plan.logits = buffers.logit_pointers.hold(pointers)
        self._plan_vectors(step, plan, buffers, starts, width)
        self._plan_sampling(step, plan, starts, samplers, vocab)

    def _plan_vectors(
        self, step: Step, plan: abi.StepPlan, buffers: StepBuffers, starts: list[int], width: int
    ) -> None:
        self._first_vector: dict[int, int] = {}
        places: list[int] = []
        for index, row in enumerate(step.rows):
            if row.wants & _VECTOR_WANTED:
                # Which of the drafts will be accepted isn't known yet: the vectors of all of them are kept.
                self._first_vector[index] = len(places)
                places += range(starts[index + 1] - 1 - row.n_drafts, starts[index + 1])
        plan.n_hidden = len(places)
        plan.hidden_tokens = buffers.hidden_tokens.hold(places)
        if places:
            self._hidden: Float32s = np.empty((len(places), width), dtype=np.float32)
            plan.hidden = self._hidden.ctypes.data

    def _plan_sampling(
        self, step: Step, plan: abi.StepPlan, starts: list[int], samplers: list[int], vocab: int
    ) -> None:
        self._native: dict[int, NativeSampling] = {}
        plan.n_samplers = len(samplers)
        if not samplers:
            return
        self._keep = plans = (abi.SamplerPlan * len(samplers))()
        plan.samplers = plans
        for own, index in zip(plans, samplers, strict=True):
            row = step.rows[index]
            assert row.sampler is not None
            end = starts[index + 1]
            drafts = step.ids[end - row.n_drafts : end]
            self._native[index] = NativeSampling(own, row, row.sampler, drafts, step.masks, vocab, step.mask_flags)
            own.first_head = self._first[index + 1] - 1 - row.n_drafts
            own.keep_logits = bool(row.wants & _LOGITS_WANTED)

    def row_result(self, index: int) -> RowResult:
        row, first, end = self._step.rows[index], self._first[index], self._first[index + 1]
        native = self._native.get(index)
        if native is not None:
            result = native.result()
        elif self._logit_row[index] < 0 and row.wants & WANT_SAMPLE and self._best.array[first] >= 0:
            result = RowResult(tokens=self._best.array[first:end].copy())
        else:
            # No token and no dead end: nothing was asked for, or the logits weren't numbers.
            result = RowResult(tokens=np.empty(0, dtype=np.int32))
        if end > first and self._logit_row[index] >= 0:
            self._take_logits(index, row, result, native is None)
        if row.wants & _VECTOR_WANTED:
            vector = self._hidden[self._first_vector[index] + result.n_accepted]
            result.hidden = vector if row.wants & WANT_HIDDEN else None
            result.pooled = vector if row.wants & WANT_POOLED else None
        return result

    def _take_logits(self, index: int, row: StepRow, result: RowResult, on_host: bool) -> None:
        step, start = self._step, self._logit_row[index]
        logits = self._logits[start : start + self._first[index + 1] - self._first[index]]
        if row.wants & WANT_SAMPLE and row.sampler is not None and on_host:
            last = int(step.row_starts[index + 1])
            result.on_host = _on_host_reason(row)
            sample_when_masked(step, row, logits, step.ids[last - row.n_drafts : last], result)
        if row.wants & WANT_PROMPT_LOGITS:
            result.logits = logits.copy()
        elif row.wants & WANT_LOGITS:
            result.logits = (logits[-1] if row.logit_ids is None else logits[-1][row.logit_ids]).copy()


def _head_positions(row: StepRow, begin: int, end: int) -> range:
    """The positions of a row that the LM head runs on (backends/results.py `wanted_positions`)."""
    if row.wants & WANT_PROMPT_LOGITS:
        return range(begin, end)
    if row.wants & WANT_SAMPLE:
        return range(end - 1 - row.n_drafts, end)
    return range(end - 1 if row.wants & WANT_LOGITS else end, end)


def _samples_natively(row: StepRow) -> bool:
    return row.sampler is not None and not _on_host_reason(row)


def _on_host_reason(row: StepRow) -> str:
    assert row.sampler is not None
    return on_host_reason(row.sampler.params, logprobs_as_drawn=row.logprobs_as_drawn and row.n_logprobs >= 0)
