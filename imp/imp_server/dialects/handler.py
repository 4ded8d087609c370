"""What stands between an operation of a spec document and its dialect: the handler, its call and its reply.

A handler is a coroutine marked with `@handler` and named by the operationId `<module>.<function>`. It
reads a `Call`, may ask the server's `Services`, and answers with one of the replies below; the API
process does the rest (engine, transport, errors). Handlers own no state.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

from prometheus_client.core import Metric

from imp_server.config import Config
from imp_server.core import ChatRequest, ImpError, Pooling, PromptRequest
from imp_server.dialects.base import Fold, ReplyContext, SseFrame, Stream
from imp_server.dialects.ids import new_id
from imp_server.dialects.resumable import OwnStreamsView, Readable

if TYPE_CHECKING:
    from imp_server.dialects.openai_conversations.kept import Conversations
    from imp_server.dialects.openai_responses.kept import BackgroundRuns, Kept
    from imp_server.dialects.openai_responses.turns import Turn

P = ParamSpec("P")
T = TypeVar("T")


class ModelStatus(NamedTuple):
    """Where one of several models stands."""

    value: str
    """unloaded | loading | loaded | sleeping."""
    problem: str = ""
    """What its last load, or its configuration, failed with."""
    source: str = ""
    """preset | folder | catalogue."""
    can_remove: bool = False
    """Fetched by imp itself."""


class ModelCard(NamedTuple):
    """A model that this server lists."""

    id: str
    created: int
    """Unix seconds."""
    loaded: bool
    context_length: int | None
    """Positions a conversation may hold; None while the model loads, like all that follows."""
    trained_context: int | None = None
    vocab_size: int | None = None
    width: int | None = None
    n_parameters: int | None = None
    file_bytes: int | None = None
    family: str = ""
    quantisation: str = ""
    path: str = ""
    n_rows: int = 0
    tasks: tuple[str, ...] = ("generate",)
    pooling: Pooling = "auto"
    """Of its embeddings, as it is configured."""
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    status: ModelStatus | None = None
    """None on a server of one model."""


class ListedAdapter(NamedTuple):
    """An adapter of a model; its place in the list is its number."""

    name: str
    path: str
    scale: float
    """By which it counts in requests that don't choose."""


class ServerState(NamedTuple):
    """What the probes tell. `state`: no_model | loading | ready | restarting | draining | stopped | failed |
    sleeping | suspended."""

    state: str
    model: str
    queue_depth: int
    stage: str = ""
    stage_value: float = 0.0
    message: str = ""
    trouble: str = ""
    """Why requests can't be served although the state is `ready`."""
    is_rested: bool = False
    """The model was loaded before: it sleeps, or is on its way back."""
    idle_unload_s: int = 0
    loaded: Mapping[str, bool] | None = None
    """Of several models, which of them answer; None on a server of one."""


class TextFacts(NamedTuple):
    """What the probes tell of a model's text side."""

    chat_template: str
    """Jinja source of the template in use."""
    sampling_defaults: Mapping[str, float]
    """By parameter, for requests that name none."""
    template_facts: Mapping[str, Any] = {}
    """llama.cpp's bos_token, eos_token and chat_template_caps."""


ReasoningEnd = Literal["ending", "already_closed", "no_closer", "not_allowed", "unknown"]
"""What became of the wish to end a reply's thinking. already_closed: it wasn't thinking; no_closer: its model can't be
told to stop; not_allowed: the request forbade it; unknown: no such reply is being made."""


SlotVerb = Literal["save", "restore", "erase"]


class SlotOutcome(NamedTuple):
    """What became of a slot action."""

    n_tokens: int
    n_bytes: int
    """Of the file."""
    took_ms: float


