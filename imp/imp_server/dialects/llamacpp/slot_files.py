"""llama.cpp's slot actions: save what a row held last to a file, read such a file, forget it."""

from __future__ import annotations

from imp_server.core import MissingParameter
from imp_server.dialects.handler import Call, JsonReply, Reply, SlotVerb, handler


@handler
async def slot_action(call: Call) -> Reply:
    slot, verb = int(call.path["id_slot"]), _verb(call.query["action"])
    name = call.body.get("filename", "")
    if verb != "erase" and not name:
        raise MissingParameter('"filename" is missing: name the file', param="filename")
    done = await call.services.slot_action(call.model or call.query.get("model", ""), verb, slot, name)
    if verb == "erase":
        return JsonReply({"id_slot": slot, "n_erased": done.n_tokens})
    tokens, size = ("n_saved", "n_written") if verb == "save" else ("n_restored", "n_read")
    body = {"id_slot": slot, "filename": name, tokens: done.n_tokens, size: done.n_bytes}
    return JsonReply(body | {"timings": {f"{verb}_ms": done.took_ms}})


def _verb(text: str) -> SlotVerb:
    verbs: dict[str, SlotVerb] = {"save": "save", "restore": "restore", "erase": "erase"}
    return verbs[text]
