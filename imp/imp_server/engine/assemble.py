"""Makes the flat arrays of a Step from the scheduler's plan."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from imp_server.backends.base import (
    WANT_HIDDEN,
    WANT_LOGITS,
    WANT_NOTHING,
    WANT_POOLED,
    WANT_PROMPT_LOGITS,
    WANT_SAMPLE,
    Int32s,
    Step,
    StepRow,
    UInt32s,
)
from imp_server.engine.constrained.masking import Made
from imp_server.engine.live import LiveRow
from imp_server.schedule.blocks import EMPTY
from imp_server.schedule.memory import RowTables
from imp_server.schedule.rows import Chunk


def assemble(chunks: Sequence[Chunk], lives: Sequence[LiveRow], n_groups: int, n_mask_words: int) -> Step:
    """`lives[i]` belongs to `chunks[i]`. Masks that aren't filled yet will be while the step runs (Step.mask_flags)."""
    pieces, positions, starts = [], [], [0]
    for chunk in chunks:
        ids = chunk.row.sampler.history[chunk.start : chunk.start + chunk.n_tokens]
        pieces.append(np.concatenate([ids, chunk.row.drafts]) if chunk.n_drafts else ids)
        n = chunk.n_tokens + chunk.n_drafts
        positions.append(np.arange(chunk.start, chunk.start + n, dtype=np.int32))
        starts.append(starts[-1] + n)
    tables = [chunk.row.tables for chunk in chunks if chunk.row.tables is not None]
    jobs: list[Future[Made]] = []
    rows: list[StepRow] = []
    for chunk, live in zip(chunks, lives, strict=True):
        row = step_row(chunk, live)
        if row.wants & WANT_SAMPLE and live.grammar is not None:
            row.mask_row = len(jobs)
            jobs += [live.grammar.job, *live.grammar.draft_masks(chunk.n_drafts)]
        rows.append(row)
    masks, flags = _gathered(jobs, n_mask_words)
    return Step(
        ids=np.concatenate(pieces).astype(np.int32, copy=False),
        positions=np.concatenate(positions),
        row_starts=np.array(starts, dtype=np.int32),
        rows=rows,
        block_tables=tuple(padded_tables(tables, group) for group in range(n_groups)),
        masks=masks,
        mask_flags=flags,
    )


def _gathered(jobs: Sequence[Future[Made]], n_words: int) -> tuple[UInt32s | None, UInt32s | None]:
    """The masks and the flags of a step; no flags if all masks are there."""
    if not jobs:
        return None, None
    # One may have failed since the loop looked: that is its row's fault, not the step's.
    done = [job.done() and job.exception() is None for job in jobs]
    if all(done):
        return np.stack([job.result().bits for job in jobs]), None
    masks = np.zeros((len(jobs), n_words), dtype=np.uint32)
    flags = np.zeros(len(jobs), dtype=np.uint32)

    def fill(index: int, job: Future[Made]) -> None:
        # Of a job that failed the flag stays down: the row isn't sampled, and the loop finds the error.
        if not job.cancelled() and job.exception() is None:
            masks[index] = job.result().bits
            flags[index] = 1

    for index, job in enumerate(jobs):
        job.add_done_callback(partial(fill, index))
    return masks, flags


def step_row(chunk: Chunk, live: LiveRow) -> StepRow:
    """What the row wants of this step."""
    request = live.output.request
    options = request.options
    wants = WANT_NOTHING
    if options.prompt_logprobs is not None and chunk.row.choice == 0 and chunk.start < chunk.row.sampler.n_prompt - 1:
        wants |= WANT_PROMPT_LOGITS
    row = StepRow(n_drafts=chunk.n_drafts, sampler=chunk.row.sampler, adapter=chunk.row.adapter)
    if chunk.is_last:
        if request.task == "generate":
            wants |= WANT_SAMPLE if request.plan.max_tokens > 0 else WANT_NOTHING
            wants |= WANT_HIDDEN if live.drafting is not None and live.drafting.wants_hidden else WANT_NOTHING
            row.n_logprobs = -1 if options.logprobs is None else options.logprobs
            row.logprobs_as_drawn = options.logprobs_as_drawn
        elif request.task == "score" or (request.task == "rank" and request.score_ids):
            wants |= WANT_LOGITS
            row.logit_ids = np.frombuffer(request.score_ids, dtype="<i4").astype(np.int32)
        else:
            wants |= WANT_POOLED
    row.wants = wants
    return row


def padded_tables(rows: Sequence[RowTables], group: int) -> Int32s:
    """The rows' block tables of one group, as wide as the widest."""
    columns = [tables.columns(group) for tables in rows]
    out = np.full((len(rows), max((len(c) for c in columns), default=0)), EMPTY, dtype=np.int32)
    for index, own in enumerate(columns):
        out[index, : len(own)] = own
    return out
