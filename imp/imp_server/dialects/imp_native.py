"""imp's own routes: probes, tokenizer, the contract itself."""

from __future__ import annotations

from typing import Any

import msgspec

from imp_server.core import Conflict, NotFound
from imp_server.dialects.docs_page import front_page, page
from imp_server.dialects.handler import BytesReply, Call, JsonReply, Reply, TokenPiece, handler


@handler
async def index(call: Call) -> Reply:
    state = call.services.state()
    host = call.headers.get("host", "127.0.0.1:8080")
    return BytesReply(front_page(state.model, state.state, host).encode(), "text/html; charset=utf-8")


@handler
async def health(call: Call) -> Reply:
    """Never waits for the engine."""
    state = call.services.state()
    failed = state.state == "failed"
    body: dict[str, Any] = {
        "status": "unhealthy" if failed else "ok",
        "model_loaded": state.state in ("ready", "draining"),
        "state": state.state,
        "queue_depth": state.queue_depth,
        "suspended": False,
        "idle_suspended": False,
        "idle_unload_seconds": 0,
    }
    if failed:
        body["code"] = "engine_faulted"
    if state.state == "loading":
        body["loading"] = {"stage": state.stage, "value": min(1.0, max(0.0, state.stage_value))}
    return JsonReply(body, status=503 if failed else 200)


_NOT_READY = {
    "no_model": ("no_model", "no model is loaded"),
    "loading": ("model_loading", "the model is loading"),
    "restarting": ("engine_faulted", "the engine is restarting"),
    "draining": ("draining", "the server is shutting down"),
    "stopped": ("engine_faulted", "the engine has stopped"),
    "failed": ("engine_faulted", "the model can't be loaded"),
}


@handler
async def ready(call: Call) -> Reply:
    state = call.services.state()
    if state.state == "ready":
        return JsonReply({"ready": True, "model": state.model})
    code, message = _NOT_READY[state.state]
    body: dict[str, Any] = {"ready": False, "code": code, "message": state.message or message}
    if state.model:
        body["model"] = state.model
    return JsonReply(body, status=503, headers={"retry-after": "1"})


@handler
async def tokenize(call: Call) -> Reply:
    text = call.body.get("content", call.body.get("prompt", ""))
    pieces = await call.services.tokenize(
        call.model,
        text,
        add_special=call.body.get("add_special", False),
        parse_special=call.body.get("parse_special", True),
    )
    return JsonReply(await call.worked(_tokens_body, pieces, with_pieces=bool(call.body.get("with_pieces"))))


def _tokens_body(pieces: list[TokenPiece], *, with_pieces: bool) -> msgspec.Raw:
    """Encoded here, as there may be a million of them."""
    tokens = [_piece_body(piece) if with_pieces else piece.id for piece in pieces]
    return msgspec.Raw(msgspec.json.encode({"tokens": tokens}))


def _piece_body(piece: TokenPiece) -> dict[str, Any]:
    try:
        return {"id": piece.id, "piece": piece.data.decode()}
    except UnicodeDecodeError:
        return {"id": piece.id, "piece": list(piece.data)}


@handler
async def detokenize(call: Call) -> Reply:
    ids = await call.worked(whole_ids, call.body["tokens"])
    return JsonReply({"content": await call.services.detokenize(call.model, ids)})


def whole_ids(values: list[float]) -> list[int]:
    """JSON Schema takes 3.0 for an integer."""
    return [int(value) for value in values]


@handler
async def end_thinking(call: Call) -> Reply:
    """Idempotent while the reply is being made."""
    name = call.path["request_id"]
    verdict = await call.services.end_reasoning(name)
    if verdict in ("ending", "already_closed"):
        return JsonReply({"id": name, "object": "request.end_thinking", "status": verdict})
    if verdict == "no_closer":
        message = "this reply can't be told to stop thinking: its model has no tag that closes it"
        raise Conflict(message, code="no_reasoning_closer", param="id")
    if verdict == "not_allowed":
        raise Conflict("the request was sent with reasoning_control false", param="id")
    message = f"no reply with the id {name[:128]!r} is being made; it may have ended"
    raise NotFound(message, code="request_not_found", param="id")


@handler
async def close_session(call: Call) -> Reply:
    """Idempotent: a session exists only as pins, so one that nobody opened is as closed as any."""
    session_id = call.path["session_id"]
    n_blocks = await call.services.close_session(session_id)
    return JsonReply({"id": session_id, "object": "session", "closed": True, "released_blocks": n_blocks})


@handler
async def openapi(call: Call) -> Reply:
    return JsonReply(call.services.document())


@handler
async def docs(call: Call) -> Reply:
    return BytesReply(page(call.services.document()).encode(), "text/html; charset=utf-8")
