"""Streams that go on without their client, as the dialects see them. What makes them is in api/resumable/."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol


class Readable(Protocol):
    """A stream that goes on without its reader."""

    def chunks(self) -> AsyncGenerator[bytes, None]: ...

    def leave(self) -> None:
        """Ends `chunks`: the client has gone."""
        ...


class StreamRow(NamedTuple):
    """What a look-up tells of a stream; its fields are those of the wire."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    """All that ever came, whether or not they are kept."""
    started_at: int
    """Unix seconds."""
    completed_at: int
    """Unix seconds; 0 while it is being written."""


class OwnStreamsView(Protocol):
    """Resumable streams, as one owner's requests see them."""

    def reader(self, name: str, offset: int) -> Readable:
        """Raises NotFound; Unavailable before the engine has accepted; InvalidRequest if `offset` is lost."""
        ...

    def stop(self, name: str) -> None:
        """Also a request that hasn't been accepted yet. Nothing happens for an unknown name."""
        ...

    def rows(self, names: Sequence[str]) -> list[StreamRow]:
        """Of the streams with one of these names, or that begin with one of them and "::"."""
        ...
