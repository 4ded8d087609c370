"""What the engine is asked for: ids, sampling in force, and the plan of the output. Frozen; lists travel as tuples."""

from __future__ import annotations

from typing import Literal

import msgspec


class SamplingParams(msgspec.Struct, frozen=True):
    """Sampling in force; the order of application is stated in decode/sampling.py."""

    temperature: float = 0.7
    top_k: int = 40
    """0 = off."""
    top_p: float = 0.95
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    repeat_last_n: int = 0
    """Window of the three penalties above in tokens; 0 = the whole history, prompt included for `repetition` only."""
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 0
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """Texts behind which a repetition begins anew."""
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_n_sigma: float = 0.0
    """0 = off."""
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    seed: int = 0
    """64 bits; drawn in the API process when the client gave none."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    banned_ids: tuple[int, ...] = ()
    """Ids that may never be sampled (ignore_eos puts the end ids here)."""
    min_tokens: int = 0
    held_ids: tuple[int, ...] = ()
    """Ids that may not be sampled among the first `min_tokens` of the output."""

    def banned_at(self, n_output: int) -> tuple[int, ...]:
        """Ids that may not be the token behind `n_output` ones."""
        return self.banned_ids + self.held_ids if n_output < self.min_tokens else self.banned_ids


class MessageSpan(msgspec.Struct, frozen=True):
    """Tokens [start, end) of the prompt that one message rendered to."""

    role: str
    start: int
    end: int


class CacheMarks(msgspec.Struct, frozen=True):
    """Pins in tokens. `pin_until` = length of the pinned prompt prefix (0 = none)."""

    pin_until: int = 0
    session_id: str | None = None
    scope: str = ""
    """Blocks are shared among requests of one scope only."""
    hour_until: int = 0
    """As `pin_until`, of the marks that ask for an hour."""


class GrammarPlan(msgspec.Struct, frozen=True):
    """A checked grammar as plain data: the output of the check phase, the input of the engine's phases.

    kind: json_schema | regex | gbnf | choice | envelope. `payload` is msgpack of the kind's normal form
    (grammar/plan.py), `digest` its cache key.
    """

    kind: str
    digest: str
    payload: bytes


class ValueTags(msgspec.Struct, frozen=True):
    """Tags between which one value stands in the text of a segment. Marked bytes."""

    lead: bytes
    end: bytes
    """What ends the opener, behind a name; b"" if `lead` is all of it."""
    close: bytes
    wrap: tuple[bytes, bytes] | None = None
    """A value that begins with the first is text up to the second and `close` behind it: no marker counts in it."""


class Segment(msgspec.Struct, frozen=True):
    """One stretch of a completion.

    `opens_from`: indices of the segments in which one of `openers` switches to this one.
    `closes_to`: index of the segment that follows a closer; -1 = the completion ends there.
    Markers are *marked bytes* (see `special`): plain text matches across token borders, a special
    token matches by its id alone.
    """

    kind: Literal["think", "answer", "call"]
    openers: tuple[bytes, ...] = ()
    closers: tuple[bytes, ...] = ()
    opens_from: tuple[int, ...] = ()
    closes_to: int = -1
    keep_markers: bool = False
    """Openers and closers are part of the text (--reasoning-format none)."""
    scan_tokens: int = -1
    """Openers are looked for only in the first `scan_tokens` tokens of the completion, and not behind a call;
    -1 = everywhere."""
    max_visits: int = -1
    """How often the segment may be entered (1 for parallel_tool_calls=false); -1 = any number."""
    at_start: bool = False
    """In an answer openers count only where nothing but whitespace precedes them (bare JSON calls, bound answers)."""
    json_body: bool = False
    """The text is JSON: markers inside its strings don't count."""
    quotes: tuple[bytes, ...] = ()
    """With `json_body`: text from one of these to the next of the same kind is a string, too."""
    values: tuple[ValueTags, ...] = ()
    """Without `json_body`: values that begin as JSON texts, lists or objects are JSON, and markers inside their strings
    don't count. One with a line break in a string isn't JSON; from there on they count again."""


