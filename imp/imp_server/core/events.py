"""What comes back: the events of a reply, its usage and timings."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]
FinishDetail = Literal["reasoning_budget_exhausted", "length_steered", "schema_violated", "timed_out", "call_cut"]
"""What the reason alone doesn't tell. reasoning_budget_exhausted: thinking was closed by force, and no answer began;
length_steered: the grammar's value was made shorter to end in time; schema_violated: the answer breaks a part of its
schema that the grammar doesn't enforce; timed_out: its deadline, or its time for predicting, passed; call_cut: the
reply ended, for whatever reason, before a call in it did."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request, summed over its choices."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    evicted_tokens: int = 0
    """Cached tokens of others that were given up for this request's memory."""
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verify_steps: int = 0
    verified_tokens: int = 0
    """Tokens of the reply that came from steps with drafts."""
    declined_cost: int = 0
    """Drafts not tried, as verifying them would have cost more than they could save."""
    declined_masks: int = 0
    """Drafts not tried, as the masks behind them weren't filled in time."""
    declined_memory: int = 0
    """Drafts not tried for lack of KV blocks."""
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    shifted_tokens: int = 0
    """Tokens of prompt and reply that went where the context was full."""
    accepted_by_position: tuple[int, ...] = ()
    """Of the first, second, ... token of the drafts, how many were accepted; they add up to accepted_tokens."""

    def __add__(self, other: Usage) -> Usage:
        """Of two choices together."""
        sums: dict[str, Any] = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__struct_fields__
            if name != "accepted_by_position"
        }
        by_position = zip_longest(self.accepted_by_position, other.accepted_by_position, fillvalue=0)
        return Usage(**sums, accepted_by_position=tuple(a + b for a, b in by_position))


class Timings(msgspec.Struct, frozen=True):
    """Milliseconds, measured by the engine."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    ttft_ms: float = 0.0


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural log-probability after bias, penalties and mask, before temperature and truncation; or after these, if the
    request wants it so (GenerateRequest.logprobs_as_drawn)."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob), best first; a masked token shows -9999.0."""
    rank: int = 0
    """1 = the most likely token; 0 = not computed."""


class Accepted(msgspec.Struct, frozen=True):
    """The prompt is about to be computed, but for what the prefix cache has of it."""

    choice: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    """Of the rest, what the cache will keep."""


class Progress(msgspec.Struct, frozen=True):
    """Prompt tokens prefilled so far."""

    choice: int
    done: int
    total: int


class TextDelta(msgspec.Struct, frozen=True):
    choice: int
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    choice: int
    text: str


class CallStart(msgspec.Struct, frozen=True):
    choice: int
    index: int
    """Dense per choice, from 0."""
    id: str
    name: str


class CallArgs(msgspec.Struct, frozen=True):
    """A piece of the JSON text of the arguments; the pieces of a call that isn't cut concatenate to an object."""

    choice: int
    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True):
    choice: int
    index: int
    is_cut: bool = False
    """The arguments are what was written of them: a prefix, or nothing at all. Nobody may complete it."""


class LogprobEntry(msgspec.Struct, frozen=True):
    """`data` are the token's own bytes, so that the bytes of all entries concatenate to those of the text."""

    id: int
    data: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()
    """(id, bytes, logprob), best first."""
    rank: int = 0
    """1 = the most likely token; 0 = not computed."""


class Logprobs(msgspec.Struct, frozen=True):
    """Entries of tokens whose text belongs to the answer (`kind` text) or to the reasoning."""

    choice: int
    entries: tuple[LogprobEntry, ...]
    kind: Literal["text", "reasoning"] = "text"


class PromptLogprobs(msgspec.Struct, frozen=True):
    """The prompt's tokens, once, before any of their text's continuation. Nothing precedes the first: it has none.

    The bytes of all of them concatenate to those of the prompt's text; `first_data` is empty for an opening
    token that the text doesn't show.
    """

    choice: int
    first_id: int
    first_data: bytes
    entries: tuple[LogprobEntry, ...]
    """From the second token on."""


class Vectors(msgspec.Struct, frozen=True):
    """What a scoring request asked for, or an embedding: one vector, or of pooling none those of further positions, in
    several events. float32 bytes."""

    choice: int
    vectors: tuple[bytes, ...]


class Finish(msgspec.Struct, frozen=True):
    """The end of one choice. `usage` covers this choice; prompt tokens are counted in choice 0 alone."""

    choice: int
    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    detail: FinishDetail | None = None
    """`imp_finish_detail` on the wire."""
    timings: Timings = Timings()


class Failed(msgspec.Struct, frozen=True):
    """The whole request failed after it was accepted. No further event follows."""

    choice: int
    status: int
    code: str
    message: str


OutputEvent = (
    Accepted
    | Progress
    | TextDelta
    | ReasoningDelta
    | CallStart
    | CallArgs
    | CallEnd
    | Logprobs
    | PromptLogprobs
    | Vectors
    | Finish
    | Failed
)
