"""What a dialect is: pure functions from a request body to a ChatRequest and from OutputEvents to the wire.

One file per dialect, found by name through the operationId `<module>.<function>` of its spec document.
A dialect never sees a token, a socket or the engine. Its `Fold` (JSON) and its `Stream` (SSE) consume
the same events, so the two transports can't differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from imp_server.core import ImpError, OutputEvent, SamplingParams, Usage

_encode = msgspec.json.Encoder().encode


class SseFrame(NamedTuple):
    """One server-sent event: one write. `data` is the encoded payload (JSON or a sentinel like [DONE])."""

    data: bytes
    event: str | None = None


def named_frames(events: Iterable[dict[str, Any]]) -> list[SseFrame]:
    """Of a dialect whose frames are named by the type of their events."""
    return [SseFrame(_encode(event), event["type"]) for event in events]


@dataclass(frozen=True, slots=True)
class AcceptedPrompts:
    """What is known of a reply's prompts once the engine has accepted them."""

    usage: Usage = field(default_factory=Usage)
    """The tokens of all prompts, and how many of them the prefix cache held at that moment."""
    prompt_texts: tuple[str, ...] = ()
    """As a person reads them."""
    sampling: tuple[SamplingParams, ...] = ()
    """In force, by prompt."""
    pin_until: int = 0
    """Tokens of the first prompt up to its last cache mark."""
    hour_until: int = 0
    """The same of the marks that ask for an hour."""
    cancel: Callable[[], None] = lambda: None
    """Frees the rows."""


@dataclass(slots=True)
class ReplyContext:
    """What a reply needs besides the events. `id` is the wire id (chatcmpl-..., resp_..., msg_...)."""

    id: str
    model: str
    """As the client named it."""
    created: int
    """Unix seconds."""
    request_id: str
    body: dict[str, Any]
    """The validated request body, for fields that a reply echoes."""
    n: int = 1
    extra: dict[str, Any] = field(default_factory=dict)
    """What a dialect's handler tells its own Fold and Stream; nobody else reads it."""
    clock: Callable[[], float] = time.monotonic
    """Seconds, for streams that tell how long things took."""
    accepted: AcceptedPrompts = field(default_factory=AcceptedPrompts)
    """Told before the Fold or the Stream is made."""
    failed: dict[str, Any] | None = None
    """The reply as it stands behind an error in its stream, where the dialect has it kept like any other."""
    habits: str = "imp"
    """server.habits: whose small ways the reply has."""


class Fold(Protocol):
    """Builds the whole JSON reply."""

    def feed(self, event: OutputEvent) -> None: ...

    def body(self) -> Any:
        """The reply as JSON; called once after the Finish of every choice."""
        ...


class Stream(Protocol):
    """Builds the frames of a streamed reply. Every returned frame is written at once, in order."""

    def open(self) -> list[SseFrame]:
        """Frames sent as soon as the engine has accepted the request, before prefill ends (but see OpensLate)."""
        ...

    def feed(self, event: OutputEvent) -> list[SseFrame]: ...

    def close(self) -> list[SseFrame]:
        """After the Finish of every choice: the dialect's end of a good stream."""
        ...

    def fail(self, error: ImpError) -> list[SseFrame]:
        """In-band error after the first byte; nothing follows, and no false finish precedes."""
        ...
