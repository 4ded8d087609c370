"""The step loop: admit, schedule, launch, collect, settle, emit. One thread owns everything here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from imp_server.backends.base import DeviceLost
from imp_server.core import EngineFaulted, ImpError, Unavailable
from imp_server.engine.constrained.mask_waits import MaskWaits
from imp_server.engine.flight import Flight, launch
from imp_server.engine.intake import Intake
from imp_server.engine.landing import Landing
from imp_server.engine.live import LiveRow
from imp_server.engine.messages import StepDone, ToEngine
from imp_server.engine.parts import EngineParts, GrammarReady
from imp_server.engine.row_life import RowLife
from imp_server.schedule.rows import PlannedStep

log = logging.getLogger(__name__)


class EngineLoop:
    """The plain loop: a step is collected before the next one is planned. Owner of the order in which things happen."""

    def __init__(self, parts: EngineParts) -> None:
        self.backend, self.scheduler = parts.backend, parts.scheduler
        self.parts = parts
        self._counters, self._clock, self._live = parts.counters, parts.clock, parts.live
        self._life = RowLife(parts)
        self.requests = Intake(parts, self._life)
        # A late mask has its position run again, which a recurrent state can't.
        overlaps = parts.backend.info.waits_for_masks and not parts.scheduler.memory.has_state
        self._waits = MaskWaits(parts.counters, parts.clock, overlaps_masks=overlaps)
        self._landing = Landing(parts, self._life, self._waits)
        self.requests.telling.sources.append(self._landing.meter.counters)
        self._n_mask_words = -(-parts.limits.vocab_size // 32)
        self._landed_s = self._waited_s = 0.0

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
        flight = self._launch()
        if flight is not None:
            self._land(flight)
        self._hand_off()

    def rest(self) -> bool:
        """Nobody waits: check the memory, and do a piece of what can wait; True if there is more of that."""
        fault = self.scheduler.idle_fault()
        if fault:
            self._counters["integrity_faults_total"] += 1
            log.error("the KV memory isn't whole: %s", fault)
        has_more = self._life.slots.go_on()
        return self.scheduler.index.tidy() or has_more

    def close(self, reason: ImpError | None = None) -> None:
        """Fail what is left and release the backend."""
        self.requests.fail_all(reason or Unavailable("the engine was stopped"))
        self.requests.close()
        self.scheduler.index.close()
        self.parts.speculation.close()
        self.backend.close()

    def stats(self) -> tuple[Mapping[str, float], tuple[dict[str, Any], ...]]:
        return self.requests.telling.stats()

    # --- before the forward ---------------------------------------------------------------------

    def _launch(self) -> Flight | None:
        """The next step, of all rows that may run now; None if there is nothing to run, or it failed."""
        self._expire()
        self._life.slots.go_on()
        self._life.note_admitted(self.scheduler.admit())
        self._decide()
        self._await_masks()
        self._propose_drafts()
        plan = self.scheduler.plan()
        self.parts.speculation.note_planned()
        if self._life.note_started(self.scheduler.take_started()):
            self._hand_off()  # before a forward that may take long: an opening event waits for it
        return self._launched(plan) if plan.chunks else None

    def _expire(self) -> None:
        for live in self._live.overdue(self._clock()):
            live.output.stop("length", "timed_out")
            self._life.touch(live)
        self._life.retire_finished()

    def _decide(self) -> None:
        """Tokens on which the mask thread has found a verdict meanwhile."""
        for live in self._constrained():
            sampled, grammar = live.undecided, live.grammar
            if sampled is None or grammar is None or grammar.judging is None or not grammar.judging.done():
                continue
            live.undecided = None
            error = grammar.judging.exception()
            if error is None:
                self._life.take(live, [sampled])
                self._life.touch(live)
            else:
                self._life.grammar_failed(live, error)
        self._life.retire_finished()

    def _await_masks(self) -> None:
        """A row whose mask isn't ready sits out the step, so a slow grammar holds nobody else."""
        constrained = [live for live in self._constrained() if not live.row.awaits_token]
        held = self._waits.hold_back(constrained, is_alone=self._is_alone(constrained)) if constrained else ()
        for live in held:
            assert live.grammar is not None
            self._life.grammar_failed(live, live.grammar.job.exception())

    def _is_alone(self, constrained: list[LiveRow]) -> bool:
        """Nobody but these rows could run."""
        return len(constrained) == len(self.scheduler.rows)

    def _constrained(self) -> list[LiveRow]:
        return [live for live in self._admitted() if live.grammar is not None and live.output.finish is None]

    def _propose_drafts(self) -> None:
        rows = [live for live in self._admitted() if live.row.is_decoding]
        decoding = [live for live in rows if not (live.row.is_held_back or live.row.awaits_token)]
        self.parts.speculation.propose(decoding, self._waits.overlaps_masks)

    def _admitted(self) -> list[LiveRow]:
        return [self._live.of_row(row) for row in self.scheduler.rows if row.leader is None]

    # --- the forward and after ------------------------------------------------------------------

    def _launched(self, plan: PlannedStep) -> Flight | None:
        lives = [self._live.of_row(chunk.row) for chunk in plan.chunks]
        if self.parts.note_running is not None:
            self.parts.note_running({chunk.row.key for chunk in (*plan.chunks, *self._chunks_under_way())})
        try:
            flight = launch(self.backend, plan, lives, self._n_mask_words, self._clock())
        except DeviceLost:
            raise
        except Exception:
            self._failed(plan)
            return None
        for chunk in plan.chunks:
            chunk.row.n_begun = chunk.end
        return flight

    def _chunks_under_way(self) -> list[Any]:
        return []

    def _land(self, flight: Flight) -> None:
        """Wait for the step and settle it. If it failed its requests did; the engine goes on."""
        waits_s = self._clock()
        try:
            results = flight.pending.collect().rows
        except DeviceLost:
            raise
        except Exception:
            self._failed(flight.plan)
            return
        # It began when it was launched, or when the one before was done.
        began_s, self._landed_s = max(flight.launched_s, self._landed_s), self._clock()
        self._waited_s += self._landed_s - waits_s
        self._landing.settle(flight.plan, results, 1e3 * (self._landed_s - began_s))

    def _failed(self, plan: PlannedStep) -> None:
        log.exception("a step of %d rows failed", len(plan.chunks))
        self._counters["steps_failed_total"] += 1
        self.scheduler.failed(plan)
        for chunk in plan.chunks:
            if not chunk.is_void:
                live = self._live.of_row(chunk.row)
                self._life.fail(live, EngineFaulted("the engine failed at this step; its other requests go on"))

    def _hand_off(self) -> None:
        deltas = self._life.take_deltas()
        if deltas:
            self.parts.emit(StepDone(tuple(deltas), self.requests.telling.gauges()))
