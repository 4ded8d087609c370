"""llama.cpp's routes for LoRA adapters. No backend loads any yet, so there are none."""

from __future__ import annotations

from typing import Any

from imp_server.core import InvalidRequest
from imp_server.dialects.handler import Call, JsonReply, Reply, handler


@handler
async def list_adapters(call: Call) -> Reply:
    call.services.state(call.query.get("model", ""))
    return JsonReply([])


@handler
async def scale_adapters(call: Call) -> Reply:
    call.services.state(call.query.get("model", ""))
    entries: Any = call.body
    for entry in entries:
        message = f"there is no adapter {int(entry['id'])}: none is loaded"
        raise InvalidRequest(message, param="id", code="lora_not_found")
    return JsonReply({"success": True})
