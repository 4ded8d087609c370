"""The nouns every part of imp shares, and the error tree. Imports nothing of ours.

Structs are frozen; lists travel as tuples. Token ids cross process borders as little-endian int32
bytes (`ids`), never as Python lists; `pack_ids` and `unpack_ids` convert.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import msgspec

# --- errors -------------------------------------------------------------------------------------


class ImpError(Exception):
    """Root of the tree. `status` is the HTTP status, `code` a member of ErrorCode in spec/common.yaml.

    The message tells the user what to do. `param` names the offending field as a JSON path.
    """

    status: ClassVar[int] = 500
    default_code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s


class InvalidRequest(ImpError):
    status = 400
    default_code = "invalid_value"


class InvalidJson(InvalidRequest):
    default_code = "invalid_json"


class MissingParameter(InvalidRequest):
    default_code = "missing_required_parameter"


class UnsupportedParameter(InvalidRequest):
    default_code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    default_code = "context_length_exceeded"


class VisionUnavailable(InvalidRequest):
    default_code = "vision_unavailable"


class TemplateRefused(InvalidRequest):
    """The chat template itself raised an exception (`raise_exception`)."""

    default_code = "template_error"


class GrammarRefused(InvalidRequest):
    """A schema, regex or grammar that can't be enforced. `pointer` is the JSON pointer of the keyword."""

    default_code = "grammar_unsupported"

    def __init__(self, message: str, *, pointer: str = "", param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=code)
        self.pointer = pointer


class GrammarUnsatisfiable(GrammarRefused):
    default_code = "grammar_unsatisfiable"


class Unauthorized(ImpError):
    status = 401
    default_code = "invalid_api_key"


class Forbidden(ImpError):
    status = 403
    default_code = "forbidden"


class NotFound(ImpError):
    status = 404
    default_code = "not_found"


class UnknownUrl(NotFound):
    default_code = "unknown_url"


class ModelNotFound(NotFound):
    default_code = "model_not_found"


