"""What one choice of a request has written: the walk along its plan, the usage, the delta for the next hand-off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from imp_server.core import FinishDetail, FinishReason, GenerateRequest, TokenLogprob, Usage, pack_ids, unpack_ids
from imp_server.engine.constrained.grammar_row import GrammarRow
from imp_server.engine.messages import ReasoningVerdict, RowDelta, RowFinish
from imp_server.plan_walk import PlanWalker


@dataclass(slots=True)
class Clock:
    """Seconds on one monotonic clock; 0.0 = not yet."""

    arrived_s: float = 0.0
    admitted_s: float = 0.0
    prefilled_s: float = 0.0
    first_token_s: float = 0.0
    ended_s: float = 0.0

    def finish_fields(self) -> dict[str, float]:
        """The `*_ms` fields of RowFinish."""
        admitted = self.admitted_s or self.ended_s
        first = self.first_token_s or self.ended_s
        prefilled = self.prefilled_s or first
        return {
            "queue_ms": 1e3 * (admitted - self.arrived_s),
            "prefill_ms": 1e3 * (prefilled - admitted),
            "decode_ms": 1e3 * (self.ended_s - prefilled),
            "ttft_ms": 1e3 * (first - self.arrived_s),
        }


@dataclass(slots=True)
class Counts:
    """Token counts that the engine measures and the walk doesn't know; fields as in core.Usage."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0
    evicted_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verify_steps: int = 0
    verified_tokens: int = 0
    declined_cost: int = 0
    declined_masks: int = 0
    declined_memory: int = 0
    shifted_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)

    def note_verified(self, n_drafted: int, n_accepted: int) -> None:
        self.drafted_tokens += n_drafted
        self.accepted_tokens += n_accepted
        self.verify_steps += 1
        self.accepted_by_position += [0] * (n_accepted - len(self.accepted_by_position))
        for position in range(n_accepted):
            self.accepted_by_position[position] += 1


_OF_THE_PROMPT = ("cached_tokens", "cache_write_tokens")
_SUMMED = tuple(name for name in Counts.__dataclass_fields__ if name not in (*_OF_THE_PROMPT, "accepted_by_position"))


@dataclass(slots=True)
class _Unsent:
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    n_prefilled: int = -1
    n_cached: int = -1
    n_to_cache: int = 0
    vectors: tuple[bytes, ...] = ()


