"""Makes a Step from the scheduler's plan, launches it, and keeps what is known of it until it is collected."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from imp_server.backends.base import (
    LAST_SAMPLED,
    WANT_ALL_HIDDEN,
    WANT_HIDDEN,
    WANT_LOGITS,
    WANT_NOTHING,
    WANT_POOLED,
    WANT_PROMPT_LOGITS,
    WANT_SAMPLE,
    Backend,
    Pending,
    Step,
    StepRow,
    UInt32s,
)
from imp_server.backends.step_builder import StepBuilder
from imp_server.engine.constrained.masking import Made
from imp_server.engine.live import LiveRow
from imp_server.schedule.rows import Chunk, PlannedStep

_AHEAD = np.array([LAST_SAMPLED], dtype=np.int32)


class MaskRows:
    """Owner of the masks of one step: rows are filled as they are made, each with its flag."""

    def __init__(self, n_rows: int, n_words: int) -> None:
        self.masks = np.zeros((n_rows, n_words), dtype=np.uint32)
        self.flags = np.zeros(n_rows, dtype=np.uint32)

    def fill(self, index: int, job: Future[Made]) -> None:
        """Once the job is done. Of one that failed the flag stays down: the row isn't sampled, and the loop finds the
        error."""
        job.add_done_callback(partial(self._take, index))

    def give_up(self, index: int) -> None:
        """Nobody reads what is sampled there, so nobody should wait for it."""
        self.flags[index] = 1

    def _take(self, index: int, job: Future[Made]) -> None:
        if not job.cancelled() and job.exception() is None:
            self.masks[index] = job.result().bits
            self.flags[index] = 1


class LateMask(NamedTuple):
    """A row whose mask can't be asked for before the step in front of this one is collected."""

    chunk: Chunk
    live: LiveRow
    mask_row: int


@dataclass(slots=True)
class Flight:
    """A step that was launched."""

    plan: PlannedStep
    lives: list[LiveRow]
    """Of its chunks."""
    pending: Pending
    launched_s: float
    mask_rows: MaskRows | None = None
    late_masks: list[LateMask] = field(default_factory=list)

    def ask_late_masks(self) -> None:
        """The step in front has been collected, so the places behind its tokens are known."""
        if self.mask_rows is None:
            return
        for chunk, live, mask_row in self.late_masks:
            grammar = live.grammar
            if chunk.is_void or not chunk.is_last or grammar is None or live.output.finish is not None:
                self.mask_rows.give_up(mask_row)
            else:
                self.mask_rows.fill(mask_row, grammar.job)
        self.late_masks = []

    def give_up_masks(self) -> None:
        """Nobody will read the results."""
        if self.mask_rows is not None:
            self.mask_rows.flags[:] = 1


def launch(backend: Backend, plan: PlannedStep, lives: list[LiveRow], n_mask_words: int, now_s: float) -> Flight:
    """`lives[i]` belongs to `plan.chunks[i]`."""
    n_groups = len(backend.architecture.cache_groups)
    for group in range(n_groups):
        pairs = [(c.source, c.target) for c in plan.copies if c.group == group]
        if pairs:
            backend.copy_blocks(group, np.array(pairs, dtype=np.int32))
    step, mask_rows, late = make_step(plan.chunks, lives, n_groups, n_mask_words)
    return Flight(plan, lives, backend.launch(step), now_s, mask_rows, late)


def make_step(
    chunks: Sequence[Chunk], lives: Sequence[LiveRow], n_groups: int, n_mask_words: int
) -> tuple[Step, MaskRows | None, list[LateMask]]:
    """Masks that aren't filled yet will be while the step runs (Step.mask_flags), or have yet to be asked for."""
    builder = StepBuilder(n_groups)
    jobs: list[Future[Made] | None] = []
    late: list[LateMask] = []
    for chunk, live in zip(chunks, lives, strict=True):
        row = step_row(chunk, live)
        if row.wants & WANT_SAMPLE and live.grammar is not None:
            row.mask_row = len(jobs)
            if chunk.is_ahead:
                late.append(LateMask(chunk, live, len(jobs)))
                jobs.append(None)
            else:
                jobs += [live.grammar.job, *live.grammar.draft_masks(chunk.n_drafts)]
        _add(builder, chunk, row, n_groups)
    masks, mask_rows = _gathered(jobs, n_mask_words)
    return builder.finish(masks, None if mask_rows is None else mask_rows.flags), mask_rows, late


def _add(builder: StepBuilder, chunk: Chunk, row: StepRow, n_groups: int) -> None:
    ids = _AHEAD if chunk.is_ahead else chunk.row.sampler.history[chunk.start : chunk.end]
    if chunk.n_drafts:
        ids = np.concatenate([ids, chunk.row.drafts])
    tables = chunk.row.tables
    for group in range(n_groups if tables is not None else 0):
        assert tables is not None
        changes = tables.take_changes(group)
        if changes is not None:
            builder.change_table(group, row.slot, *changes)
    builder.add(row, ids, chunk.start)


def _gathered(jobs: Sequence[Future[Made] | None], n_words: int) -> tuple[UInt32s | None, MaskRows | None]:
    """The masks of a step, and their owner unless all are there."""
    if not jobs:
        return None, None
    # One may have failed since the loop looked: that is its row's fault, not the step's.
    done = [job for job in jobs if job is not None and job.done() and job.exception() is None]
    if len(done) == len(jobs):
        return np.stack([job.result().bits for job in done]), None
    rows = MaskRows(len(jobs), n_words)
    for index, job in enumerate(jobs):
        if job is not None:
            rows.fill(index, job)
    return rows.masks, rows


def step_row(chunk: Chunk, live: LiveRow) -> StepRow:
    """What the row wants of this step."""
    request = live.output.request
    options = request.options
    wants = WANT_NOTHING
    if options.prompt_logprobs is not None and chunk.row.choice == 0 and chunk.start < chunk.row.sampler.n_prompt - 1:
        wants |= WANT_PROMPT_LOGITS
    if live.pooler is not None:
        wants |= WANT_ALL_HIDDEN
    row = StepRow(
        n_drafts=chunk.n_drafts,
        sampler=chunk.row.sampler,
        adapters=chunk.row.adapters,
        slot=chunk.row.slot,
        n_history=chunk.end,
        is_ahead=chunk.is_ahead,
    )
    if chunk.may_sample:
        if request.task == "generate":
            wants |= WANT_SAMPLE if request.plan.max_tokens > 0 else WANT_NOTHING
            wants |= WANT_HIDDEN if live.drafting is not None and live.drafting.wants_hidden else WANT_NOTHING
            row.n_logprobs = -1 if options.logprobs is None else options.logprobs
            row.logprobs_as_drawn = options.logprobs_as_drawn
        elif request.task == "score" or (request.task == "rank" and request.score_ids):
            wants |= WANT_LOGITS
            row.logit_ids = np.frombuffer(request.score_ids, dtype="<i4").astype(np.int32)
        elif live.pooler is None:
            wants |= WANT_POOLED
    row.wants = wants
    return row
