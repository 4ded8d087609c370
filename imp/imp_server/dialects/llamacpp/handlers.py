"""llama.cpp's own routes: raw completions, the prompt of a chat, token counts, probes."""

from __future__ import annotations

from array import array
from itertools import groupby
from typing import Any

import msgspec

from imp_server import __version__
from imp_server.core import (
    ImpError,
    InvalidRequest,
    MissingParameter,
    NotSupported,
    OutputEvent,
    Unavailable,
    Vectors,
)
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.handler import BytesReply, Call, Generate, JsonReply, ModelCard, Reply, TextFacts, handler
from imp_server.dialects.llamacpp.fields import Prompt, bias_by_id, prompts_of, with_bias_by_id
from imp_server.dialects.llamacpp.metrics import CONTENT_TYPE, STARTED_UNIX, exposition
from imp_server.dialects.llamacpp.reply import LlamaCompletionFold, LlamaCompletionStream
from imp_server.dialects.llamacpp.request import prompt_requests
from imp_server.dialects.llamacpp.settings import default_settings
from imp_server.dialects.openai.embeddings import NONE, EmbeddingFold, check_embeds, create_embedding, embed
from imp_server.dialects.openai_chat.request import ChatHabits, chat_request
from imp_server.dialects.response_formats import ANSWER_FIELDS

_TEMPLATE_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "enable_thinking",
    "reasoning_effort",
    "think_budget",
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "response_format",
    *ANSWER_FIELDS,
)
"""What the document names, all that a prompt depends on: other fields of a chat aren't even checked here."""


@handler
async def completion(call: Call) -> Reply:
    return await _completion(call)


@handler
async def completions(call: Call) -> Reply:
    return await _completion(call)


@handler
async def embedding(call: Call) -> Reply:
    return await _embedding(call)


@handler
async def embeddings(call: Call) -> Reply:
    """Also what OpenAI's clients call whose base URL lacks /v1: they name a model, and want their own shape.

    It has none for a vector of each token, and llama-server never answers with it here."""
    is_native = "input" not in call.body or not call.model or call.services.config.server.habits == "llama-server"
    if is_native or (await call.services.ready_card(call.model)).pooling == NONE:
        return await _embedding(call)
    return await create_embedding(call)


async def _embedding(call: Call) -> Reply:
    texts = call.body.get("content")
    if texts is None:
        texts = call.body["input"]
    prompts = await call.worked(prompts_of, texts)
    card = await call.services.ready_card(call.model)
    check_embeds(card)
    return embed(call, card.id, prompts, TokenEmbeddingFold if card.pooling == NONE else NativeEmbeddingFold)


class NativeEmbeddingFold(EmbeddingFold):
    """llama.cpp's list: each entry holds a list of one whole pooled vector, in numbers.

    `encoding_format` and `dimensions` are of OpenAI's form.
    """

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context)
        self._base64, self._dimensions = False, None

    def body(self) -> Any:
        return [{"index": index, "embedding": [vector]} for index, vector in enumerate(self.vectors)]


class TokenEmbeddingFold:
    """The same of pooling none: each entry holds the vectors of all tokens, as the model made them.

    Owner of the vectors of one reply.
    """

    def __init__(self, context: ReplyContext) -> None:
        self._vectors: list[list[msgspec.Raw]] = [[] for _ in range(context.n)]

    def feed(self, event: OutputEvent) -> None:
        if isinstance(event, Vectors):
            for vector in event.vectors:
                numbers = array("f")
                numbers.frombytes(vector)
                self._vectors[event.choice].append(msgspec.Raw(msgspec.json.encode(numbers.tolist())))

    def body(self) -> Any:
        return [{"index": index, "embedding": vectors} for index, vectors in enumerate(self._vectors)]


async def _completion(call: Call) -> Reply:
    requests = await call.worked(prompt_requests, call.body, await bias_by_id(call))
    card = call.services.card(call.model)
    server = call.services.config.server
    context = call.reply_context("cmpl-", card.id)
    context.extra |= {"context_length": card.context_length, "most_tokens": server.most_tokens}
    context.extra["prompts"] = [await _prompt_text(call, request.prompt) for request in requests]
    return Generate(requests, context, call.body.get("stream", False), LlamaCompletionFold, LlamaCompletionStream)


async def _prompt_text(call: Call, prompt: Prompt) -> str:
    """Neighbouring ids are decoded together: a character may take several tokens."""
    parts: list[str] = []
    for is_text, group in groupby(prompt, lambda piece: isinstance(piece, str)):
        pieces: list[Any] = list(group)
        try:
            parts += pieces if is_text else [await call.services.detokenize(call.model, pieces)]
        except InvalidRequest as error:
            error.param = "prompt"
            raise
    return "".join(parts)


@handler
async def apply_template(call: Call) -> Reply:
    known = {name: call.body[name] for name in _TEMPLATE_FIELDS if name in call.body}
    request = await call.worked(chat_request, {"model": call.model, **known}, ChatHabits.of(call))
    return JsonReply({"prompt": await call.services.render(request)})


@handler
async def chat_input_tokens(call: Call) -> Reply:
    request = await call.worked(chat_request, await with_bias_by_id(call), ChatHabits.of(call))
    n_tokens = await call.services.count_tokens(request)
    return JsonReply({"object": "response.input_tokens", "input_tokens": n_tokens})


_NOT_ENDED = {
    "already_closed": "it isn't thinking: there is nothing to end",
    "no_closer": "its thinking can't be ended: the model has no tag that closes it",
    "not_allowed": "the request was sent with reasoning_control false",
    "unknown": "no reply with this id is being made",
}