class ChoiceOutput:
    """Owner of one choice's output: its place in the plan, its counts and what the client hasn't been sent yet."""

    def __init__(self, request: GenerateRequest, choice: int, token_bytes: Sequence[bytes], *, room: int) -> None:
        """`room`: tokens that the context leaves for the completion."""
        self.request = request
        self.choice = choice
        self.clock = Clock()
        self.counts = Counts()
        self.finish: RowFinish | None = None
        self._walker = PlanWalker(request.plan, token_bytes)
        self._token_bytes = token_bytes
        self._has_newline = False
        self._has_calls = any(segment.kind == "call" for segment in request.plan.segments)
        self._room = room
        self._shifts = request.shift is not None
        self._closer = unpack_ids(request.plan.think_closer)
        self._close_asked = False
        self._detail: FinishDetail | None = None
        self._unsent = _Unsent()

    @property
    def n_tokens(self) -> int:
        return self._walker.n_tokens

    @property
    def room_left(self) -> int:
        """Tokens that context and max_tokens leave."""
        return min(self._room, self.request.plan.max_tokens) - self._walker.n_tokens

    def note_shifted(self, n_tokens: int) -> None:
        """The context has lost so many, and so has room for them."""
        self._room += n_tokens
        self.counts.shifted_tokens += n_tokens

    @property
    def may_be_steered(self) -> bool:
        """The next token belongs to an answer. Where calls may come instead, one that has begun."""
        walker = self._walker
        if not self.request.plan.steers or walker.kind == "call":
            return False
        return not self._has_calls or (walker.kind == "answer" and walker.has_text)

    @property
    def kind(self) -> str:
        """think | answer | call: the segment that the next token belongs to."""
        return self._walker.kind

    def push(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> int:
        """Take tokens until the completion ends; how many were taken. `finish` is set when it ended."""
        wants_logprobs = self.request.options.logprobs is not None
        for index, token_id in enumerate(ids):
            self._walker.push(token_id)
            if self.request.options.predict_s is not None and not self._has_newline:
                self._has_newline = b"\n" in self._token_bytes[token_id]
            self._unsent.ids.append(token_id)
            if wants_logprobs:
                self._unsent.logprobs.append(logprobs[index] if logprobs else TokenLogprob(token_id, 0.0))
            end = self._walker.end
            if end is not None:
                self._end(end.reason, stop_string=end.stop_string, end_id=end.end_id)
                return index + 1
            if self._walker.n_tokens >= self._room and not self._shifts:
                self._end("length")
                return index + 1
        return len(ids)

    @property
    def must_force(self) -> bool:
        """`forced` has something to say."""
        return (
            self._walker.kind == "think"
            and bool(self._closer)
            and (self._walker.must_close_thinking or self._close_asked)
        )

    def forced(self) -> Sequence[int]:
        """Ids that must come next instead of a sampled token: reasoning is closed by budget or on demand.

        The caller pushes them; the answer changes after that.
        """
        if self._walker.kind != "think" or not self._closer:
            return ()
        if self._walker.must_close_thinking:
            self._detail = "reasoning_budget_exhausted"
            return self._closer
        if self._close_asked:
            self._close_asked = False
            return self._closer
        return ()

    def end_reasoning(self) -> ReasoningVerdict:
        """Ask for the closing of the reasoning; `forced` then returns the closer."""
        if not self._closer:
            return "no_closer"
        if self.finish is not None or self._walker.kind != "think":
            return "already_closed"
        self._close_asked = True
        return "ending"

    def stop(self, reason: FinishReason, detail: FinishDetail | None = None) -> None:
        """End for the engine's own reason (deadline, nothing to generate, cancel)."""
        if self.finish is None:
            self._detail = detail or self._detail
            self._end(reason)

    def note_steered(self, grammar: GrammarRow | None) -> None:
        """A value that steering brought to its end is whole, and was made shorter: it ends with `length`."""
        if grammar is None or not grammar.n_steered or self.finish is None:
            return
        if self._detail in ("length_steered", "timed_out"):
            return
        if self.finish.reason == "stop" or grammar.is_done:
            self._detail = "length_steered"
            self._end("length", end_id=self.finish.end_id)

    def note_started(self, n_cached: int, n_to_cache: int) -> None:
        """The prompt is about to be computed: what the prefix cache gave, and what it will keep of the rest."""
        self._unsent.n_cached = self.counts.cached_tokens = n_cached
        self._unsent.n_to_cache = self.counts.cache_write_tokens = n_to_cache

    def note_prefilled(self, n_prefilled: int) -> None:
        self._unsent.n_prefilled = n_prefilled

    def note_prompt_logprobs(self, entries: Sequence[TokenLogprob]) -> None:
        self._unsent.prompt_logprobs = tuple(entries)

    def note_vectors(self, vectors: tuple[bytes, ...]) -> None:
        self._unsent.vectors += vectors

    def take_delta(self) -> RowDelta | None:
        """What the client hasn't been sent yet; None if there is nothing."""
        unsent, self._unsent = self._unsent, _Unsent()
        if unsent == _Unsent() and self.finish is None:
            return None
        return RowDelta(
            key=self.request.key,
            choice=self.choice,
            ids=pack_ids(unsent.ids),
            logprobs=tuple(unsent.logprobs),
            prompt_logprobs=unsent.prompt_logprobs,
            n_prefilled=unsent.n_prefilled,
            n_cached=unsent.n_cached,
            n_to_cache=unsent.n_to_cache,
            finish=self.finish,
            vectors=unsent.vectors,
        )

    def usage(self) -> Usage:
        """Counts of this choice; prompt and cache counts in choice 0 alone."""
        counts = self.counts
        first = self.choice == 0
        return Usage(
            prompt_tokens=len(self.request.ids) // 4 if first else 0,
            completion_tokens=self._walker.n_tokens,
            cached_tokens=counts.cached_tokens if first else 0,
            cache_write_tokens=counts.cache_write_tokens if first else 0,
            reasoning_tokens=self._walker.n_think_tokens,
            accepted_by_position=tuple(counts.accepted_by_position),
            **{name: getattr(counts, name) for name in _SUMMED},
        )

    def _end(self, reason: FinishReason, *, stop_string: bytes | None = None, end_id: int = -1) -> None:
        self.finish = RowFinish(
            reason=reason, usage=self.usage(), stop_string=stop_string, end_id=end_id, detail=self._detail
        )

    def _is_late(self, now_s: float) -> bool:
        limit_s, first_s = self.request.options.predict_s, self.clock.first_token_s
        return limit_s is not None and bool(first_s) and now_s - first_s > limit_s

    def look_at_clock(self, now_s: float) -> None:
        """End what has predicted for too long; add the timings to `finish`."""
        if self.finish is None and self._has_newline and self._is_late(now_s):
            self.stop("length", "timed_out")
        if self.finish is not None:
            self.clock.ended_s = now_s
            finish = self.finish
            self.finish = RowFinish(
                finish.reason,
                finish.usage,
                finish.stop_string,
                finish.end_id,
                finish.detail,
                **self.clock.finish_fields(),
            )
