"""The step loop: admit, schedule, run, settle, emit. One thread owns everything here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from imp_server.backends.base import Backend, RowResult
from imp_server.core import (
    EngineFaulted,
    GrammarDeadEnd,
    GrammarRefused,
    GrammarTooCostly,
    ImpError,
    Unavailable,
)
from imp_server.engine.acceptance import Limits
from imp_server.engine.assemble import assemble
from imp_server.engine.constrained.constraint import MakeConstraint
from imp_server.engine.constrained.mask_waits import MaskWaits
from imp_server.engine.drafting.speculation import Speculation
from imp_server.engine.errors import failed
from imp_server.engine.live import LiveRow, Sampled
from imp_server.engine.messages import FromEngine, StepDone, ToEngine
from imp_server.engine.request_handler import GrammarReady, RequestHandler
from imp_server.engine.results import prompt_logprobs, sampled_logprobs, vectors
from imp_server.engine.row_rules import RowRules
from imp_server.engine.step_meter import StepMeter
from imp_server.schedule.rows import Chunk, StepPlan
from imp_server.schedule.scheduler import Scheduler
from imp_server.vocab.table import Vocabulary

log = logging.getLogger(__name__)


class EngineLoop:
    """Owner of the model's work: the scheduler, the live requests and the order in which they are served."""

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        vocabulary: Vocabulary,
        limits: Limits,
        *,
        emit: Callable[[FromEngine], None],
        post: Callable[[GrammarReady], None],
        rules: RowRules | None = None,
        make_constraint: MakeConstraint | None = None,
        speculation: Speculation | None = None,
        note_running: Callable[[Collection[int]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`emit` takes what goes to the client; `post` puts a message into this loop's own inbox from any thread.

        `note_running` hears the keys of the requests in a step before it runs.
        """
        self.backend = backend
        self.scheduler = scheduler
        self.speculation = speculation or Speculation()
        self._meter = StepMeter(clock)
        self.requests = RequestHandler(
            scheduler,
            backend,
            vocabulary,
            limits,
            emit=emit,
            post=post,
            rules=rules or RowRules(),
            make=make_constraint or _refuse,
            clock=clock,
            more_counters=lambda: {**self.speculation.counters(), **self._meter.counters()},
        )
        self._live = self.requests.live
        self._emit = emit
        self._note_running = note_running
        self._clock = clock
        self._counters = self.requests.counters
        # A late mask has its position run again, which a recurrent state can't.
        overlaps = backend.info.waits_for_masks and not scheduler.memory.has_state
        self._waits = MaskWaits(self._counters, clock, overlaps_masks=overlaps)
        self._n_mask_words = -(-limits.vocab_size // 32)
        self._never_sampled = vocabulary.never_sampled

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def is_over(self) -> bool:
        """A drain is complete."""
        return self.requests.is_drained

    def handle(self, message: ToEngine | GrammarReady) -> None:
        self.requests.handle(message)

    def step(self) -> None:
        """One forward. Whatever a row gained since its last hand-off leaves with this step's."""
        self._expire()
        self.requests.note_admitted(self.scheduler.admit())
        self._decide()
        self._await_masks()
        self._propose_drafts()
        plan = self.scheduler.plan()
        self.speculation.note_planned()
        if self.requests.note_started(self.scheduler.take_started()):
            self._hand_off()  # before a forward that may take long: an opening event waits for it
        if plan.chunks:
            began_s = self._clock()
            results = self._run(plan)
            if results is not None:
                self._settle(plan, results, 1e3 * (self._clock() - began_s))
        self._hand_off()

    def rest(self) -> bool:
        """Nobody waits: check the memory, and do a piece of what can wait; True if there is more of that."""
        fault = self.scheduler.idle_fault()
        if fault:
            self._counters["integrity_faults_total"] += 1
            log.error("the KV memory isn't whole: %s", fault)
        return self.scheduler.index.tidy()

    def close(self, reason: ImpError | None = None) -> None:
        """Fail what is left and release the backend."""
        self.requests.fail_all(reason or Unavailable("the engine was stopped"))
        self.requests.close()
        self.scheduler.index.close()
        self.speculation.close()
        self.backend.close()

    # --- before the forward ---------------------------------------------------------------------

    def _expire(self) -> None:
        for live in self._live.overdue(self._clock()):
            live.output.stop("length", "timed_out")
            self.requests.touch(live)
        self.requests.retire_finished()

    def _decide(self) -> None:
        """Tokens on which the mask thread has found a verdict meanwhile."""
        for live in self._constrained():
            sampled, grammar = live.undecided, live.grammar
            if sampled is None or grammar is None or grammar.judging is None or not grammar.judging.done():
                continue
            live.undecided = None
            error = grammar.judging.exception()
            if error is None:
                self._take(live, [sampled])
                self.requests.touch(live)
            else:
                self._grammar_failed(live, error)
        self.requests.retire_finished()

    def _await_masks(self) -> None:
        """A row whose mask isn't ready sits out the step, so a slow grammar holds nobody else."""
        constrained = self._constrained()
        for live in self._waits.hold_back(constrained, len(self.scheduler.rows)) if constrained else ():
            assert live.grammar is not None
            self._grammar_failed(live, live.grammar.job.exception())

    def _constrained(self) -> list[LiveRow]:
        return [live for live in self._admitted() if live.grammar is not None and live.output.finish is None]

    def _propose_drafts(self) -> None:
        decoding = [live for live in self._admitted() if live.row.is_decoding and not live.row.is_held_back]
        self.speculation.propose(decoding, self._waits.overlaps_masks)

    def _admitted(self) -> list[LiveRow]:
        return [self._live.of_row(row) for row in self.scheduler.rows if row.leader is None]

    # --- the forward and after ------------------------------------------------------------------

    def _run(self, plan: StepPlan) -> list[RowResult] | None:
        """None: the step failed, and with it its requests; the engine goes on."""
        lives = [self._live.of_row(chunk.row) for chunk in plan.chunks]
        if self._note_running is not None:
            self._note_running({chunk.row.key for chunk in plan.chunks})
        try:
            for group in range(len(self.scheduler.memory.groups)):
                pairs = [(c.source, c.target) for c in plan.copies if c.group == group]
                if pairs:
                    self.backend.copy_blocks(group, np.array(pairs, dtype=np.int32))
            step = assemble(plan.chunks, lives, len(self.scheduler.memory.groups), self._n_mask_words)
            return self.backend.run(step).rows
        except Exception:
            log.exception("a step of %d rows failed", len(plan.chunks))
            self._counters["steps_failed_total"] += 1
            self.scheduler.failed(plan)
            for live in lives:
                self._fail(live, EngineFaulted("the engine failed at this step; its other requests go on"))
            return None

    def _settle(self, plan: StepPlan, results: Sequence[RowResult], elapsed_ms: float) -> None:
        self.scheduler.settle(plan, [result.n_accepted for result in results], elapsed_ms)
        self._counters["steps_total"] += 1
        self._meter.note(plan.chunks, [len(result.tokens) for result in results], elapsed_ms)
        self._counters["computed_tokens_total"] += plan.n_tokens
        self.speculation.note_verified([self._live.of_row(c.row) for c in plan.chunks if c.n_drafts], elapsed_ms)
        for chunk, result in zip(plan.chunks, results, strict=True):
            live = self._live.of_row(chunk.row)
            live.output.counts.evicted_tokens = chunk.row.n_evicted
            self._note_progress(live, chunk, result)
            if chunk.is_last:
                self._take_result(live, chunk, result)
            self.requests.touch(live)
        self.scheduler.publish(plan)

    def _note_progress(self, live: LiveRow, chunk: Chunk, result: RowResult) -> None:
        row, output = live.row, live.output
        n_prompt = row.sampler.n_prompt
        if chunk.start < n_prompt and not output.n_tokens:
            output.note_prefilled(min(row.n_computed, n_prompt))
        if row.n_computed >= n_prompt and not output.clock.prefilled_s:
            output.clock.prefilled_s = self._clock()
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
            self.speculation.settle(live, chunk.n_drafts - result.n_left_out, result.n_accepted)
        elif chunk.n_drafts:
            self.speculation.note_late_masks(live)
        if request.task != "generate":
            output.note_vectors(vectors(result))
            output.stop("stop")
        elif request.plan.max_tokens == 0:
            output.stop("length")
        elif len(result.tokens):
            if not self._take_tokens(live, chunk, result):
                return
            if result.hidden is not None:
                self.speculation.take_hidden(live, chunk.start + chunk.n_tokens - 1 + result.n_accepted, result.hidden)
        elif result.mask_late:
            # The position is run again when the mask is there.
            self.scheduler.rewind(live.row, live.row.sampler.length - 1)
        elif not result.dead_end:
            self._fail(live, EngineFaulted("the model's logits weren't numbers for this request"))
            return
        if result.dead_end and output.finish is None:
            self._dead_end(live)

    def _take_tokens(self, live: LiveRow, chunk: Chunk, result: RowResult) -> bool:
        """False: not all of them, so what the result says about the place behind them is void."""
        clock = live.output.clock
        clock.first_token_s = clock.first_token_s or self._clock()
        ids: list[int] = result.tokens.tolist()
        logprobs, mus = sampled_logprobs(ids, result), result.mirostat_mus
        return self._take(
            live,
            [
                Sampled(token_id, logprobs[i : i + 1], bool(chunk.n_drafts), mus[i] if mus else None)
                for i, token_id in enumerate(ids)
            ],
        )

    def _take(self, live: LiveRow, tokens: Sequence[Sampled]) -> bool:
        """False as above."""
        output, sampler = live.output, live.row.sampler
        n_taken = 0
        for sampled in tokens:
            if not self._may_take(live, sampled):
                return False
            if sampled.was_drafting:
                output.counts.verified_tokens += 1
            output.push([sampled.token_id], sampled.logprobs)
            self._counters["completion_tokens_total"] += 1
            if sampled.mu is not None:
                sampler.mirostat_mu = sampled.mu
            if not self.requests.append(live, [sampled.token_id]):
                self._dead_end(live)
                return False
            n_taken += 1
            if output.finish is not None or output.must_force:
                break
        # Accepted drafts that the end or the closing of reasoning left out are forgotten.
        self.scheduler.rewind(live.row, sampler.length)
        self.requests.force(live)
        self.requests.take_only(live)
        output.note_steered(live.grammar)
        return n_taken == len(tokens)

    def _may_take(self, live: LiveRow, sampled: Sampled) -> bool:
        """What the grammar says of a token. False: it has to wait for that, or the position is run again without it."""
        grammar = live.grammar
        if grammar is None:
            return True
        verdict = grammar.judge(sampled.token_id)
        if verdict in ("ok", "forbidden"):
            return True
        is_undecided = verdict == "later"
        live.undecided = sampled if is_undecided else None
        self.scheduler.rewind(live.row, live.row.sampler.length - (not is_undecided))
        return False

    def _dead_end(self, live: LiveRow) -> None:
        """Nothing may follow: an end where the grammar is complete, else an error that should never be seen."""
        if live.grammar is not None and live.grammar.is_done:
            live.output.stop("stop")
            live.output.note_steered(live.grammar)
            return
        self._counters["grammar_dead_ends_total"] += 1
        what = "its grammar" if live.grammar is not None else "logit_bias or ignore_eos"
        self._fail(live, GrammarDeadEnd(f"no token may follow under {what}, though the completion isn't finished"))

    def _grammar_failed(self, live: LiveRow, error: BaseException | None) -> None:
        if isinstance(error, GrammarTooCostly):
            self._counters["grammar_blown_caps_total"] += 1
            self._fail(live, error)
            return
        log.error("the mask thread failed", exc_info=error)
        self._fail(live, EngineFaulted("the grammar of this request failed; the engine goes on"))

    def _fail(self, live: LiveRow, error: ImpError) -> None:
        """The whole request is lost; idempotent."""
        if live.row.key not in self._live:
            return
        self._counters["requests_failed_total"] += 1
        for each in self._live.rows_of(live.row.key):
            self.requests.forget(each)
        self._emit(failed(live.row.key, error))

    def _hand_off(self) -> None:
        deltas = self.requests.take_deltas()
        if deltas:
            self._emit(StepDone(tuple(deltas), self.requests.gauges()))

    def stats(self) -> tuple[Mapping[str, float], tuple[dict[str, Any], ...]]:
        return self.requests.stats()


def _refuse(_plan: object) -> Any:
    raise GrammarRefused("this engine has no grammar support")
