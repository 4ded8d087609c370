"""TGI's probes."""

from __future__ import annotations

from imp_server import __version__
from imp_server.core import NoModel
from imp_server.dialects.handler import BytesReply, Call, JsonReply, Reply, handler


@handler
async def info(call: Call) -> Reply:
    card = next(iter(call.services.cards()), None)
    n_total = (card.context_length if card else None) or 0
    server = call.services.config.server
    return JsonReply(
        {
            "model_id": card.id if card else "",
            "model_sha": None,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": server.max_concurrent,
            "max_best_of": 1,
            "max_stop_sequences": server.max_stop,
            "max_input_tokens": max(0, n_total - 1),
            "max_total_tokens": n_total,
            "validation_workers": 2,
            "max_client_batch_size": 1,
            "router": "imp",
            "version": __version__,
            "sha": None,
            "docker_label": None,
        }
    )


@handler
async def ping(call: Call) -> Reply:
    state = call.services.state()
    if state.state != "ready":
        raise NoModel(f"no model is ready ({state.state})", retry_after_s=1.0)
    return BytesReply(b"", "")
