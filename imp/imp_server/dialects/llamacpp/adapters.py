"""llama.cpp's routes for LoRA adapters: which there are, and by how much they count in requests that don't choose."""

from __future__ import annotations

from typing import Any

from imp_server.dialects.handler import Call, JsonReply, Reply, handler


@handler
async def list_adapters(call: Call) -> Reply:
    adapters = call.services.adapters(call.query.get("model", ""))
    return JsonReply([
        {"id": number, "path": one.path, "scale": one.scale, "task_name": "", "prompt_prefix": "", "name": one.name}
        for number, one in enumerate(adapters)
    ])  # fmt: skip


@handler
async def scale_adapters(call: Call) -> Reply:
    entries: Any = call.body
    scales = {int(entry["id"]): float(entry["scale"]) for entry in entries}
    call.services.scale_adapters(call.query.get("model", ""), scales)
    return JsonReply({"success": True})