class OutputPlan(msgspec.Struct, frozen=True):
    """How a completion is cut. Walked token by token by plan_walk/walker.py, in the engine and in the API process."""

    segments: tuple[Segment, ...] = (Segment(kind="answer"),)
    start: int = 0
    end_ids: tuple[int, ...] = ()
    """Tokens that end the completion with `stop`; their text never appears."""
    stop: tuple[bytes, ...] = ()
    """Stop strings, matched in the text of `answer` segments only, excluded from it."""
    max_tokens: int = 16
    min_indent: int = 0
    """Blanks and tabs that every line of `answer` text but the first must begin with, blank lines included; the text
    ends with `length` before the first character that lacks them."""
    think_budget: int = -1
    """Reasoning tokens after which the engine forces `think_closer`; -1 = no limit."""
    think_closer: bytes = b""
    """int32 ids that the engine feeds to close reasoning by force."""
    shown_ids: tuple[int, ...] = ()
    """Special tokens whose text appears in the output; every other special token is silent."""
    only_calls: bool = False
    """Text of an answer can't come: the beginning of what might open a call is no text, though its rest never came."""
    steers: bool = False
    """The answer's value is brought to its end where max_tokens or the context would cut it. Calls never are."""
    grammar: GrammarPlan | None = None
    """Binds the whole completion from its first byte, in marked bytes: thinking and call envelopes are part of
    it as free text up to a tag. An end token is allowed exactly when it is done."""

    @property
    def n_early(self) -> int:
        """Tokens after which openers with a limit (`scan_tokens`) don't count any more; -1: there are none."""
        return max((s.scan_tokens for s in self.segments), default=-1)


Pooling = Literal["auto", "last", "mean", "none"]
"""How the hidden states of an input's positions become its embedding: that of the last one, their mean, or each by
itself (none). auto = as the model says."""


class AdapterUse(msgspec.Struct, frozen=True):
    """An adapter, by its name or its number, and by how much it counts."""

    adapter: str | int
    scale: float = 1.0


class GenerationOptions(msgspec.Struct, frozen=True):
    """What a client says of a reply and nobody changes on the way: the same in its request and in the engine's."""

    n: int = 1
    """Choices."""
    logprobs: int | None = None
    """None = no logprobs; k >= 0 = the chosen token and the k best."""
    logprobs_as_drawn: bool = False
    """Logprobs are those that tokens are drawn with, after temperature and truncations."""
    prompt_logprobs: int | None = None
    """As `logprobs`, of the tokens of the prompt."""
    predict_s: float | None = None
    """Seconds from its first token after which a choice that has written a newline ends with `length`."""
    speculative: bool | None = None
    """Whether drafts are made; None = as the server does."""
    adapters: tuple[AdapterUse, ...] | None = None
    """None = as the server has it."""
    priority: int = 0
    """As clients write it: lower first, among the owner's own requests."""
    row_preference: int | None = None
    """llama.cpp's `id_slot`."""
    n_keep: int | None = None
    """First tokens of the prompt that are kept where the context is shifted; -1 = all, None = as the server has it."""
    n_discard: int = 0
    """Tokens that go at a time there; 0 = half of what may go."""


class ContextShift(msgspec.Struct, frozen=True):
    """What becomes of a full context: behind the first `keep` tokens `discard` go (0 = half of them), the rest moves up
    and is computed anew."""

    keep: int = 0
    discard: int = 0


class GenerateRequest(msgspec.Struct, frozen=True):
    """One piece of work for an engine. `ids` is the prompt."""

    key: int
    """Unique per engine client; names the request in every message."""
    ids: bytes
    plan: OutputPlan = OutputPlan()
    sampling: SamplingParams = SamplingParams()
    options: GenerationOptions = GenerationOptions()
    task: Literal["generate", "embed", "score", "rank"] = "generate"
    pooling: Pooling = "auto"
    """For task `embed`."""
    spans: tuple[MessageSpan, ...] = ()
    outranks: bool = True
    """Its priority counts against the requests of other owners, too."""
    owner: str = ""
    """Whose work it is, for fairness among many: a digest of the key, without keys the connection."""
    cache: CacheMarks = CacheMarks()
    deadline_s: float | None = None
    """Seconds from acceptance after which the request ends with `length`."""
    prediction: bytes = b""
    """int32 ids of the client's predicted output: an extra region for drafters."""
    shift: ContextShift | None = None
    """None: the completion ends where the context is full."""
    score_ids: bytes = b""
    """For task `score`: int32 ids whose logits after the prompt are wanted."""
    digest: str = ""
    """Stable digest of the request, for the three-crashes rule."""
