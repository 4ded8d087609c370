"""What becomes of a step's results: progress told, tokens handed to their rows, computed blocks published."""

from __future__ import annotations

from collections.abc import Sequence

from imp_server.backends.base import RowResult
from imp_server.core import EngineFaulted
from imp_server.engine.constrained.mask_waits import MaskWaits
from imp_server.engine.live import LiveRow, Sampled
from imp_server.engine.parts import EngineParts
from imp_server.engine.results import prompt_logprobs, sampled_logprobs, vectors
from imp_server.engine.row_life import RowLife
from imp_server.engine.step_meter import StepMeter
from imp_server.schedule.rows import Chunk, PlannedStep


class Landing:
    """The same for every loop: it knows nothing of when steps were launched."""

    def __init__(self, parts: EngineParts, life: RowLife, waits: MaskWaits) -> None:
        self.meter = StepMeter(parts.clock)
        self._life, self._waits = life, waits
        self._parts, self._scheduler = parts, parts.scheduler
        self._counters, self._clock = parts.counters, parts.clock
        self._never_sampled = parts.vocabulary.never_sampled

    def settle(self, plan: PlannedStep, results: Sequence[RowResult], elapsed_ms: float) -> None:
        """The step is done: tokens are taken, and what it computed is published."""
        self._scheduler.settle(plan, [result.n_accepted for result in results], elapsed_ms)
        self._counters["steps_total"] += 1
        self.meter.note(plan.chunks, [len(result.tokens) for result in results], elapsed_ms)
        self._counters["computed_tokens_total"] += plan.n_tokens
        drafted = [c.row for c in plan.chunks if c.n_drafts and not c.is_void]
        self._parts.speculation.note_verified([self._life.live.of_row(row) for row in drafted], elapsed_ms)
        for chunk, result in zip(plan.chunks, results, strict=True):
            if chunk.is_void:
                self._counters["overlap_void_chunks_total"] += 1
                continue
            live = self._life.live.of_row(chunk.row)
            live.output.counts.evicted_tokens = chunk.row.n_evicted
            self._note_progress(live, chunk, result)
            if chunk.is_last:
                self._take_result(live, chunk, result)
            self._life.touch(live)
        self._scheduler.publish(plan)

    def _note_progress(self, live: LiveRow, chunk: Chunk, result: RowResult) -> None:
        row, output = live.row, live.output
        n_prompt = row.sampler.n_prompt
        if chunk.start < n_prompt and not output.n_tokens:
            output.note_prefilled(min(row.n_computed, n_prompt))
        if row.n_computed >= n_prompt and not output.clock.prefilled_s:
            output.clock.prefilled_s = self._clock()
        if live.pooler is not None and result.hidden is not None:
            output.note_vectors(live.pooler.take(chunk.start, result.hidden))
        k = output.request.options.prompt_logprobs
        if k is not None and row.choice == 0 and result.logits is not None:
            # A row that was preempted computes its prompt again.
            entries = prompt_logprobs(row.sampler.history[:n_prompt], chunk, result.logits, k, self._never_sampled)
            live.prompt_logprobs += entries[max(0, len(live.prompt_logprobs) - chunk.start) :]
            if len(live.prompt_logprobs) == n_prompt - 1:
                output.note_prompt_logprobs(live.prompt_logprobs)

    def _take_result(self, live: LiveRow, chunk: Chunk, result: RowResult) -> None:
        output = live.output
        request = output.request
        if live.grammar is not None:
            self._waits.note_sampled(live, result)
        if chunk.n_drafts > result.n_left_out and len(result.tokens):
            self._parts.speculation.settle(live, chunk.n_drafts - result.n_left_out, result.n_accepted)
        elif chunk.n_drafts:
            self._parts.speculation.note_late_masks(live)
        if request.task != "generate":
            output.note_vectors(vectors(result) if live.pooler is None else live.pooler.end())
            output.stop("stop")
        elif request.plan.max_tokens == 0:
            output.stop("length")
        elif len(result.tokens):
            if not self._take_tokens(live, chunk, result):
                return
            if result.hidden is not None:
                self._parts.speculation.take_hidden(
                    live, chunk.start + chunk.n_tokens - 1 + result.n_accepted, result.hidden
                )
        elif result.mask_late:
            # The position is run again when the mask is there.
            self._scheduler.rewind(live.row, live.row.sampler.length - 1)
        elif not result.dead_end:
            self._life.fail(live, EngineFaulted("the model's logits weren't numbers for this request"))
            return
        if result.dead_end and output.finish is None:
            self._life.dead_end(live)

    def _take_tokens(self, live: LiveRow, chunk: Chunk, result: RowResult) -> bool:
        """As of RowLife.take."""
        clock = live.output.clock
        clock.first_token_s = clock.first_token_s or self._clock()
        ids: list[int] = result.tokens.tolist()
        logprobs, mus = sampled_logprobs(ids, result), result.mirostat_mus
        return self._life.take(
            live,
            [
                Sampled(token_id, logprobs[i : i + 1], bool(chunk.n_drafts), mus[i] if mus else None)
                for i, token_id in enumerate(ids)
            ],
        )
