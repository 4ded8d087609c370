"""llama.cpp's routes of a server of several models: load, unload, fetch, delete, follow."""

from __future__ import annotations

from imp_server.dialects.handler import Call, JsonReply, RelayReply, Reply, handler

_DONE = {"success": True}


@handler
async def load_model(call: Call) -> Reply:
    call.services.control.load(call.model)
    return JsonReply(_DONE)


@handler
async def unload_model(call: Call) -> Reply:
    await call.services.control.unload(call.model)
    return JsonReply(_DONE)


@handler
async def fetch_model(call: Call) -> Reply:
    await call.services.control.fetch(call.model)
    return JsonReply(_DONE)


@handler
async def remove_model(call: Call) -> Reply:
    await call.services.control.remove(call.query["model"])
    return JsonReply(_DONE)


@handler
async def follow_models(call: Call) -> Reply:
    return RelayReply(call.services.control.events())
