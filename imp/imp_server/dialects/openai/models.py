"""GET /v1/models and /v1/models/{model}: one object that satisfies OpenAI's and Anthropic's types."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from imp_server.core import ModelNotFound, NoModel
from imp_server.dialects.handler import Call, JsonReply, ModelCard, ModelStatus, Reply, handler


@handler
async def list_models(call: Call) -> Reply:
    return await _listed(call)


@handler
async def llamacpp_models(call: Call) -> Reply:
    return await _listed(call)


async def _listed(call: Call) -> Reply:
    """Anthropic's paging: after_id, before_id and limit; OpenAI's clients send none of them."""
    if call.query.get("reload"):
        await call.services.control.scan()
    cards = list(call.services.cards())
    ids = [card.id for card in cards]
    after, before = call.query.get("after_id"), call.query.get("before_id")
    start = ids.index(after) + 1 if after in ids else 0
    end = ids.index(before) if before in ids else len(ids)
    page = cards[start:end][: call.query.get("limit", 1000)]
    body = {
        "object": "list",
        "data": [_body(call, card) for card in page],
        "models": [{"name": card.id, "model": card.id, "capabilities": _capabilities(card)} for card in page],
        "has_more": len(page) < len(cards[start:end]),
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }
    return JsonReply(body)


@handler
async def retrieve_model(call: Call) -> Reply:
    name = call.path["model"]
    try:
        return JsonReply(_body(call, call.services.card(name)))
    except NoModel:
        raise ModelNotFound(f"model {name[:200]!r} not found; no model is loaded", param="model") from None


def _body(call: Call, card: ModelCard) -> dict[str, Any]:
    """llama-server lists the id among the aliases, too, where there are any."""
    body = model_body(card)
    if call.services.config.server.habits == "llama-server" and card.aliases:
        body["aliases"] = sorted({card.id, *card.aliases})
    return body


def _capabilities(card: ModelCard) -> list[str]:
    """In llama.cpp's words."""
    names = {"generate": "completion", "embed": "embedding"}
    return [name for task, name in names.items() if task in card.tasks]


def model_body(card: ModelCard) -> dict[str, Any]:
    meta = None
    if card.context_length is not None:
        meta = {
            "n_ctx": card.context_length,
            "n_ctx_train": card.context_length,
            "ftype": card.quantisation,
            "n_params": card.n_parameters,
            "n_vocab": card.vocab_size,
            "n_embd": card.width,
            "size": card.file_bytes,
            "family": card.family,
            "quantisation": card.quantisation,
            "tasks": list(card.tasks),
        }
    body = {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "imp",
        "type": "model",
        "display_name": card.id,
        "created_at": datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "aliases": list(card.aliases),
        "tags": list(card.tags),
        "loaded": card.loaded,
        "max_model_len": card.context_length,
        "max_input_tokens": card.context_length,
        "max_tokens": card.context_length,
        "meta": meta,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
    }
    return body if card.status is None else body | _status_body(card.status)


def _status_body(status: ModelStatus) -> dict[str, Any]:
    told: dict[str, Any] = {"value": status.value, "failed": bool(status.problem)}
    if status.problem:
        told["error"] = status.problem
    return {"status": told, "source": status.source, "can_remove": status.can_remove}
