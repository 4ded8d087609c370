"""What rows take to the host: hidden states, logits, and the few that are sampled there by the law itself."""

from __future__ import annotations

from collections.abc import Sequence
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
    StepRow,
)
from imp_server.backends.cuda.device import HostCopy
from imp_server.backends.cuda.rectangles import Rectangle
from imp_server.backends.host_sampling import sample_when_masked
from imp_server.backends.sampled_rows import n_history, reason_of


def is_sampled_on_host(row: StepRow) -> bool:
    return bool(row.wants & WANT_SAMPLE) and row.sampler is not None and bool(reason_of(row))


class HostPart:
    """Owner of what of one step is on its way to the host. Ids are counted in the step."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._logits: list[tuple[list[int], HostCopy]] = []
        self._vectors: list[tuple[list[int], HostCopy]] = []
        self._wants_logits = [_logit_range(step, index) for index in range(len(step.rows))]
        self._wants_vectors = [_vector_range(step, index) for index in range(len(step.rows))]
        self.n_history = [n_history(row) if row.sampler is not None else -1 for row in step.rows]
        """Of each row when the step was launched; samplers may get more before it is collected."""

    def logits_in(self, rectangle: Rectangle) -> list[int]:
        return _within(self._wants_logits, rectangle)

    def vectors_in(self, rectangle: Rectangle) -> list[int]:
        return _within(self._wants_vectors, rectangle)

    def take_logits(self, flat: list[int], download: HostCopy) -> None:
        self._logits.append((flat, download))

    def take_vectors(self, flat: list[int], download: HostCopy) -> None:
        self._vectors.append((flat, download))

    def logits(self) -> dict[int, Float32s]:
        return _arrived(self._logits)

    def vectors(self) -> dict[int, Float32s]:
        return _arrived(self._vectors)

    def logits_wanted(self, index: int) -> range:
        return self._wants_logits[index]


def _within(wanted: Sequence[range], rectangle: Rectangle) -> list[int]:
    found: list[int] = []
    for piece in rectangle.pieces:
        own = wanted[piece.row]
        found += range(max(own.start, piece.begin), min(own.stop, piece.end))
    return found


def _arrived(parts: Sequence[tuple[list[int], HostCopy]]) -> dict[int, Float32s]:
    return {flat: line for ids, download in parts for flat, line in zip(ids, download.wait(), strict=True)}


def _logit_range(step: Step, index: int) -> range:
    row, begin, end = step.rows[index], int(step.row_starts[index]), int(step.row_starts[index + 1])
    if row.wants & WANT_PROMPT_LOGITS:
        return range(begin, end)
    if is_sampled_on_host(row):
        return range(end - 1 - row.n_drafts, end)
    return range(end - 1 if row.wants & WANT_LOGITS else end, end)


def _vector_range(step: Step, index: int) -> range:
    row, begin, end = step.rows[index], int(step.row_starts[index]), int(step.row_starts[index + 1])
    if row.wants & WANT_ALL_HIDDEN:
        return range(begin, end)
    return range(end - 1 - row.n_drafts if row.wants & (WANT_HIDDEN | WANT_POOLED) else end, end)


def finish_on_host(host: HostPart, results: Sequence[RowResult]) -> None:
    """Fill in `results`, one for each row of the step."""
    step, logits, vectors = host.step, host.logits(), host.vectors()
    for index, (row, result) in enumerate(zip(step.rows, results, strict=True)):
        end = int(step.row_starts[index + 1])
        wanted = host.logits_wanted(index)
        if is_sampled_on_host(row):
            _sample(host, index, np.stack([logits[flat] for flat in wanted]), result)
        if row.wants & WANT_PROMPT_LOGITS:
            result.logits = np.stack([logits[flat] for flat in wanted])
        elif row.wants & WANT_LOGITS:
            last = logits[end - 1]
            result.logits = last if row.logit_ids is None else last[row.logit_ids]
        stands = end - 1 - row.n_drafts + result.n_accepted
        if row.wants & WANT_ALL_HIDDEN:
            result.hidden = np.stack([vectors[flat] for flat in range(int(step.row_starts[index]), end)])
        elif row.wants & WANT_HIDDEN:
            result.hidden = vectors[stands]
        if row.wants & WANT_POOLED:
            result.pooled = vectors[stands]


def _sample(host: HostPart, index: int, logits: Float32s, result: RowResult) -> None:
    step, row = host.step, host.step.rows[index]
    known = row.sampler
    assert known is not None
    if host.n_history[index] != known.length:  # it has got more since
        known = known.as_of(host.n_history[index])
    result.on_host = reason_of(row)
    end = int(step.row_starts[index + 1])
    drafts = step.ids[end - row.n_drafts : end]
    sample_when_masked(step, replace(row, sampler=known), logits, drafts, result)
