"""Which positions of a step need logits, and what becomes of them: shared by every backend that samples on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imp_server.backends.base import (
    WANT_LOGITS,
    WANT_PROMPT_LOGITS,
    WANT_SAMPLE,
    Float32s,
    Int32s,
    RowResult,
    SampledLogprobs,
    Step,
    StepRow,
    UInt32s,
)
from imp_server.backends.host_queue import PlainStep
from imp_server.backends.late_masks import await_masks
from imp_server.decode.logprobs import PositionLogprobs
from imp_server.decode.verify import sample_row


class WantedLogits(NamedTuple):
    """`flat`: indices into the step's ids whose logits are needed; row r owns flat[starts[r]:starts[r + 1]]."""

    flat: NDArray[np.int64]
    starts: list[int]


def wanted_positions(step: PlainStep) -> WantedLogits:
    """The LM head runs on these alone."""
    flat: list[NDArray[np.int64]] = []
    starts = [0]
    for index, row in enumerate(step.rows):
        begin, end = int(step.row_starts[index]), int(step.row_starts[index + 1])
        if row.wants & WANT_PROMPT_LOGITS:
            first = begin
        elif row.wants & WANT_SAMPLE:
            first = end - 1 - row.n_drafts
        elif row.wants & WANT_LOGITS:
            first = end - 1
        else:
            first = end
        flat.append(np.arange(first, end))
        starts.append(starts[-1] + end - first)
    return WantedLogits(np.concatenate(flat), starts)


def row_results(step: PlainStep, wanted: WantedLogits, logits: Float32s) -> list[RowResult]:
    """Results with tokens and logits filled in; `logits` [len(wanted.flat), vocab] raw."""
    results = []
    for index, row in enumerate(step.rows):
        own = logits[wanted.starts[index] : wanted.starts[index + 1]]
        end = int(step.row_starts[index + 1])
        results.append(_row_result(step, row, own, step.ids[end - row.n_drafts : end]))
    return results


def _row_result(step: PlainStep, row: StepRow, logits: Float32s, drafts: Int32s) -> RowResult:
    result = RowResult(tokens=np.empty(0, dtype=np.int32))
    if row.wants & WANT_PROMPT_LOGITS:
        result.logits = logits
    elif row.wants & WANT_LOGITS:
        result.logits = logits[-1] if row.logit_ids is None else logits[-1][row.logit_ids]
    if row.wants & WANT_SAMPLE and row.sampler is not None:
        sample_when_masked(step, row, logits, drafts, result)
    return result


def sample_when_masked(
    step: Step | PlainStep, row: StepRow, logits: Float32s, drafts: Int32s, result: RowResult
) -> None:
    """`sample_on_host` with as many drafts as masks are filled in time."""
    n_ready, result.mask_wait_ms = await_masks(step, row)
    if n_ready == 0:
        result.mask_late, result.n_left_out = True, row.n_drafts
        return
    result.n_left_out = left_out = 1 + row.n_drafts - n_ready
    tried = len(logits) - left_out
    fewer = replace(row, n_drafts=n_ready - 1) if left_out else row
    sample_on_host(fewer, logits[:tried], drafts[: n_ready - 1], step.masks, result)


def sample_on_host(row: StepRow, logits: Float32s, drafts: Int32s, masks: UInt32s | None, result: RowResult) -> None:
    """One row by the law itself; `logits` end with the 1 + n_drafts rows to sample from. Fills in `result`."""
    assert row.sampler is not None
    n = 1 + row.n_drafts
    own_masks = masks[row.mask_row : row.mask_row + n] if masks is not None and row.mask_row >= 0 else None
    try:
        verified = sample_row(
            logits[-n:], row.sampler, drafts.tolist(), own_masks, row.n_logprobs, as_drawn=row.logprobs_as_drawn
        )
    except FloatingPointError:
        # No token and no dead end: the engine fails this row alone.
        return
    result.tokens = np.array(verified.tokens, dtype=np.int32)
    result.n_accepted = verified.n_accepted
    result.dead_end = verified.dead_end
    if row.n_logprobs >= 0:
        result.logprobs = _packed(verified.logprobs, row.n_logprobs)
    if row.sampler.params.mirostat:
        result.mirostat_mus = tuple(verified.mus)


def _packed(entries: list[PositionLogprobs], k: int) -> SampledLogprobs:
    k = min(k, max((len(e.top) for e in entries), default=0))
    top_ids, top = np.full((len(entries), k), -1, dtype=np.int32), np.zeros((len(entries), k), dtype=np.float32)
    for index, entry in enumerate(entries):
        n = min(k, len(entry.top))
        top_ids[index, :n], top[index, :n] = entry.top_ids[:n], entry.top[:n]
    return SampledLogprobs(
        token=np.array([e.token for e in entries], dtype=np.float32),
        rank=np.array([e.rank for e in entries], dtype=np.int32),
        top_ids=top_ids,
        top=top,
    )
