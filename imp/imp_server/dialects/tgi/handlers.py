"""TGI's probes and its raw generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imp_server import __version__
from imp_server.core import (
    GenerationOptions,
    InvalidRequest,
    NoModel,
    OutputIntent,
    PromptRequest,
    ResponseFormat,
    SamplingIntent,
)
from imp_server.dialects.handler import BytesReply, Call, Generate, JsonReply, Reply, handler
from imp_server.dialects.intents import present
from imp_server.dialects.openai.sampling import sampling_of
from imp_server.dialects.tgi.reply import (
    GenerateFold,
    GenerateListFold,
    GenerateStream,
    new_tokens_of,
    wants_details,
)


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
            "max_input_tokens": min(max(0, n_total - 1), server.max_input_tokens or n_total),
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


@handler
async def generate(call: Call) -> Reply:
    return _generate(call, streamed=call.body.get("stream", False))


@handler
async def generate_stream(call: Call) -> Reply:
    return _generate(call, streamed=True)


@handler
async def compat_generate(call: Call) -> Reply:
    return _generate(call, streamed=call.body.get("stream", False), fold=GenerateListFold)


def _generate(call: Call, *, streamed: bool, fold: type[GenerateFold] = GenerateFold) -> Reply:
    context = call.reply_context("cmpl-", "")
    request = prompt_request(call.body, told_by_token=streamed)
    if streamed and request.options.prompt_logprobs is not None:
        message = '"decoder_input_details" can\'t be streamed; leave out "stream"'
        raise InvalidRequest(message, param="parameters.decoder_input_details", code="unsupported_value")
    return Generate((request,), context, streamed, fold, GenerateStream)


def prompt_request(body: Mapping[str, Any], *, told_by_token: bool) -> PromptRequest:
    parameters = body.get("parameters") or {}
    told = told_by_token or wants_details(parameters) or parameters.get("top_n_tokens")
    return PromptRequest(
        prompt=(body["inputs"],),
        output=OutputIntent(
            _format(parameters.get("grammar")),
            new_tokens_of(parameters),
            tuple(parameters.get("stop") or ()),
            length_steering=present(parameters, "length_steering", True),
        ),
        sampling=_sampling(parameters),
        options=GenerationOptions(
            logprobs=int(parameters.get("top_n_tokens") or 0) if told else None,
            prompt_logprobs=0 if parameters.get("decoder_input_details") else None,
        ),
    )


def _sampling(parameters: Mapping[str, Any]) -> SamplingIntent:
    """Greedy, unless do_sample or any parameter of sampling asks for more."""
    asks = parameters.get("do_sample") or any(n in parameters for n in ("temperature", "top_k", "top_p", "typical_p"))
    return sampling_of(parameters if asks else {**parameters, "temperature": 0.0})


def _format(grammar: Mapping[str, Any] | None) -> ResponseFormat:
    if not grammar:
        return ResponseFormat()
    if grammar["type"] == "regex":
        return ResponseFormat("regex", text=grammar["value"], param="parameters.grammar.value")
    return ResponseFormat("json_schema", schema=grammar["value"], param="parameters.grammar.value")
