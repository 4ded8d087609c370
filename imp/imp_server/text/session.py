"""Tokens of one request -> OutputEvents. Owner of the request's output state in the API process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import msgspec

from imp_server.core import (
    SPECIAL_CLOSE,
    SPECIAL_OPEN,
    SPECIAL_SPAN,
    CallArgs,
    Finish,
    FinishDetail,
    FinishReason,
    GenerateRequest,
    LogprobEntry,
    Logprobs,
    OutputEvent,
    OutputPlan,
    ReasoningDelta,
    Segment,
    TextDelta,
    Timings,
    TokenLogprob,
    Usage,
    unpack_ids,
)
from imp_server.grammar.whole_schema import Unjudged
from imp_server.plan_walk import Piece, PlanWalker
from imp_server.text.calls import CallReaders, Calls
from imp_server.text.detokenizer import Channel, Kind, Ledger
from imp_server.vocab.table import Vocabulary

EXHAUSTED: FinishDetail = "reasoning_budget_exhausted"
VIOLATED: FinishDetail = "schema_violated"
CUT: FinishDetail = "call_cut"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready for an engine, and what makes events of its answer. `request.key` comes when it is submitted."""

    request: GenerateRequest
    session: OutputSession
    """Of this request alone: it is fed once."""
    prompt_text: str
    """The prompt as a person reads it."""
    remember: Callable[[Sequence[int], bytes | None], None] | None = None
    """Takes the ids of a finished choice and the stop string that ended it, for when the client sends it back."""
    ignored: tuple[str, ...] = ()
    """JSON pointers of the parts of the answer's schema that aren't enforced (grammar.lenient)."""
    opened: tuple[str, ...] = ()
    """Fields of the request whose schemas are enforced, and not closed, since that would take too much work."""


class OutputSession:
    """All choices of one request. `push` and `finish` are called in the order of the engine's deltas."""

    def __init__(
        self,
        plan: OutputPlan,
        vocabulary: Vocabulary,
        *,
        readers: CallReaders | None = None,
        new_call_id: Callable[[], str] | None = None,
        taken_ids: Collection[str] = (),
        logprobs: bool = False,
        whole_schema: str = "",
    ) -> None:
        """`taken_ids`: of calls earlier in the conversation.

        `whole_schema`: JSON text of what a finished answer is held against, where the grammar can't make sure of it."""
        self.plan = plan
        self._whole_schema = whole_schema
        self._unjudged: set[int] = set()
        self._answers: dict[int, list[str]] = {}
        self.vocabulary = vocabulary
        self._calls_of = partial(Calls, readers=readers, new_id=new_call_id, taken=taken_ids)
        self._logprobs = logprobs
        self._choices: dict[int, _Choice] = {}

    def push(self, choice: int, ids: bytes, logprobs: Sequence[TokenLogprob] = ()) -> list[OutputEvent]:
        """Events of the tokens `ids` (int32 bytes); neighbours of one kind come as one event.

        `logprobs`: one per token, or none.
        """
        state = self._choice(choice)
        for index, token_id in enumerate(unpack_ids(ids)):
            state.push(token_id, logprobs[index] if logprobs else None)
        return self._noted(state.take_events())

    def finish(
        self,
        choice: int,
        reason: FinishReason,
        usage: Usage,
        stop_string: bytes | None = None,
        detail: FinishDetail | None = None,
        timings: Timings | None = None,
    ) -> list[OutputEvent]:
        """Everything still held back, and the Finish. `reason` is the engine's; calls turn `stop` into
        `tool_calls`, unless one of them is cut."""
        state = self._choice(choice)
        state.end()
        events = self._noted(state.take_events())
        if reason == "stop" and self._whole_schema and not state.n_calls:
            self._unjudged.add(choice)
        if reason == "stop" and state.n_calls and not state.has_cut_call:
            reason = "tool_calls"
        stop_sequence = None if stop_string is None else stop_string.decode("utf-8", "replace")
        if state.has_cut_call:
            detail = CUT
        elif state.only_reasoned:
            detail = detail or EXHAUSTED
        elif detail == EXHAUSTED:  # thinking was closed by force, but the answer did begin
            detail = None
        return [*events, Finish(choice, reason, usage, stop_sequence, detail, timings or Timings())]

    def unjudged(self, choice: int) -> Unjudged | None:
        """What a validator has to say whether it is what was asked for; None if nobody has to."""
        if choice not in self._unjudged:
            return None
        return Unjudged(self._whole_schema, "".join(self._answer(choice)))

    def _noted(self, events: list[OutputEvent]) -> list[OutputEvent]:
        """Keeps the answers while somebody will judge them."""
        if self._whole_schema:
            for event in events:
                if isinstance(event, TextDelta):
                    self._answer(event.choice).append(event.text)
        return events

    def _answer(self, choice: int) -> list[str]:
        return self._answers.setdefault(choice, [])

    def _choice(self, choice: int) -> _Choice:
        state = self._choices.get(choice)
        if state is None:
            state = _Choice(choice, self.plan, self.vocabulary, self._calls_of(choice), self._logprobs)
            self._choices[choice] = state
        return state