@handler
async def control(call: Call) -> Reply:
    """`reasoning_end` is the one action. The answer tells whether thinking was ended by this call."""
    if call.model:
        call.services.card(call.model)  # a model that isn't here makes no reply
    verdict = await call.services.end_reasoning(call.body["id"])
    if verdict == "ending":
        return JsonReply({"success": True})
    return JsonReply({"success": False, "message": _NOT_ENDED[verdict]})


@handler
async def props(call: Call) -> Reply:
    model = call.query.get("model", "")
    state = call.services.state(model)
    if state.loaded is not None:
        return _router_props(call)
    card, facts = _model(call, model)
    n_ctx = (card.context_length if card else None) or 0
    return JsonReply(
        {
            "default_generation_settings": {"n_ctx": n_ctx, "params": default_settings(facts.sampling_defaults)},
            "n_ctx": n_ctx,
            "total_slots": card.n_rows if card else 0,
            "model_alias": card.id if card else "",
            "model_ftype": card.quantisation if card else "",
            "model_path": card.path if card else "",
            "modalities": {"vision": False, "audio": False, "video": False},
            **_routes(call),
            "chat_template": facts.chat_template,
            "bos_token": "",
            "eos_token": "",
            "chat_template_caps": {},
            **facts.template_facts,
            "build_info": f"b-imp-{__version__}",
            "is_sleeping": state.state in ("sleeping", "suspended"),
        }
    )


def _routes(call: Call) -> dict[str, bool]:
    """Which of the routes that can be switched off are there; tools, and a proxy for pages, never are."""
    config = call.services.config
    return {
        "endpoint_slots": config.server.slots,
        "endpoint_props": config.server.props,
        "endpoint_metrics": config.metrics.enabled,
        "ui": config.server.ui,
        "cors_proxy_enabled": False,
    }


@handler
async def set_props(call: Call) -> Reply:
    """llama-server, too, has nothing yet that could be changed by it."""
    if not call.services.config.server.props:
        raise NotSupported("this server was started without POST /props (server.props)")
    call.services.state(call.model or call.query.get("model", ""))  # one that isn't here has none
    return JsonReply({"success": True})


def _router_props(call: Call) -> Reply:
    """Of a server of several models itself: `?model=` asks for one of them."""
    router = call.services.config.router
    return JsonReply(
        {
            "role": "router",
            "max_instances": router.models_max,
            "models_autoload": router.models_autoload,
            "default_generation_settings": {"n_ctx": 0, "params": default_settings({})},
            "n_ctx": 0,
            "total_slots": 0,
            "model_alias": "",
            "model_ftype": "",
            "model_path": "",
            "modalities": {"vision": False, "audio": False, "video": False},
            **_routes(call),
            "chat_template": "",
            "bos_token": "",
            "eos_token": "",
            "chat_template_caps": {},
            "build_info": f"b-imp-{__version__}",
            "is_sleeping": False,
        }
    )


def _model(call: Call, name: str = "") -> tuple[ModelCard | None, TextFacts]:
    """What is known of the model; None and nothing while there is none or it loads."""
    if name:
        return call.services.card(name), _facts(call, name)
    try:
        return call.services.card(""), call.services.text_facts("")
    except MissingParameter:
        raise
    except ImpError:
        return next(iter(call.services.cards()), None), TextFacts("", {})


def _facts(call: Call, name: str) -> TextFacts:
    """Nothing while it isn't loaded."""
    try:
        return call.services.text_facts(name)
    except ImpError:
        return TextFacts("", {})


@handler
async def slots(call: Call) -> Reply:
    if not call.services.config.server.slots:
        raise NotSupported("this server was started without /slots (server.slots)")
    model = call.query.get("model", "")
    card, _ = _model(call, model)
    counters, rows = await call.services.stats(model)
    n_rows = card.n_rows if card else 0
    if call.query.get("fail_on_no_slot") and len(rows) >= n_rows:
        raise Unavailable("every row is busy; try again later", retry_after_s=1.0)
    common = {
        "n_ctx": (card.context_length if card else None) or 0,
        "speculative": any(
            n.startswith("spec_") and n.endswith("_verify_steps_total") for n in counters if n != _STEPS
        ),
    }
    busy = {row["slot"]: row for row in rows}
    return JsonReply([{"id": i, **common, **_slot(busy.get(i))} for i in range(n_rows)])


_STEPS = "spec_verify_steps_total"
"""Of all drafters together; beside it each has a counter of its own."""


def _slot(row: dict[str, Any] | None) -> dict[str, Any]:
    """`row` None: nothing runs in it."""
    if row is None:
        return {"is_processing": False}
    if "key" not in row:  # another owner's
        return {"is_processing": True}
    n_cached = row.get("n_cached", 0)
    return {
        "is_processing": True,
        "id_task": row["key"],
        "n_prompt_tokens": row["n_prompt"],
        "n_prompt_tokens_processed": max(0, min(row.get("n_computed", 0), row["n_prompt"]) - n_cached),
        "n_prompt_tokens_cache": n_cached,
        "next_token": [{"has_next_token": True, "n_remain": row.get("n_left", -1), "n_decoded": row["n_output"]}],
    }


@handler
async def metrics(call: Call) -> Reply:
    if not call.services.config.metrics.enabled:
        raise NotSupported("this server was started without /metrics (metrics.enabled)")
    model = call.query.get("model", "")
    counters, _ = await call.services.stats(model)
    kept, state = await call.services.responses.totals(), call.services.state(model)
    engines = {state.model: counters} if state.model else {}
    for name, is_loaded in (state.loaded or {}).items():
        if is_loaded:
            engines[name], _ = await call.services.stats(name)
    text = exposition(counters, state, kept, engines, call.services.measured())
    return BytesReply(text, CONTENT_TYPE, headers={"process-start-time-unix": STARTED_UNIX})
