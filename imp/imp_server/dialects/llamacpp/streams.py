"""llama.cpp's resumable streams: read again from an offset, look up, stop. What makes them is in api/resumable/."""

from __future__ import annotations

from imp_server.dialects.handler import BytesReply, Call, JsonReply, RelayReply, Reply, handler


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
