"""What travels between the API process and an engine process: msgpack, length-prefixed (4 bytes, little endian).

`PROTOCOL` is in the first message of each side; a mismatch ends the engine with a clear error.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from imp_server.config import EngineConfig
from imp_server.core import FinishDetail, FinishReason, GenerateRequest, TokenLogprob, Usage

PROTOCOL = 4

# --- to the engine ------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, tag="start"):
    """First message: the model, and the engine's part of the configuration."""

    protocol: int
    model_path: bytes
    """As the file system has it."""
    model_id: str
    config: EngineConfig
    """Its model.path is empty: `model_path` has it."""


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: GenerateRequest
    has_grammar: bool = True
    """False: the payload of the grammar's plan was sent before; answered by NeedGrammar if the engine lacks it."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    key: int
    choice: int = -1
    """-1 = all choices."""


class EndReasoning(msgspec.Struct, frozen=True, tag="end_reasoning"):
    """Close the reasoning of every choice that is inside it; answered by ReasoningEnded."""

    key: int


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    ticket: int
    name: str
    path: str


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    ticket: int
    name: str


class CloseSession(msgspec.Struct, frozen=True, tag="close_session"):
    """Release the session's pins, those of its running requests included; answered by SessionClosed."""

    ticket: int
    session_id: str


class SlotAction(msgspec.Struct, frozen=True, tag="slot_action"):
    """Save what the slot held last to the file `path`, read such a file, or forget it; answered by SlotDone."""

    ticket: int
    action: Literal["save", "restore", "erase"]
    slot: int
    path: str = ""
    owner: str = ""
    """Whose text it must be; "" = anybody's."""
    most_bytes: int = 0
    """Of a file."""


class AskStats(msgspec.Struct, frozen=True, tag="ask_stats"):
    ticket: int


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Finish what is running, persist what is to be kept, exit."""

    timeout_s: float


ToEngine = (
    Start | Submit | Cancel | EndReasoning | LoadAdapter | UnloadAdapter | CloseSession | SlotAction | AskStats | Drain
)

# --- from the engine ----------------------------------------------------------------------------


class ModelInfo(msgspec.Struct, frozen=True):
    """What the API process and the probes need to know about the loaded model."""

    id: str
    family: str
    path: str
    context_length: int
    """Positions a row may hold: the model's, the configured limit and the pool, whichever is least."""
    trained_context: int
    vocab_size: int
    width: int
    n_parameters: int
    quantisation: str
    tasks: tuple[str, ...] = ("generate",)
    n_rows: int = 8
    n_blocks: tuple[int, ...] = ()
    backend: str = ""
    backend_detail: str = ""
    kv_dtype: str = ""
    weight_bytes: int = 0
    kv_bytes: int = 0
    file_bytes: int = 0
    memory_bytes: int = 0
    """What the process takes: measured once it was ready, with all of its weights and its pools."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """`value` in 0..1 within the stage (open, read, pack, adapters, warm, measure)."""

    stage: str
    value: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    protocol: int
    info: ModelInfo


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    code: str
    message: str
    exit_code: int


class RequestAccepted(msgspec.Struct, frozen=True, tag="accepted"):
    key: int
    prompt_tokens: int
    n_cached: int = 0
    """Prompt tokens that the prefix cache would give now; RowDelta.n_cached says what it gave in the end."""
    n_to_cache: int = 0
    """Prompt tokens that would be new in it."""


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    key: int
    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    is_too_costly: bool = False
    """Its grammar: it is refused from now on."""
    sizes: tuple[int, int] = (0, 0)
    """Of ContextLengthExceeded."""


class NeedGrammar(msgspec.Struct, frozen=True, tag="need_grammar"):
    """The request is to be submitted once more, with the payload of its grammar's plan."""

    key: int


class RowFinish(msgspec.Struct, frozen=True, array_like=True):
    """The engine's verdict on one choice."""

    reason: FinishReason
    usage: Usage
    stop_string: bytes | None = None
    end_id: int = -1
    detail: FinishDetail | None = None
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    ttft_ms: float = 0.0


class RowDelta(msgspec.Struct, frozen=True, array_like=True):
    """All that one choice gained since the last hand-off. Merging two deltas concatenates ids, logprobs and vectors."""

    key: int
    choice: int
    ids: bytes = b""
    """int32 token ids."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Empty or one per id."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """One per prompt token from the second on, sent once with the first delta of choice 0."""
    n_prefilled: int = -1
    """Prompt tokens done so far; -1 = unchanged."""
    n_cached: int = -1
    """Prompt tokens taken from the prefix cache; sent when the row starts, before its first step; -1 = unchanged."""
    finish: RowFinish | None = None
    vectors: tuple[bytes, ...] = ()
    """float32 bytes: the embedding (embed; of pooling none those of further positions) or the logits of score_ids
    (score)."""
    n_to_cache: int = 0
    """Prompt tokens that are new in the prefix cache; sent with n_cached."""


class StepDone(msgspec.Struct, frozen=True, tag="step"):
    """One hand-off per engine step: the deltas of all rows and the gauges."""

    rows: tuple[RowDelta, ...]
    gauges: dict[str, float] = {}


class RequestFailed(msgspec.Struct, frozen=True, tag="failed"):
    key: int
    status: int
    code: str
    message: str
    is_too_costly: bool = False
    """As in Rejected."""


ReasoningVerdict = Literal["ending", "already_closed", "no_closer", "unknown"]
"""What became of the wish to close reasoning. already_closed: it wasn't open; no_closer: its plan has no closer;
unknown: no such request is alive."""


class ReasoningEnded(msgspec.Struct, frozen=True, tag="reasoning_ended"):
    key: int
    verdict: ReasoningVerdict


class AdapterDone(msgspec.Struct, frozen=True, tag="adapter_done"):
    ticket: int
    ok: bool
    code: str = ""
    message: str = ""


class SessionClosed(msgspec.Struct, frozen=True, tag="session_closed"):
    """`n_blocks`: blocks that no pin holds any more."""

    ticket: int
    n_blocks: int


class SlotDone(msgspec.Struct, frozen=True, tag="slot_done"):
    """`problem`: "" if it was done, else one of those of engine/slot_files.py."""

    ticket: int
    n_tokens: int = 0
    n_bytes: int = 0
    """Of the file."""
    took_ms: float = 0.0
    problem: str = ""


class StatsReply(msgspec.Struct, frozen=True, tag="stats"):
    """Counters and gauges by metric name; `rows` for /slots."""

    ticket: int
    counters: dict[str, float]
    rows: tuple[dict[str, Any], ...] = ()


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """From a thread of its own, every second, whatever the step loop does."""

    n_steps: int
    busy: bool


FromEngine = (
    Loading
    | Ready
    | LoadFailed
    | RequestAccepted
    | Rejected
    | NeedGrammar
    | StepDone
    | RequestFailed
    | ReasoningEnded
    | AdapterDone
    | SessionClosed
    | SlotDone
    | StatsReply
    | Heartbeat
)

_to_encoder = msgspec.msgpack.Encoder()
_to_decoder = msgspec.msgpack.Decoder(ToEngine)
_from_decoder = msgspec.msgpack.Decoder(FromEngine)


def encode(message: msgspec.Struct) -> bytes:
    """The message with its length prefix, ready for the socket."""
    body = _to_encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


def decode_to_engine(body: bytes) -> ToEngine:
    return _to_decoder.decode(body)


def decode_from_engine(body: bytes) -> FromEngine:
    return _from_decoder.decode(body)
