"""Takes messages in: requests are accepted or refused, given up, told to end; and what the engine says of itself."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

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
from imp_server.engine.acceptance import check_request
from imp_server.engine.adapters import Adapters
from imp_server.engine.choice import ChoiceOutput
from imp_server.engine.constrained.constraint import Constraint
from imp_server.engine.constrained.grammar_row import GrammarRow
from imp_server.engine.constrained.masking import Asker, MaskThread
from imp_server.engine.constrained.turn_queue import TOO_COSTLY
from imp_server.engine.errors import failed, rejected
from imp_server.engine.known_plans import KnownPlans
from imp_server.engine.live import LiveRequest, LiveRow
from imp_server.engine.messages import (
    AdapterDone,
    AskStats,
    Cancel,
    CloseSession,
    Drain,
    EndReasoning,
    LoadAdapter,
    NeedGrammar,
    ReasoningEnded,
    ReasoningVerdict,
    RequestAccepted,
    RequestFailed,
    SessionClosed,
    SlotAction,
    StatsReply,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from imp_server.engine.parts import EngineParts, GrammarReady
from imp_server.engine.pooling import pooler_of
from imp_server.engine.row_life import RowLife
from imp_server.engine.telling import Telling
from imp_server.schedule.rows import Row
from imp_server.schedule.snapshots import snapshot_points
from imp_server.schedule.tiers.record import scoped_group

_MOST_FORCED = 256
"""Ids that may be appended at a time."""
_PROMPT_LOGITS_CHUNK = 64
"""Tokens of a step when logits of every prompt position are wanted: they take vocab x 4 bytes each."""


class Intake:
    """Owner of the requests that haven't been accepted yet, of the mask thread and of the drain."""

    def __init__(self, parts: EngineParts, life: RowLife) -> None:
        self.live, self.counters = parts.live, parts.counters
        self._life = life
        self._scheduler, self._backend = parts.scheduler, parts.backend
        self._limits, self._rules = parts.limits, parts.rules
        self._never_sampled = parts.vocabulary.never_sampled
        # Ids of the embedding that the tokenizer doesn't know write nothing.
        n_unknown = parts.limits.vocab_size - parts.vocabulary.size
        self._token_bytes = parts.vocabulary.token_bytes + [b""] * n_unknown
        self._emit, self._post, self._clock = parts.emit, parts.post, parts.clock
        self._masks = MaskThread(parts.limits.vocab_size, parts.make_constraint, self._rows_run, self._clients_run)
        self._plans = KnownPlans()
        self._starting: dict[int, GenerateRequest] = {}
        self._start_jobs: dict[int, Future[Constraint]] = {}
        self._adapters = parts.adapters or Adapters(parts.backend)
        self._drain_until_s: float | None = None
        self.telling = Telling(parts, lambda: len(self._starting), self._masks)

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
                counters, rows = self.telling.stats()
                self._emit(StatsReply(message.ticket, dict(counters), rows))
            case Drain():
                self._drain_until_s = self._clock() + message.timeout_s
            case SlotAction():
                self._life.slots.handle(message)
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
        self._emit(RequestAccepted(request.key, len(ids), n_cached, self._life.n_to_cache(rows[0].row, n_cached)))
        for live in rows:
            self._life.force(live)
            if live.grammar is not None:
                live.grammar.request_mask()
        self._scheduler.submit([live.row for live in rows], n_cached)

    def _make_row(
        self, request: GenerateRequest, ids: NDArray[np.int32], choice: int, constraint: Constraint | None
    ) -> LiveRow:
        room = max(0, self._limits.context_length - len(ids))
        most = len(ids) + min(room, request.plan.max_tokens) + 1 + (_MOST_FORCED if request.shift else 0)
        law = self._law(request.sampling)
        # under a grammar the mask itself holds ends back: it knows whether anything else may come
        law = law if constraint is None else replace(law, held_ids=())
        sampler = SamplerState(law, choice, ids, most, self._token_bytes)
        plain = request.task == "generate" and request.options.prompt_logprobs is None
        chosen = self._adapters.chosen(request.options.adapters)
        row = Row(
            request.key,
            choice,
            sampler,
            priority=-request.options.priority,
            urgency=-request.options.priority if request.outranks else 0,
            client=request.owner,
            wanted_slot=-1 if request.options.row_preference is None or choice else request.options.row_preference,
            adapters=chosen.shares,
            reuse_group=scoped_group(chosen.reuse_group, request.cache.scope),
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
                n_least=request.sampling.min_tokens,
                steers=self._life.may_steer(output),
                asker=Asker(request.owner, request.key),
            )
        return LiveRow(row, output, grammar, pooler=pooler_of(request, self._backend.architecture))

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
            self._life.forget(live)

    def _end_reasoning(self, key: int) -> ReasoningVerdict:
        rows = self.live.rows_of(key)
        verdicts = [live.output.end_reasoning() for live in rows]
        for live in rows:
            self._life.force(live)
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
                rows = [live.row for live in self.live.rows()]
                self._adapters.unload(message.name, rows, self._starting.values())
        except ImpError as error:
            return AdapterDone(message.ticket, False, error.code, error.message)
        return AdapterDone(message.ticket, True)

    # --- the end ----------------------------------------------------------------------------------

    def fail_all(self, error: ImpError) -> None:
        for key in self.live.keys_of([live.row for live in self.live.rows()]):
            for live in self.live.rows_of(key):
                self._life.forget(live)
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