class _Choice:
    """Owner of one choice's walk, its current channel and the events not yet taken."""

    def __init__(
        self,
        choice: int,
        plan: OutputPlan,
        vocabulary: Vocabulary,
        calls: Calls,
        logprobs: bool,
    ) -> None:
        self._choice = choice
        self._plan = plan
        self._vocabulary = vocabulary
        self._walker = PlanWalker(plan, vocabulary.token_bytes)
        self._shown = frozenset(vocabulary.special_texts[i].encode() for i in plan.shown_ids)
        self._ledger = Ledger(vocabulary.plain_bytes) if logprobs else None
        self._calls = calls
        self._events: list[OutputEvent] = []
        self._unread: list[bytes] = []
        """What the open call segment wrote and no call was found in yet."""
        self._n_calls_before = 0
        self._ended_in_a_call = False
        """The reply ended where a call had begun, but not its name."""
        self._has_channels = sum(s.kind == "answer" for s in plan.segments) > 1
        self._said: set[Kind] = set()
        self._ended = False
        self._kind: Kind | None = None
        self._enter(plan.start, None, first=True)

    @property
    def n_calls(self) -> int:
        return self._calls.n_calls

    @property
    def has_cut_call(self) -> bool:
        return self._calls.has_cut or self._ended_in_a_call

    @property
    def only_reasoned(self) -> bool:
        return self._said == {"reasoning"} and not self.n_calls

    def push(self, token_id: int, logprob: TokenLogprob | None) -> None:
        if self._ledger is not None:
            self._ledger.add(logprob or TokenLogprob(token_id, 0.0), len(self._vocabulary.token_bytes[token_id]))
        for piece in self._walker.push(token_id):
            self._take(piece)
        if self._walker.end is not None:
            self.end()

    def end(self) -> None:
        """Release what is held back; nothing may follow. Called by the walk's end or by the engine's."""
        if self._ended:
            return
        self._ended = True
        if self._walker.end is None:
            for piece in self._walker.finish():
                self._take(piece)
        is_cut = self._walker.end is None or self._walker.end.reason == "length"
        was_in_call = self._in_call
        self._leave(by_marker=False, is_cut=is_cut)
        if was_in_call:
            holds_none = self._calls.n_calls == self._n_calls_before
            self._ended_in_a_call = self._calls.has_begun or (is_cut and holds_none)
        else:
            self._ended_in_a_call = self._walker.has_dropped_call
        if self._ledger is not None:
            self._ledger.close()

    def take_events(self) -> list[OutputEvent]:
        events, self._events = _merged(self._events), []
        if self._ledger is not None:
            events += self._logprob_events(self._ledger.take())
        return events

    def _take(self, piece: Piece) -> None:
        segment = self._plan.segments[piece.segment]
        if piece.kind == "text":
            self._text(piece.data)
        elif piece.kind == "close" and segment.kind == "answer" and segment.closes_to == piece.segment:
            self._stray_closer(piece.data)
        elif piece.kind == "close":
            if not self._leave(by_marker=not segment.keep_markers, closer=piece.data) and not segment.keep_markers:
                self._settle(piece.data, False)
            if segment.closes_to >= 0:
                self._enter(segment.closes_to, None, after=segment)
        else:
            self._leave(by_marker=not segment.keep_markers)
            if not segment.keep_markers and segment.kind != "call":
                self._settle(piece.data, False)
            self._enter(piece.segment, piece.data)

    def _enter(self, index: int, opener: bytes | None, *, first: bool = False, after: Segment | None = None) -> None:
        segment = self._plan.segments[index]
        self._in_call = segment.kind == "call"
        if self._in_call:
            self._kind = None
            self._calls.open(index, opener or b"")
            self._n_calls_before, self._unread = self._calls.n_calls, [opener or b""]
            return
        kept = segment.keep_markers or (after is not None and after.keep_markers)
        reasoning = segment.kind == "think" and not segment.keep_markers
        self._kind = "reasoning" if reasoning else "text"
        leavable = any(index in s.opens_from and not s.keep_markers for s in self._plan.segments)
        self._channel = Channel(
            strip_start=reasoning or (not first and not kept),
            hold_start=first and leavable,
            hold_end=reasoning or leavable,
        )

    def _leave(self, *, by_marker: bool, is_cut: bool = False, closer: bytes = b"") -> bool:
        """Whether `closer` became text."""
        if self._in_call:
            self._add_all(self._calls.close(closed=bool(closer)))
            return self._leave_call(is_cut, closer)
        elif by_marker or self._kind == "reasoning":
            self._channel.cut(self._settle)
        else:
            self._emit(self._channel.end(self._settle))
        return False

    def _stray_closer(self, marker: bytes) -> None:
        """Of thinking that wasn't open: no text, nor are the blanks around it where the reply begins with it."""
        if "text" in self._said:
            self._channel.silent(marker, self._settle)
            return
        self._channel.cut(self._settle)
        self._settle(marker, False)
        self._channel = Channel(strip_start=True, hold_end=True)

    def _text(self, data: bytes) -> None:
        if self._in_call:
            self._call_text(data)
            return
        at = 0
        for match in SPECIAL_SPAN.finditer(data):
            self._plain(data[at : match.start()])
            if match.group(1) in self._shown:
                self._settle(SPECIAL_OPEN, False)
                self._plain(match.group(1))
                self._settle(SPECIAL_CLOSE, False)
            else:
                self._channel.silent(match.group(), self._settle)
            at = match.end()
        self._plain(data[at:])

    def _plain(self, data: bytes) -> None:
        if data:
            self._emit(self._channel.feed(data, self._settle))

    def _call_text(self, data: bytes) -> None:
        self._unread.append(data)
        self._add_all(self._calls.feed(data))
        if self._calls.n_calls > self._n_calls_before:
            self._settle_unread()

    def _settle_unread(self) -> None:
        self._settle(b"".join(self._unread), False)
        self._unread = []

    def _leave_call(self, is_cut: bool, closer: bytes) -> bool:
        """What began as a call and held none is text; a cut beginning isn't, nor is a message of a channel."""
        if is_cut or self._has_channels or self._calls.n_calls > self._n_calls_before:
            self._settle_unread()
            return False
        self._in_call, self._kind, self._channel = False, "text", Channel()
        self._text(b"".join([*self._unread, closer]))
        self._emit(self._channel.end(self._settle))
        return True

    def _emit(self, text: str) -> None:
        if not text or self._kind is None:
            return
        self._said.add(self._kind)
        delta = ReasoningDelta if self._kind == "reasoning" else TextDelta
        self._add_all([delta(self._choice, text)])

    def _add_all(self, events: Sequence[OutputEvent]) -> None:
        self._events += events

    def _settle(self, data: bytes, kept: bool) -> None:
        if self._ledger is not None:
            self._ledger.settle(data, self._kind if kept else None)

    def _logprob_events(self, settled: list[tuple[Kind, LogprobEntry]]) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        for kind, entry in settled:
            last = events[-1] if events else None
            if isinstance(last, Logprobs) and last.kind == kind:
                events[-1] = Logprobs(self._choice, (*last.entries, entry), kind)
            else:
                events.append(Logprobs(self._choice, (entry,), kind))
        return events


def _merged(events: Sequence[OutputEvent]) -> list[OutputEvent]:
    """Neighbours of one kind become one event: one per kind and hand-off."""
    found: list[OutputEvent] = []
    for (kind, _), group in groupby(events, lambda e: (type(e), e.index if isinstance(e, CallArgs) else 0)):
        same = list(group)
        if issubclass(kind, TextDelta | ReasoningDelta | CallArgs) and len(same) > 1:
            text = "".join(e.text for e in same if isinstance(e, TextDelta | ReasoningDelta | CallArgs))
            same = [msgspec.structs.replace(same[0], text=text)]
        found += same
    return found
