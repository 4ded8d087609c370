"""What each row takes from a native step: positions of the head, logits, samplers; and the results read from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from imp_server.backends.base import (
    WANT_ALL_HIDDEN,
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
from imp_server.backends.cpu.buffers import StepRoom
from imp_server.backends.cpu.sampling import NativeSampling
from imp_server.backends.host_sampling import sample_when_masked
from imp_server.backends.sampled_rows import is_plain_best, reason_of

_LOGITS_WANTED = WANT_LOGITS | WANT_PROMPT_LOGITS
_VECTOR_WANTED = WANT_HIDDEN | WANT_POOLED | WANT_ALL_HIDDEN


class Outputs:
    """Owner of where the results of one step will lie, as long as its room is its own."""

    __slots__ = ("_first", "_first_vector", "_hidden", "_keep", "_logit_row", "_logits", "_native", "_room", "_step")

    def __init__(self, step: Step, room: StepRoom, width: int) -> None:
        self._step, self._room = step, room
        plan, buffers, vocab = room.plan, room.buffers, room.vocab_size
        starts: list[int] = step.row_starts.tolist()
        head_tokens: list[int] = []
        self._first: list[int] = []
        """Of each row among the head's positions."""
        self._logit_row: list[int] = []
        """First of each row's kept logits; -1: only the best ids are wanted."""
        samplers: list[int] = []
        kept: list[int] = []
        best_heads = [-1] * len(step.rows)
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
            elif row.wants & WANT_SAMPLE and plain:
                best_heads[index] = first
        n_head = len(head_tokens)
        self._first.append(n_head)
        plan.head_tokens, plan.n_head = buffers.head_tokens.hold(head_tokens), n_head
        plan.best, plan.best_heads = buffers.best.at_least(n_head), buffers.best_heads.hold(best_heads)
        self._logits = room.logits_of(len(kept))
        pointers = [0] * n_head
        if kept:
            base = int(self._logits.ctypes.data)
            for at, position in enumerate(kept):
                pointers[position] = base + 4 * vocab * at
        plan.logits = buffers.logit_pointers.hold(pointers)
        self._plan_vectors(starts, width)
        self._plan_sampling(starts, samplers)

    def _plan_vectors(self, starts: list[int], width: int) -> None:
        step, plan = self._step, self._room.plan
        self._first_vector: dict[int, int] = {}
        places: list[int] = []
        for index, row in enumerate(step.rows):
            if row.wants & _VECTOR_WANTED:
                # Which of the drafts will be accepted isn't known yet: the vectors of all of them are kept.
                self._first_vector[index] = len(places)
                first = starts[index] if row.wants & WANT_ALL_HIDDEN else starts[index + 1] - 1 - row.n_drafts
                places += range(first, starts[index + 1])
        plan.n_hidden = len(places)
        plan.hidden_tokens = self._room.buffers.hidden_tokens.hold(places)
        if places:
            self._hidden: Float32s = np.empty((len(places), width), dtype=np.float32)
            plan.hidden = self._hidden.ctypes.data

    def _plan_sampling(self, starts: list[int], samplers: list[int]) -> None:
        step, plan = self._step, self._room.plan
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
            self._native[index] = NativeSampling(
                own, row, row.sampler, drafts, step.masks, self._room.vocab_size, step.mask_flags
            )
            own.first_head = self._first[index + 1] - 1 - row.n_drafts
            own.keep_logits = bool(row.wants & _LOGITS_WANTED)

    def results(self) -> StepResult:
        """Once the step is done."""
        return StepResult([self._row_result(index) for index in range(len(self._step.rows))])

    def _row_result(self, index: int) -> RowResult:
        row, first, end = self._step.rows[index], self._first[index], self._first[index + 1]
        native, best = self._native.get(index), self._room.buffers.best.array
        if native is not None:
            result = native.result()
        elif self._logit_row[index] < 0 and row.wants & WANT_SAMPLE and best[first] >= 0:
            result = RowResult(tokens=best[first:end].copy())
        else:
            # No token and no dead end: nothing was asked for, or the logits weren't numbers.
            result = RowResult(tokens=np.empty(0, dtype=np.int32))
        if end > first and self._logit_row[index] >= 0:
            self._take_logits(index, row, result, native is None)
        if row.wants & _VECTOR_WANTED:
            self._take_vectors(index, row, result)
        return result

    def _take_vectors(self, index: int, row: StepRow, result: RowResult) -> None:
        first = self._first_vector[index]
        n = int(self._step.row_starts[index + 1] - self._step.row_starts[index])
        if row.wants & WANT_ALL_HIDDEN:
            result.hidden = self._hidden[first : first + n]
            first += n - 1 - row.n_drafts
        elif row.wants & WANT_HIDDEN:
            result.hidden = self._hidden[first + result.n_accepted]
        if row.wants & WANT_POOLED:
            result.pooled = self._hidden[first + result.n_accepted]

    def _take_logits(self, index: int, row: StepRow, result: RowResult, on_host: bool) -> None:
        step, start = self._step, self._logit_row[index]
        logits = self._logits[start : start + self._first[index + 1] - self._first[index]]
        if row.wants & WANT_SAMPLE and row.sampler is not None and on_host:
            last = int(step.row_starts[index + 1])
            result.on_host = reason_of(row)
            known = row.sampler
            if row.n_history not in (-1, known.length):  # it has got more since
                known = known.as_of(row.n_history)
            sample_when_masked(step, replace(row, sampler=known), logits, step.ids[last - row.n_drafts : last], result)
        if row.wants & WANT_PROMPT_LOGITS:
            result.logits = logits.copy()
        elif row.wants & WANT_LOGITS:
            result.logits = (logits[-1] if row.logit_ids is None else logits[-1][row.logit_ids]).copy()


def _head_positions(row: StepRow, begin: int, end: int) -> range:
    """The positions of a row that the LM head runs on (backends/host_sampling.py `wanted_positions`)."""
    if row.wants & WANT_PROMPT_LOGITS:
        return range(begin, end)
    if row.wants & WANT_SAMPLE:
        return range(end - 1 - row.n_drafts, end)
    return range(end - 1 if row.wants & WANT_LOGITS else end, end)


def _samples_natively(row: StepRow) -> bool:
    return row.sampler is not None and not reason_of(row)
