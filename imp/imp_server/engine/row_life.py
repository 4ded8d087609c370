"""What becomes of rows: tokens taken, text forced, ends, and what their clients are sent."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from imp_server.core import EngineFaulted, GrammarDeadEnd, GrammarTooCostly, ImpError
from imp_server.engine.choice import ChoiceOutput
from imp_server.engine.errors import failed
from imp_server.engine.live import LiveRow, Sampled
from imp_server.engine.messages import RowDelta
from imp_server.engine.parts import EngineParts
from imp_server.engine.slot_files import SlotFiles
from imp_server.schedule.rows import Row

log = logging.getLogger(__name__)

_LEAST_MOVED = 4
"""Positions behind what is kept that a shift leaves at least."""
_MOST_ONLY = 32
"""Tokens taken in a row without logits: they wait to be computed, in one step."""


class RowLife:
    """The one way by which live rows change. Owner of what they have to send."""

    def __init__(self, parts: EngineParts) -> None:
        self.live, self.counters = parts.live, parts.counters
        self._scheduler, self._rules = parts.scheduler, parts.rules
        self._emit, self._clock = parts.emit, parts.clock
        self._n_most = parts.limits.context_length
        self.slots = SlotFiles(parts.slot_store, parts.emit, lambda: parts.scheduler.rows)

    def note_admitted(self, rows: Iterable[Row]) -> None:
        now = self._clock()
        for row in rows:
            clock = self.live.of_row(row).output.clock
            clock.admitted_s = clock.admitted_s or now

    def note_started(self, rows: Iterable[Row]) -> bool:
        """They are about to compute their prompts; True if somebody waits to hear what the cache gave."""
        started = [self.live.of_row(row) for row in rows if row.tables is not None]
        for live in started:
            live.output.note_started(live.row.n_cached, self.n_to_cache(live.row, live.row.n_cached))
            self.touch(live)
        return any(live.output.request.task == "generate" for live in started)

    def n_to_cache(self, row: Row, n_cached: int) -> int:
        """0 for the further choices of a prompt: they share it."""
        is_kept = row.reuse_prefix and self._scheduler.index.keeps and not row.choice
        return row.sampler.n_prompt - n_cached if is_kept else 0

    def append(self, live: LiveRow, ids: Sequence[int], *, closing: bool = False) -> bool:
        """New ids join the history and the grammar, whose next mask is begun; False if it forbids one.

        `closing`: of a thinking, by force."""
        self._make_room(live, len(ids))
        live.row.sampler.append(ids)
        grammar = live.grammar
        if grammar is None:
            return True
        if not all(grammar.advance(token_id) for token_id in ids):
            return False
        if closing:
            grammar.closed_by_force()
        grammar.steers = self.may_steer(live.output)
        if live.output.finish is None:
            grammar.request_mask()
        return True

    def _make_room(self, live: LiveRow, n_new: int) -> None:
        """Where the context is full and may be shifted; elsewhere the completion has ended before that."""
        shift, sampler = live.output.request.shift, live.row.sampler
        if shift is None or live.output.finish is not None or sampler.length + n_new <= self._n_most:
            return
        keep = max(0, min(shift.keep, self._n_most - _LEAST_MOVED))
        n_free = sampler.length - keep
        discard = min(n_free, max(shift.discard or n_free // 2, sampler.length + n_new - self._n_most))
        if live.drafting is not None:  # what they know of the row's text is another one's now
            live.drafting.close()
            live.drafting = None
        self._scheduler.shift(live.row, keep, discard)
        live.output.note_shifted(discard)
        self.counters["context_shifts_total"] += 1

    def may_steer(self, output: ChoiceOutput) -> bool:
        return self._rules.length_steering and output.may_be_steered

    def force(self, live: LiveRow) -> None:
        """Feed what must come next whatever the model thinks: the closing of reasoning."""
        while live.output.finish is None and (forced := live.output.forced()):
            n_taken = live.output.push(forced)
            self.touch(live)
            if not self.append(live, forced[:n_taken], closing=True):
                # A plan whose grammar doesn't know its own closer is a bug of whoever made it.
                live.output.stop("stop")

    def take_only(self, live: LiveRow) -> None:
        """Tokens about which the grammar leaves no choice are taken without logits, as they would be with them."""
        output, grammar = live.output, live.grammar
        request = output.request
        law = request.sampling
        changes_nothing = request.options.logprobs is None and not (law.mirostat or law.logit_bias or law.banned_ids)
        if grammar is None or not self._rules.takes_only or not changes_nothing:
            return
        for _ in range(_MOST_ONLY):
            token_id = None if output.finish is not None or output.must_force else grammar.only()
            if token_id is None:
                return
            output.push([token_id])
            self.append(live, [token_id])
            self.counters["completion_tokens_total"] += 1
            self.counters["constrained_only_total"] += 1

    def touch(self, live: LiveRow) -> None:
        """The row has something to send."""
        self.live.touched[live] = None

    def retire_finished(self) -> None:
        """Rows that ended outside a step (deadline, forced closing) leave the scheduler before the next plan."""
        for live in self.live.touched:
            if live.output.finish is not None:
                self.slots.note(live.row)
                self._scheduler.remove(live.row)

    def forget(self, live: LiveRow) -> None:
        """The choice is over or lost: its slot, blocks and place in the queue are free at once."""
        self.slots.note(live.row)
        self._scheduler.remove(live.row)
        if live.drafting is not None:
            live.drafting.close()
        if live.grammar is not None:
            live.grammar.close()
        self.live.remove(live)
        self.live.touched.pop(live, None)

    def take_deltas(self) -> list[RowDelta]:
        """What the touched rows gained; finished ones are forgotten."""
        deltas = []
        now = self._clock()
        for live in list(self.live.touched):
            live.output.look_at_clock(now)
            delta = live.output.take_delta()
            if delta is not None:
                deltas.append(delta)
            if live.output.finish is not None:
                self.counters["choices_finished_total"] += 1
                self.counters["prefill_ms_total"] += 0.0 if live.row.choice else live.output.finish.prefill_ms
                self.counters["decode_ms_total"] += live.output.finish.decode_ms
                self.counters["grammar_steered_total"] += live.grammar.n_steered if live.grammar is not None else 0
                self.forget(live)
                self._pin(live)
        self.live.touched.clear()
        return deltas

    def _pin(self, live: LiveRow) -> None:
        """What the request wanted pinned, now that its blocks are published."""
        marks, row = live.output.request.cache, live.row
        if row.choice or not row.reuse_prefix:
            return
        index = self._scheduler.index
        index.expire()
        if marks.pin_until:
            index.pin(row.sampler.history[: min(marks.pin_until, row.sampler.n_prompt)], row.reuse_group)
        if marks.session_id is not None and live.keeps_session:
            index.pin(row.sampler.history[:-1], row.reuse_group, marks.session_id)

    # --- sampled tokens and ends ------------------------------------------------------------------

    def take(self, live: LiveRow, tokens: Sequence[Sampled]) -> bool:
        """Of one row, in order. False: not all of them, so what their result says about the place behind is void."""
        output, sampler = live.output, live.row.sampler
        n_taken = 0
        for sampled in tokens:
            if n_taken and live.grammar is not None and not live.grammar.is_on_walk:
                # It was sampled under a mask that no longer is the row's.
                self._scheduler.rewind(live.row, sampler.length - 1)
                return False
            if not self._may_take(live, sampled):
                return False
            if sampled.was_drafting:
                output.counts.verified_tokens += 1
            output.push([sampled.token_id], sampled.logprobs)
            self.counters["completion_tokens_total"] += 1
            if sampled.mu is not None:
                sampler.mirostat_mu = sampled.mu
            if not self.append(live, [sampled.token_id]):
                self.dead_end(live)
                return False
            n_taken += 1
            if output.finish is not None or output.must_force:
                break
        # Accepted drafts that the end or the closing of reasoning left out are forgotten.
        self._scheduler.rewind(live.row, sampler.length)
        self.force(live)
        self.take_only(live)
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
        self._scheduler.rewind(live.row, live.row.sampler.length - (not is_undecided))
        return False

    def dead_end(self, live: LiveRow) -> None:
        """Nothing may follow: an end where the grammar is complete, else an error that should never be seen."""
        if live.grammar is not None and live.grammar.is_done:
            live.output.stop("stop")
            live.output.note_steered(live.grammar)
            return
        self.counters["grammar_dead_ends_total"] += 1
        what = "its grammar" if live.grammar is not None else "logit_bias or ignore_eos"
        self.fail(live, GrammarDeadEnd(f"no token may follow under {what}, though the completion isn't finished"))

    def grammar_failed(self, live: LiveRow, error: BaseException | None) -> None:
        if isinstance(error, GrammarTooCostly):
            self.counters["grammar_blown_caps_total"] += 1
            self.fail(live, error)
            return
        log.error("the mask thread failed", exc_info=error)
        self.fail(live, EngineFaulted("the grammar of this request failed; the engine goes on"))

    def fail(self, live: LiveRow, error: ImpError) -> None:
        """The whole request is lost; idempotent."""
        if live.row.key not in self.live:
            return
        self.counters["requests_failed_total"] += 1
        for each in self.live.rows_of(live.row.key):
            self.forget(each)
        self._emit(failed(live.row.key, error))
