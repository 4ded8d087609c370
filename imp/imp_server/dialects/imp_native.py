"""imp's own routes: probes, tokenizer, the contract itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from imp_server.core import Conflict, NotFound
from imp_server.dialects.docs_page import front_page, page
from imp_server.dialects.handler import BytesReply, Call, JsonReply, Reply, handler
from imp_server.dialects.imp_ui import page_file


@handler
async def index(call: Call) -> Reply:
    if call.services.config.server.ui:
        return page_file(call, "index.html")
    state = call.services.state()
    host = call.headers.get("host", "127.0.0.1:8080")
    scheme = "https" if call.services.config.server.ssl_certfile else "http"
    return BytesReply(front_page(state.model, state.state, host, scheme).encode(), "text/html; charset=utf-8")


@handler
async def health(call: Call) -> Reply:
    return _health(call)


@handler
async def v1_health(call: Call) -> Reply:
    return _health(call)


_UNWELL = {
    "loading": ("loading", "model_loading", "Loading model"),
    "restarting": ("unhealthy", "engine_restarting", "the engine is restarting"),
    "stopped": ("unhealthy", "engine_faulted", "the engine has stopped"),
    "failed": ("unhealthy", "engine_faulted", "the model can't be loaded"),
}
"""State -> status, code and message of a 503. No model at all is a state, not a fault, and so is one that sleeps."""


def _health(call: Call) -> Reply:
    """Never waits for the engine."""
    state = call.services.state()
    status, code, message = ("ok", "", "") if state.is_rested else _UNWELL.get(state.state, ("ok", "", ""))
    body: dict[str, Any] = {
        "status": status,
        "model_loaded": state.state in ("ready", "draining") and (state.loaded is None or any(state.loaded.values())),
        "state": state.state,
        "queue_depth": state.queue_depth,
        "suspended": state.state in ("sleeping", "suspended"),
        "idle_suspended": state.state == "sleeping",
        "idle_unload_seconds": state.idle_unload_s,
    }
    if state.loaded is not None:
        body["models_loaded"] = sum(state.loaded.values())
    if state.state == "loading":
        body["loading"] = {"stage": state.stage, "value": min(1.0, max(0.0, state.stage_value))}
    if not code:
        return JsonReply(body)
    body |= {"code": code, "error": {"code": 503, "message": message, "type": "unavailable_error"}}
    return JsonReply(body, status=503)


_NOT_READY = {
    "no_model": ("no_model", "no model is loaded"),
    "loading": ("model_loading", "the model is loading"),
    "restarting": ("engine_faulted", "the engine is restarting"),
    "draining": ("draining", "the server is shutting down"),
    "stopped": ("engine_faulted", "the engine has stopped"),
    "failed": ("engine_faulted", "the model can't be loaded"),
    "suspended": ("suspended", "the model was put to sleep; POST /admin/resume wakes it"),
}


@handler
async def ready(call: Call) -> Reply:
    state = call.services.state()
    if (state.state == "ready" or state.is_rested) and not state.trouble:
        told = {"message": state.message} if state.message else {}
        return JsonReply({"ready": True, "model": state.model, **told})
    in_trouble = ("engine_faulted", state.trouble)
    code, message = in_trouble if state.state == "ready" or state.is_rested else _NOT_READY[state.state]
    message = state.trouble or state.message or message
    body: dict[str, Any] = {"ready": False, "code": code, "message": message}
    if state.model:
        body["model"] = state.model
    return JsonReply(body, status=503, headers={"retry-after": "1"})


@handler
async def tokenize(call: Call) -> Reply:
    content = call.body.get("content", call.body.get("prompt", ""))
    ids = await call.services.tokenize(
        call.model,
        [content] if isinstance(content, str) else await call.worked(_whole, content),
        add_special=call.body.get("add_special", call.body.get("add_special_tokens", False)),
        parse_special=call.body.get("parse_special", True),
    )
    writer = call.services.token_writer(call.model) if call.body.get("with_pieces") else None
    if len(ids) <= _AT_ONCE:
        return JsonReply(_tokens_body(ids, writer))
    return JsonReply(await call.services.in_pool(_tokens_body, ids, writer))


def _whole(pieces: list[Any]) -> list[str | int]:
    """JSON Schema takes 3.0 for an integer."""
    return [piece if isinstance(piece, str) else int(piece) for piece in pieces]


_AT_ONCE = 2048
"""Tokens encoded in one go. A thread of the pool holds the interpreter's lock while a library works: an encoding of a
million tokens would stop the event loop as if it were done there. So would the collection of as many young containers,
which is why pieces are written one by one."""


def _tokens_body(ids: list[int], writer: Callable[[int], bytes] | None) -> msgspec.Raw:
    """`writer`: pieces are wanted, too."""
    parts = [b'{"tokens":[']
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        if writer is None:
            written = msgspec.json.encode(some)[1:-1]
        else:
            written = b",".join([b'{"id":%d,"piece":%b}' % (i, _shown(writer(i))) for i in some])
        parts += (b"," if start else b"", written)
    return msgspec.Raw(b"".join((*parts, b"]}")))


def _shown(data: bytes) -> bytes:
    """A token's text in JSON, or the list of its bytes if they are no whole characters."""
    try:
        return msgspec.json.encode(data.decode())
    except UnicodeDecodeError:
        return msgspec.json.encode(list(data))


@handler
async def detokenize(call: Call) -> Reply:
    ids = await call.worked(whole_ids, call.body["tokens"])
    text = await call.services.detokenize(call.model, ids)
    return JsonReply({"content": text, "prompt": text})


@handler
async def tokenizer_info(call: Call) -> Reply:
    model = call.query.get("model", "")
    card, facts = call.services.card(model), call.services.text_facts(model)
    return JsonReply(
        {
            "tokenizer_class": "imp",
            "bos_token": facts.template_facts.get("bos_token") or None,
            "eos_token": facts.template_facts.get("eos_token") or None,
            "pad_token": None,
            "chat_template": facts.chat_template,
            "model_max_length": card.context_length,
        }
    )


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
    if call.services.config.server.ui:
        return page_file(call, "docs.html")
    return BytesReply(page(call.services.document()).encode(), "text/html; charset=utf-8")