class Services(Protocol):
    """What a handler may ask of the server. Every method that needs a model raises NoModel or ModelLoading
    without one, and ModelNotFound for another name; `model` "" means the loaded one."""

    config: Config

    @property
    def responses(self) -> Kept:
        """Responses that can be asked for again by the owner of the request."""
        ...

    @property
    def conversations(self) -> Conversations:
        """Of the owner of the request."""
        ...

    @property
    def background(self) -> BackgroundRuns:
        """Responses of the owner of the request that are made without a client."""
        ...

    @property
    def streams(self) -> OwnStreamsView:
        """Resumable streams of the owner of the request."""
        ...

    def state(self, model: str = "") -> ServerState:
        """Of no model, too: then it is the server's."""
        ...

    def cards(self) -> tuple[ModelCard, ...]: ...

    def card(self, model: str) -> ModelCard: ...

    async def ready_card(self, model: str) -> ModelCard:
        """Of a model that is in memory until the request has been answered; it is loaded if need be."""
        ...

    @property
    def control(self) -> ModelControl:
        """What changes which models there are, and which are in memory."""
        ...

    def text_facts(self, model: str) -> TextFacts: ...

    def document(self) -> dict[str, Any]:
        """The served OpenAPI document."""
        ...

    async def stats(self, model: str = "") -> tuple[dict[str, float], tuple[dict[str, Any], ...]]:
        """Counters by name, and one dict per row of the model; those of the server alone where there is none."""
        ...

    def measured(self) -> Iterable[Metric]:
        """What this process counts of requests and replies, for the metrics."""
        ...

    async def tokenize(
        self, model: str, pieces: Sequence[str | int], *, add_special: bool, parse_special: bool
    ) -> list[int]:
        """Ids among the pieces stand as they are."""
        ...

    def token_writer(self, model: str) -> Callable[[int], bytes]:
        """What a token shows when it is named: its own bytes, not always whole characters."""
        ...

    async def detokenize(self, model: str, ids: list[int]) -> str: ...

    async def render(self, request: ChatRequest) -> str:
        """The prompt as text."""
        ...

    async def count_tokens(self, request: ChatRequest) -> int:
        """Prompt tokens of the request."""
        ...

    async def rendered(self, blocks: Sequence[str], client: str) -> list[list[Any] | None] | None:
        """Markdown as nodes (ui/allowed.py): None for a block that there was no time for, and for all if a limit ended
        the work. `client`: as of a Call."""
        ...

    async def end_reasoning(self, name: str) -> ReasoningEnd:
        """Ends the thinking of the reply being made whose id, or whose client's x-request-id, is `name`."""
        ...

    async def close_session(self, session_id: str) -> int:
        """Releases the pins of the session on every model; cache blocks that became free to go."""
        ...

    async def slot_action(self, model: str, action: SlotVerb, slot: int, filename: str = "") -> SlotOutcome:
        """Of the owner of the request. Raises NotSupported, InvalidRequest, Unavailable."""
        ...

    def adapters(self, model: str) -> tuple[ListedAdapter, ...]:
        """Whether or not the model is in memory; none where there is no model."""
        ...

    def scale_adapters(self, model: str, scales: Mapping[int, float]) -> None:
        """By number; those that aren't named count 0. Raises InvalidRequest for a number that no adapter has."""
        ...

    async def in_pool(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """For what may take longer than 2 ms, which nothing on the event loop may."""
        ...


class ModelControl(Protocol):
    """Every method raises ModelNotFound for a name that no model has."""

    def load(self, model: str) -> None:
        """Begins to load it. Raises InvalidRequest if it is in memory, or on its way there."""
        ...

    async def unload(self, model: str) -> None:
        """Begins to take it out of memory, or cancels its download. Raises InvalidRequest if there is nothing to do."""
        ...

    async def fetch(self, model: str) -> None:
        """Begins to download it. Raises InvalidRequest for what is here, or can't be fetched."""
        ...

    async def remove(self, model: str) -> None:
        """Deletes a model that was fetched. Raises InvalidRequest for another one."""
        ...

    async def scan(self) -> None:
        """Looks for models again."""
        ...

    def events(self) -> Readable:
        """The state of each model, and what becomes of it, as server-sent events."""
        ...

    async def suspend(self, model: str) -> list[str]:
        """Frees the memory of the model, or of all for ""; those that sleep until `resume`."""
        ...

    async def resume(self, model: str) -> list[str]:
        """The inverse. Raises ModelLoadFailed."""
        ...


INLINE_BYTES = 256 * 1024
"""Work on JSON up to this size stays below 2 ms; more of it goes to the pool, away from the event loop."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request that satisfies its contract. `body` has no null where null means absent."""

    body: dict[str, Any]
    path: Mapping[str, str]
    query: Mapping[str, Any]
    headers: Mapping[str, str]
    """Lower-case names; of repeated headers the last."""
    request_id: str
    services: Services
    n_bytes: int = 0
    """Size of the body as it was sent."""
    turn: Turn | None = None
    """The message of a WebSocket connection that this is; None for a request of its own."""
    client: str = ""
    """Whose work it is, for fairness: the key's, without keys the connection's."""

    async def worked(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function`, whose work grows with the body: in the pool if the body is large."""
        if self.n_bytes <= INLINE_BYTES:
            return function(*args, **kwargs)
        return await self.services.in_pool(function, *args, **kwargs)

    @property
    def model(self) -> str:
        model = self.body.get("model", "")
        return model if isinstance(model, str) else ""

    def reply_context(self, prefix: str, model: str | None = None, *, n: int = 1, **extra: Any) -> ReplyContext:
        """Of the reply that begins now. `prefix`: of its id. `model`: where it isn't told as the client named it."""
        return ReplyContext(
            id=new_id(prefix),
            model=self.model if model is None else model,
            created=int(time.time()),
            request_id=self.request_id,
            body=self.body,
            n=n,
            extra=extra,
            habits=self.services.config.server.habits,
        )


@dataclass(frozen=True, slots=True)
class JsonReply:
    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BytesReply:
    """Anything that isn't JSON: a page, metrics, nothing."""

    content: bytes
    content_type: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Generate:
    """Continue a conversation, or raw prompts, and answer with the fold's body or the stream's frames.

    Choice c of prompt p is the choice p * n + c of its events.
    """

    requests: tuple[ChatRequest] | tuple[PromptRequest, ...]
    """All of one model."""
    context: ReplyContext
    streamed: bool
    fold: Callable[[ReplyContext], Fold]
    stream: Callable[[ReplyContext], Stream] | None = None
    """None = this operation has no stream."""
    keep: Callable[[dict[str, Any]], Awaitable[None]] | None = None
    """Awaited with the whole reply before its last frames are sent (a stored response must be found at once)."""
    headers: Mapping[str, str] = field(default_factory=dict)
    background: Callable[[], Awaitable[dict[str, Any]]] | None = None
    """The reply is made without its client, and kept. Awaited once it is accepted: what is answered at once.

    May raise what then ends it."""


@runtime_checkable
class Pings(Protocol):
    """A Stream whose dialect has its own sign of life; the others send a comment."""

    def ping(self) -> list[SseFrame]: ...


@runtime_checkable
class OpensLate(Protocol):
    """A Stream that begins with what the prefix cache gave, and `open`s with nothing.

    Its opening comes with the first event that it is fed (Accepted, when the prompt's turn has come), or, where that
    takes longer than `opening_wait_s`, from `open_now`.
    """

    opening_wait_s: float

    def open_now(self) -> list[SseFrame]:
        """Empty if it has opened."""
        ...


@runtime_checkable
class KeepsFailures(Protocol):
    """A Stream whose reply is kept although it failed."""

    def as_failed(self, error: ImpError) -> dict[str, Any]:
        """What is kept; told before Stream.fail, whose frames may say whether it could be."""
        ...


@dataclass(frozen=True, slots=True)
class RelayReply:
    """Server-sent events that were made for another request, or are being made."""

    reader: Readable


@dataclass(frozen=True, slots=True)
class SubRequests:
    """Requests inside this one: the route of each, or a name of it, and its body. `merge` makes the reply of theirs."""

    requests: tuple[tuple[str, dict[str, Any]], ...]
    merge: Callable[[list[Any]], Any]


Reply = JsonReply | BytesReply | RelayReply | Generate | SubRequests
Handler = Callable[[Call], Awaitable[Reply]]

_MARK = "__imp_operation__"


def handler(function: Handler) -> Handler:
    """Marks an operation by its place: `tgi.info` is in tgi/handlers.py, `openai_models.list` in openai/models.py."""
    below = function.__module__.partition("dialects.")[2].removesuffix(".handlers")
    setattr(function, _MARK, f"{below.replace('.', '_')}.{function.__name__}")
    return function


def operation_of(thing: object) -> str | None:
    """The operationId a handler was marked with."""
    name = getattr(thing, _MARK, None)
    return name if isinstance(name, str) else None
