"""llama.cpp's resumable streams: read again from an offset, look up, stop. What makes them is in api/resumable/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from imp_server.dialects.handler import BytesReply, Call, JsonReply, Readable, RelayReply, Reply, handler


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


class Streams(Protocol):
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


def _read(call: Call, name: str) -> Reply:
    return RelayReply(call.services.streams.reader(name, call.query.get("from", 0)))


def _stop(call: Call, name: str) -> Reply:
    call.services.streams.stop(name)
    return BytesReply(b"", "", 204)


@handler
async def read_stream(call: Call) -> Reply:
    return _read(call, call.path["conv_id"])


@handler
async def read_stream_by_query(call: Call) -> Reply:
    return _read(call, call.query["conv_id"])


@handler
async def stop_stream(call: Call) -> Reply:
    return _stop(call, call.path["conv_id"])


@handler
async def stop_stream_by_query(call: Call) -> Reply:
    return _stop(call, call.query["conv_id"])


@handler
async def look_up_streams(call: Call) -> Reply:
    return JsonReply([row._asdict() for row in call.services.streams.rows(call.body["conversation_ids"])])
