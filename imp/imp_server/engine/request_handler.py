"""Handles the requests of the loop: takes messages in, keeps what is alive, and gives deltas out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from imp_server.backends.base import Backend
from imp_server.core import (
    Draining,
    GenerateRequest,
    GrammarTooCostly,
    ImpError,
    InternalError,
    SamplingParams,
    Unavailable,
)
from imp_server.decode.state import SamplerState
from imp_server.engine.acceptance import Limits, check_request
from imp_server.engine.adapters import Adapters
from imp_server.engine.choice import ChoiceOutput
from imp_server.engine.constrained.constraint import Constraint, MakeConstraint
from imp_server.engine.constrained.grammar_row import GrammarRow
from imp_server.engine.constrained.masking import Asker, MaskThread
from imp_server.engine.constrained.turn_queue import TOO_COSTLY
from imp_server.engine.counters import row_facts, scheduler_counters, zeros
from imp_server.engine.errors import failed, rejected
from imp_server.engine.known_plans import KnownPlans
from imp_server.engine.live import LiveRequest, LiveRequests, LiveRow
from imp_server.engine.messages import (
    AdapterDone,
    AskStats,
    Cancel,
    CloseSession,
    Drain,
    EndReasoning,
    FromEngine,
    LoadAdapter,
    NeedGrammar,
    ReasoningEnded,
    ReasoningVerdict,
    RequestAccepted,
    RequestFailed,
    RowDelta,
    SessionClosed,
    StatsReply,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from imp_server.engine.row_rules import RowRules
from imp_server.schedule.rows import Row
from imp_server.schedule.scheduler import Scheduler
from imp_server.schedule.snapshots import snapshot_points
from imp_server.schedule.tiers.record import scoped_group
from imp_server.vocab.table import Vocabulary

_MOST_ONLY = 32
"""Tokens taken in a row without logits: they wait to be computed, in one step."""
_PROMPT_LOGITS_CHUNK = 64
"""Tokens of a step when logits of every prompt position are wanted: they take vocab x 4 bytes each."""


class GrammarReady(NamedTuple):
    """The mask thread has started a request's grammar (or refused it); goes to the loop's own inbox."""

    key: int
    constraint: Future[Constraint]


class RequestHandler:
    """Owner of the live requests, the counters and the rows with something to send."""

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        vocabulary: Vocabulary,
        limits: Limits,
        *,
        emit: Callable[[FromEngine], None],
        post: Callable[[GrammarReady], None],
        rules: RowRules,
        make: MakeConstraint,
        clock: Callable[[], float],
        more_counters: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._more_counters = more_counters
        self.live = LiveRequests()
        self.counters: defaultdict[str, float] = defaultdict(float)
        self._scheduler = scheduler
        self._backend = backend
        self._never_sampled = vocabulary.never_sampled
        # Ids of the embedding that the tokenizer doesn't know write nothing.
        self._token_bytes = vocabulary.token_bytes + [b""] * (limits.vocab_size - vocabulary.size)
        self._limits, self._rules = limits, rules
        self._emit = emit
        self._post = post
        self._clock = clock
        self._masks = MaskThread(limits.vocab_size, make, self._rows_run, self._clients_run)
        self._plans = KnownPlans()
        self._starting: dict[int, GenerateRequest] = {}
        self._start_jobs: dict[int, Future[Constraint]] = {}
        self._adapters = Adapters(backend)
        self._touched: dict[LiveRow, None] = {}
        self._drain_until_s: float | None = None

    # --- messages in ----------------------------------------------------------------------------

    def handle(self, message: ToEngine | GrammarReady) -> None:
        match message:
            case Submit():
                self._submit(message.request, has_grammar=message.has_grammar)
            case GrammarReady():
                self._grammar_ready(message)
            case Cancel():
                self._cancel(message)
            case EndReasoning():
                self._emit(ReasoningEnded(message.key, self._end_reasoning(message.key)))
            case LoadAdapter() | UnloadAdapter():
                self._emit(self._change_adapter(message))
            case AskStats():
                counters, rows = self.stats()
                self._emit(StatsReply(message.ticket, dict(counters), rows))
            case Drain():
                self._drain_until_s = self._clock() + message.timeout_s
            case CloseSession():
                self._emit(SessionClosed(message.ticket, self._close_session(message.session_id)))
            case _:
                raise InternalError(f"{type(message).__name__} doesn't belong here")

    @property
    def is_drained(self) -> bool:
        if self._drain_until_s is None:
            return False
        return not (len(self.live) or self._starting) or self._clock() >= self._drain_until_s

    def wait_limit_s(self) -> float | None:
        """How long the loop may sleep without a message; None = for ever."""
        if self._drain_until_s is None:
            return None
        return max(0.0, self._drain_until_s - self._clock())

    def _submit(self, request: GenerateRequest, *, has_grammar: bool) -> None:
        try:
            n_waiting = self._scheduler.n_waiting + len(self._starting)
            ids = check_request(request, self._limits, n_queued=n_waiting, adapters=self._adapters)
            if self._drain_until_s is not None:
                raise Draining("the server is shutting down; try another one")
        except ImpError as error:
            self._reject(request.key, error)
            return
        if request.plan.grammar is None or request.plan.max_tokens == 0:
            self._accept(request, ids, None)
            return
        key = request.key
        plan = self._plans.whole(request.plan.grammar, has_payload=has_grammar)
        if plan is None:
            self._emit(NeedGrammar(key))
            return
        self._starting[key] = request
        future = self._start_jobs[key] = self._masks.start(plan, Asker(request.owner, key))
        future.add_done_callback(lambda done: self._post(GrammarReady(key, done)))

    def _grammar_ready(self, message: GrammarReady) -> None:
        self._start_jobs.pop(message.key, None)
        request = self._starting.pop(message.key, None)
        if request is None:
            return  # cancelled meanwhile
        error = message.constraint.exception()
        if error is None:
            self._accept(request, np.frombuffer(request.ids, dtype="<i4"), message.constraint.result())
        elif isinstance(error, ImpError):
            self._reject(request.key, error)
        else:
            self._reject(request.key, InternalError(f"the grammar failed to start: {type(error).__name__}"))

    def _accept(self, request: GenerateRequest, ids: NDArray[np.int32], constraint: Constraint | None) -> None:
        self.counters["requests_total"] += 1
        self.counters["prompt_tokens_total"] += len(ids)
        now = self._clock()
        rows = [self._make_row(request, ids, choice, constraint) for choice in range(request.options.n)]
        for live in rows:
            live.output.clock.arrived_s = now
        deadline = None if request.deadline_s is None else now + request.deadline_s
        self.live.add(LiveRequest(request, rows, deadline))
        n_cached = self._scheduler.n_known(rows[0].row)
        self._emit(RequestAccepted(request.key, len(ids), n_cached, self._n_to_cache(rows[0].row, n_cached)))
        for live in rows:
            self.force(live)
            if live.grammar is not None:
                live.grammar.request_mask()
        self._scheduler.submit([live.row for live in rows], n_cached)

    def _make_row(
        self, request: GenerateRequest, ids: NDArray[np.int32], choice: int, constraint: Constraint | None
    ) -> LiveRow:
        room = max(0, self._limits.context_length - len(ids))
        most = len(ids) + min(room, request.plan.max_tokens) + 1
        sampler = SamplerState(self._law(request.sampling), choice, ids, most, self._token_bytes)
        plain = request.task == "generate" and request.options.prompt_logprobs is None
        adapter = self._adapters.get(request.options.adapter)
        row = Row(
            request.key,
            choice,
            sampler,
            priority=-request.options.priority,
            urgency=-request.options.priority if request.outranks else 0,
            client=request.owner,
            wanted_slot=-1 if request.options.row_preference is None or choice else request.options.row_preference,
            adapter=adapter.slot,
            reuse_group=scoped_group(adapter.reuse_group, request.cache.scope),
            reuse_prefix=plain,
            max_chunk=0 if request.options.prompt_logprobs is None else _PROMPT_LOGITS_CHUNK,
            whole=self._backend.architecture.is_encoder,
            snapshot_points=self._snapshot_points(request, len(ids)) if plain else (),
        )
        output = ChoiceOutput(request, choice, self._token_bytes, room=room)
        grammar = None
        if constraint is not None:
            grammar = GrammarRow(
                constraint,
                request.plan.end_ids,
                self._masks,
                output.room_left,
                n_early=request.plan.n_early,
                steers=self._may_steer(output),
                asker=Asker(request.owner, request.key),
            )
        return LiveRow(row, output, grammar)

    def _law(self, sampling: SamplingParams) -> SamplingParams:
        """What the request asks for, less the ids that no row may choose."""
        if not self._never_sampled:
            return sampling
        banned = tuple(sorted({*sampling.banned_ids, *self._never_sampled}))
        return replace(sampling, banned_ids=banned)

    def _snapshot_points(self, request: GenerateRequest, n_prompt: int) -> tuple[int, ...]:
        if not self._scheduler.memory.has_state:
            return ()
        return snapshot_points(request.spans, n_prompt, self._rules.checkpoint_min_step)

    def _reject(self, key: int, error: ImpError) -> None:
        self.counters["requests_rejected_total"] += 1
        self._emit(rejected(key, error))

    def _cancel(self, message: Cancel) -> None:
        if self._starting.pop(message.key, None) is not None:
            self._start_jobs[message.key].cancel()
            return
        rows = self.live.rows_of(message.key, message.choice)
        self.counters["choices_cancelled_total"] += len(rows)
        for live in rows:
            self.forget(live)

    def _end_reasoning(self, key: int) -> ReasoningVerdict:
        rows = self.live.rows_of(key)
        verdicts = [live.output.end_reasoning() for live in rows]
        for live in rows:
            self.force(live)
        return next((v for v in ("ending", "no_closer", "already_closed") if v in verdicts), "unknown")

    def _close_session(self, session_id: str) -> int:
        """A turn that still runs would pin at its end what was closed before: it won't."""
        self.live.close_session(session_id)
        for key, request in self._starting.items():
            if request.cache.session_id == session_id:
                self._starting[key] = replace(request, cache=replace(request.cache, session_id=None))
        return self._scheduler.index.release_session(session_id)

    def _change_adapter(self, message: LoadAdapter | UnloadAdapter) -> AdapterDone:
        try:
            if isinstance(message, LoadAdapter):
                self._adapters.load(message.name, message.path)
            else:
                self._adapters.unload(message.name)
        except ImpError as error:
            return AdapterDone(message.ticket, False, error.code, error.message)
        return AdapterDone(message.ticket, True)

    # --- rows -----------------------------------------------------------------------------------

    def note_admitted(self, rows: Iterable[Row]) -> None:
        now = self._clock()
        for row in rows:
            clock = self.live.of_row(row).output.clock
            clock.admitted_s = clock.admitted_s or now

    def note_started(self, rows: Iterable[Row]) -> bool:
        """They are about to compute their prompts; True if somebody waits to hear what the cache gave."""
        started = [self.live.of_row(row) for row in rows if row.tables is not None]
        for live in started:
            live.output.note_started(live.row.n_cached, self._n_to_cache(live.row, live.row.n_cached))
            self.touch(live)
        return any(live.output.request.task == "generate" for live in started)

    def _n_to_cache(self, row: Row, n_cached: int) -> int:
        """0 for the further choices of a prompt: they share it."""
        is_kept = row.reuse_prefix and self._scheduler.index.keeps and not row.choice
        return row.sampler.n_prompt - n_cached if is_kept else 0

    def append(self, live: LiveRow, ids: Sequence[int], *, closing: bool = False) -> bool:
        """New ids join the history and the grammar, whose next mask is begun; False if it forbids one.

        `closing`: of a thinking, by force."""
        live.row.sampler.append(ids)
        grammar = live.grammar
        if grammar is None:
            return True
        if not all(grammar.advance(token_id) for token_id in ids):
            return False
        if closing:
            grammar.closed_by_force()
        grammar.steers = self._may_steer(live.output)
        if live.output.finish is None:
            grammar.request_mask()
        return True

    def _may_steer(self, output: ChoiceOutput) -> bool:
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
        self._touched[live] = None

    def retire_finished(self) -> None:
        """Rows that ended outside a step (deadline, forced closing) leave the scheduler before the next plan."""
        for live in self._touched:
            if live.output.finish is not None:
                self._scheduler.remove(live.row)

    def forget(self, live: LiveRow) -> None:
        """The choice is over or lost: its slot, blocks and place in the queue are free at once."""
        self._scheduler.remove(live.row)
        if live.drafting is not None:
            live.drafting.close()
        if live.grammar is not None:
            live.grammar.close()
        self.live.remove(live)
        self._touched.pop(live, None)

    def take_deltas(self) -> list[RowDelta]:
        """What the touched rows gained; finished ones are forgotten."""
        deltas = []
        now = self._clock()
        for live in list(self._touched):
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
        self._touched.clear()
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

    # --- what the outside may know --------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        counts = self._scheduler.memory.counts()
        return {
            "rows_running": float(len(self._scheduler.rows)),
            "requests_waiting": float(self._scheduler.n_waiting + len(self._starting)),
            "blocks_free": float(sum(c.free for c in counts)),
            "blocks_held": float(sum(c.held for c in counts)),
            "blocks_cached": float(sum(c.cached for c in counts)),
        }

    def stats(self) -> tuple[Mapping[str, float], tuple[dict[str, Any], ...]]:
        """Counters and gauges by name, and one dict per admitted row."""
        others = self._scheduler.index.counters() | dict(self._more_counters()) | dict(self._masks.seconds)
        counters = zeros() | dict(self.counters) | scheduler_counters(self._scheduler) | others | self.gauges()
        return counters, tuple(map(row_facts, self._scheduler.rows))

    def fail_all(self, error: ImpError) -> None:
        for key in self.live.keys_of([live.row for live in self.live.rows()]):
            for live in self.live.rows_of(key):
                self.forget(live)
            self._emit(failed(key, error))
        for key in list(self._starting):
            self._starting.pop(key)
            self._reject(key, Unavailable("the engine was stopped"))

    def find_stuck(self, stuck_s: float) -> RequestFailed | None:
        """What to say of the request on which the last mask thread got stuck: nothing constrained can go on.

        None: no thread is stuck, or another took its place. Called by a thread of its own, about once a second.
        """
        asker = self._masks.find_stuck(stuck_s)
        return None if asker is None else failed(asker.key, GrammarTooCostly(TOO_COSTLY))

    def _rows_run(self) -> bool:
        """Some that don't wait for the mask thread. Asked by that thread, as is the next."""
        return any(not row.is_held_back for row in self._scheduler.rows)

    def _clients_run(self) -> set[str]:
        """Whose rows those are."""
        return {row.client for row in self._scheduler.rows if not row.is_held_back}

    def close(self) -> None:
        self._masks.stop()
