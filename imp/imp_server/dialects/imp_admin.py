"""What an operator does to the models in memory."""

from __future__ import annotations

from imp_server.dialects.handler import Call, JsonReply, Reply, handler


@handler
async def suspend(call: Call) -> Reply:
    """Returns once the memory is free."""
    return JsonReply({"suspended": True, "models": await call.services.control.suspend(call.model)})


@handler
async def resume(call: Call) -> Reply:
    """Returns once the models answer."""
    return JsonReply({"suspended": False, "models": await call.services.control.resume(call.model)})