class MethodNotAllowed(ImpError):
    status = 405
    default_code = "method_not_allowed"

    def __init__(self, message: str, *, allow: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allow = allow


class Conflict(ImpError):
    status = 409
    default_code = "conflict"


class PayloadTooLarge(ImpError):
    status = 413
    default_code = "payload_too_large"


class UnsupportedMediaType(ImpError):
    status = 415
    default_code = "unsupported_media_type"


class Overloaded(ImpError):
    status = 429
    default_code = "rate_limit_exceeded"


class InternalError(ImpError):
    status = 500
    default_code = "internal_error"


class EngineCrashed(InternalError):
    """The engine process died while it held this request."""

    default_code = "engine_crashed"


class EngineFaulted(InternalError):
    """One engine step failed; the rows of that step are gone, the engine lives on."""

    default_code = "engine_step_failed"


class GrammarDeadEnd(InternalError):
    """No token may follow although the value isn't complete. Counted; every test asserts the counter to be 0."""

    default_code = "grammar_dead_end"


class Unavailable(ImpError):
    status = 503
    default_code = "unavailable"


class NoModel(Unavailable):
    default_code = "no_model"


class ModelLoading(Unavailable):
    default_code = "model_loading"


class Draining(Unavailable):
    default_code = "draining"


class UserFault(ImpError):
    """An error of the command line, a file or the machine: one line on stderr and `exit_code`."""

    exit_code: ClassVar[int] = 1


class ConfigError(UserFault):
    default_code = "invalid_config"


class HostOutOfMemory(UserFault):
    exit_code = 2
    default_code = "host_out_of_memory"


class DeviceError(UserFault):
    exit_code = 3
    default_code = "device_error"


class ModelFileMissing(UserFault):
    exit_code = 4
    default_code = "file_not_found"


class InvalidModel(UserFault):
    exit_code = 5
    default_code = "invalid_model"


class UnsupportedModel(UserFault):
    exit_code = 6
    default_code = "unsupported_model"


class CapacityExceeded(UserFault):
    exit_code = 9
    default_code = "capacity_exceeded"


# --- token ids ----------------------------------------------------------------------------------


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as little-endian int32 bytes."""
    return array("i", ids).tobytes()


def unpack_ids(data: bytes) -> array[int]:
    """The int32 token ids held by `data`."""
    ids = array("i")
    ids.frombytes(data)
    return ids


# --- marked bytes -------------------------------------------------------------------------------

SPECIAL_OPEN, SPECIAL_CLOSE = b"\xff", b"\xfe"


def special(text: str) -> bytes:
    """A special token in marked bytes: its text between 0xFF and 0xFE.

    Neither byte occurs in UTF-8, and vocab/ rewrites them to 0xC0 in ordinary tokens, so text typed or
    generated can never spell a special token: one byte-level matcher serves tags of both sorts.
    """
    return SPECIAL_OPEN + text.encode() + SPECIAL_CLOSE


# --- what a client asks for ---------------------------------------------------------------------

Role = Literal["system", "user", "assistant", "tool"]


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    text: str
    cache_mark: bool = False


class MediaPart(msgspec.Struct, frozen=True, tag="media"):
    """An image, audio, video or file part; refused with `vision_unavailable` until a model can read it."""

    kind: str
    path: str
    """JSON path of the part in the request, for the error."""


Part = TextPart | MediaPart


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str
    """JSON text, exactly as the client sent it (`{}` when there was none)."""


class Message(msgspec.Struct, frozen=True):
    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class Tool(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    parameters: Mapping[str, Any] = {}
    strict: bool = False
    cache_mark: bool = False


class ToolChoice(msgspec.Struct, frozen=True):
    """`names` restricts the choice: one for a named function, several for allowed_tools, () for all."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True
    named: bool = False
    """A single function was forced by name (OpenAI then finishes with `stop`, not `tool_calls`)."""


class ResponseFormat(msgspec.Struct, frozen=True):
    """What the answer must look like. `schema` for json_schema, `text` for regex and grammar, `choices` for choice."""

    kind: Literal["text", "json_object", "json_schema", "regex", "grammar", "choice"] = "text"
    schema: Any = None
    text: str = ""
    choices: tuple[str, ...] = ()
    name: str = ""
    param: str = "response_format"
    """JSON path of the field that asked for it, for errors."""


class ReasoningIntent(msgspec.Struct, frozen=True):
    """What the client said about thinking; None = nothing."""

    enabled: bool | None = None
    effort: str | None = None
    budget_tokens: int | None = None
    budget_fraction: float | None = None
    shown: bool = True


class SamplingIntent(msgspec.Struct, frozen=True):
    """Sampling fields as asked; None = the model's default, resolved in text/sampling_defaults.py."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = {}
    ignore_eos: bool = False


class CacheIntent(msgspec.Struct, frozen=True):
    """Pins asked for by the client. Message and tool marks live on the parts and tools themselves."""

    pin_prompt: bool = False
    session_id: str | None = None


class ChatRequest(msgspec.Struct, frozen=True):
    """A conversation to continue, independent of the dialect that brought it."""

    messages: tuple[Message, ...]
    model: str = ""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    response_format: ResponseFormat = ResponseFormat()
    reasoning: ReasoningIntent = ReasoningIntent()
    reasoning_default_on: bool = True
    """False on routes where thinking is opt-in (/v1/messages)."""
    sampling: SamplingIntent = SamplingIntent()
    cache: CacheIntent = CacheIntent()
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    """None = no logprobs; k >= 0 = the chosen token and the k best."""
    prediction: str | None = None
    template_kwargs: Mapping[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    speculative: bool | None = None
    adapter: str = ""
    priority: int = 0
    row_preference: int | None = None
    """llama.cpp's `id_slot`."""


class PromptRequest(msgspec.Struct, frozen=True):
    """A raw prompt to continue: no template, no segments."""

    prompt: tuple[str | int, ...]
    """Text and token ids, mixed. Text may spell control tokens; the model's opening token comes before a first text."""
    suffix: str | None = None
    """Text after the gap that the model is to fill; only models with fill-in-the-middle tokens can."""
    task: Literal["generate", "embed"] = "generate"
    model: str = ""
    sampling: SamplingIntent = SamplingIntent()
    cache: CacheIntent = CacheIntent()
    response_format: ResponseFormat = ResponseFormat()
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculative: bool | None = None
    adapter: str = ""
    priority: int = 0
    row_preference: int | None = None


# --- what the engine is asked for ---------------------------------------------------------------


class SamplingParams(msgspec.Struct, frozen=True):
    """Sampling in force. Order of application: DESIGN "one sampling law" (decode/sampling.py)."""

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
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int = 0
    """64 bits; drawn in the API process when the client gave none."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    banned_ids: tuple[int, ...] = ()
    """Ids that may never be sampled (ignore_eos puts the end ids here)."""


class MessageSpan(msgspec.Struct, frozen=True):
    """Tokens [start, end) of the prompt that one message rendered to."""

    role: str
    start: int
    end: int


class CacheMarks(msgspec.Struct, frozen=True):
    """Pins in tokens. `pin_until` = length of the pinned prompt prefix (0 = none)."""

    pin_until: int = 0
    session_id: str | None = None


class GrammarPlan(msgspec.Struct, frozen=True):
    """A checked grammar as plain data: the output of the check phase, the input of the engine's phases.

    kind: json_schema | regex | gbnf | choice | envelope. `payload` is msgpack of the kind's normal form
    (grammar/plan.py), `digest` its cache key.
    """

    kind: str
    digest: str
    payload: bytes


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
    """Openers are looked for only in the first `scan_tokens` tokens of the completion; -1 = everywhere."""
    max_visits: int = -1
    """How often the segment may be entered (1 for parallel_tool_calls=false); -1 = any number."""
    at_start: bool = False
    """Openers count only where nothing but whitespace precedes them in their segment (bare JSON calls)."""
    json_body: bool = False
    """The text is JSON: markers inside its strings don't count."""


class OutputPlan(msgspec.Struct, frozen=True):
    """How a completion is cut. Walked token by token by output/walker.py, in the engine and in the API process."""

    segments: tuple[Segment, ...] = (Segment(kind="answer"),)
    start: int = 0
    end_ids: tuple[int, ...] = ()
    """Tokens that end the completion with `stop`; their text never appears."""
    stop: tuple[bytes, ...] = ()
    """Stop strings, matched in the text of `answer` segments only, excluded from it."""
    max_tokens: int = 16
    think_budget: int = -1
    """Reasoning tokens after which the engine forces `think_closer`; -1 = no limit."""
    think_closer: bytes = b""
    """int32 ids that the engine feeds to close reasoning by force."""
    shown_ids: tuple[int, ...] = ()
    """Special tokens whose text appears in the output; every other special token is silent."""
    grammar: GrammarPlan | None = None
    """Binds the whole completion from its first byte, in marked bytes: thinking and call envelopes are part of
    it as free text up to a tag. An end token is allowed exactly when it is done."""


class GenerateRequest(msgspec.Struct, frozen=True):
    """One piece of work for an engine. `ids` is the prompt."""

    key: int
    """Unique per engine client; names the request in every message."""
    ids: bytes
    plan: OutputPlan = OutputPlan()
    sampling: SamplingParams = SamplingParams()
    n: int = 1
    task: Literal["generate", "embed", "score", "rank"] = "generate"
    spans: tuple[MessageSpan, ...] = ()
    adapter: str = ""
    priority: int = 0
    cache: CacheMarks = CacheMarks()
    deadline_s: float | None = None
    """Seconds from acceptance after which the request ends with `length`."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prediction: bytes = b""
    """int32 ids of the client's predicted output: an extra region for drafters."""
    speculative: bool | None = None
    row_preference: int | None = None
    score_ids: bytes = b""
    """For task `score`: int32 ids whose logits after the prompt are wanted."""
    digest: str = ""
    """Stable digest of the request, for the three-crashes rule."""


# --- what comes back ----------------------------------------------------------------------------

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request, summed over its choices."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    evicted_tokens: int = 0
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verify_steps: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Milliseconds, measured by the engine."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    ttft_ms: float = 0.0


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural log-probability after bias, penalties and mask, before temperature and truncation."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob), best first; a masked token shows -9999.0."""
    rank: int = 0
    """1 = the most likely token; 0 = not computed."""


class Accepted(msgspec.Struct, frozen=True):
    choice: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


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
    """A piece of the JSON text of the arguments; the pieces of one call always concatenate to valid JSON."""

    choice: int
    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True):
    choice: int
    index: int


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
    """What an embedding (one vector) or a scoring request asked for, as float32 bytes."""

    choice: int
    vectors: tuple[bytes, ...]


class Finish(msgspec.Struct, frozen=True):
    """The end of one choice. `usage` covers this choice; prompt tokens are counted in choice 0 alone."""

    choice: int
    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    detail: str | None = None
    """imp_finish_detail: reasoning_budget_exhausted | length_steered | timed_out ..."""
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
