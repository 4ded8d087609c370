"""OpenAI Responses (and Open Responses): request -> ChatRequest, OutputEvents -> resource or event stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from imp_server.core import (
    ChatRequest,
    ImpError,
    InvalidRequest,
    Message,
    OutputEvent,
    OutputIntent,
    ReasoningIntent,
    ResponseFormat,
    TextPart,
    UnsupportedParameter,
    check_media,
)
from imp_server.dialects.base import ReplyContext, SseFrame, named_frames
from imp_server.dialects.handler import Call, Generate, JsonReply, ModelCard, RelayReply, Reply, handler
from imp_server.dialects.intents import Body, options_of, present
from imp_server.dialects.openai.sampling import budget_tokens_of, cache_of, sampling_of, whole
from imp_server.dialects.openai_conversations.kept import ConversationNotFound
from imp_server.dialects.openai_responses.events import ResponseEvents, shows_logprobs
from imp_server.dialects.openai_responses.input import InputItems, Item, items_of
from imp_server.dialects.openai_responses.keeping import Keeping
from imp_server.dialects.openai_responses.kept import Finds, KeptResponse, ResponseNotFound, history_of, resolved
from imp_server.dialects.openai_responses.resource import conversation_of
from imp_server.dialects.openai_responses.stored import page
from imp_server.dialects.openai_responses.tools import tool_choice, tool_table
from imp_server.dialects.openai_responses.truncation import fitting
from imp_server.dialects.openai_responses.turns import Beside
from imp_server.dialects.response_formats import response_format_of

_OTHER_NAME = {"regex": "pattern", "grammar": "gbnf"}


def parse(body: Body, history: Sequence[Item] = ()) -> ChatRequest:
    """`history`: the items of the conversation before, oldest first.

    Instructions, tools and sampling are never inherited from it (OpenAI's rule).
    """
    table = tool_table(body)
    conversation = InputItems(table, must_answer=bool(history))
    if instructions := present(body, "instructions"):
        conversation.messages.append(Message("system", (TextPart(instructions),)))
    before = "previous_response_id" if conversation_of(body) is None else "conversation"
    for i, item in enumerate(history):
        conversation.add(item, f"{before}[{i}]")
    for i, item in enumerate(items_of(body.get("input"))):
        conversation.add(item, f"input[{i}]")
    messages = conversation.done()
    if not any(message.role != "system" for message in messages):
        raise InvalidRequest(
            "input holds no message; send a string or at least one message item", param="input", code="invalid_history"
        )
    return ChatRequest(
        messages=messages,
        model=body["model"],
        tools=table.tools,
        tool_choice=tool_choice(body, table),
        reasoning=_reasoning(body),
        output=OutputIntent(
            response_format_of(body, _format(present(body, "text", {}).get("format"))),
            whole(body.get("max_output_tokens")),
            length_steering=present(body, "length_steering", True),
        ),
        sampling=sampling_of(body),
        cache=cache_of(body),
        options=options_of(body, _logprobs(body)),
        template_kwargs=present(body, "chat_template_kwargs", {}),
    )


def _format(wanted: Mapping[str, Any] | None) -> ResponseFormat:
    if not wanted or wanted["type"] == "text":
        return ResponseFormat()
    kind, param = wanted["type"], "text.format"
    if kind == "json_schema":
        return ResponseFormat(kind, schema=wanted["schema"], name=wanted["name"], param=param)
    if kind in {"regex", "grammar"}:
        return ResponseFormat(kind, text=present(wanted, kind) or wanted[_OTHER_NAME[kind]], param=param)
    return ResponseFormat("json_object", param=param)


def _reasoning(body: Body) -> ReasoningIntent:
    effort = present(body, "reasoning", {}).get("effort")
    asked = body.get("enable_thinking", present(body, "chat_template_kwargs", {}).get("enable_thinking"))
    fraction = present(body, "think_budget")
    enabled = asked if isinstance(asked, bool) else (True if effort else None)
    return ReasoningIntent(
        enabled=False if effort == "none" or fraction == 0 else enabled,
        effort=effort,
        budget_tokens=budget_tokens_of(body),
        budget_fraction=None if fraction is None else float(fraction),
        budget_message=body.get("reasoning_budget_message"),
    )


def _logprobs(body: Body) -> int | None:
    top = whole(body.get("top_logprobs"))
    asked = shows_logprobs(body)
    counted = 0 if body.get("stream") and body.get("timings_per_token") else None
    return (top or 0) if asked else counted


# --- handlers -----------------------------------------------------------------------------------


def _continues_unstored(call: Call) -> bool:
    """The store can't keep a response whose conversation it doesn't have."""
    previous = present(call.body, "previous_response_id", "")
    return call.turn is not None and call.turn.memory.conversation(previous) is not None


def check_store(call: Call, *, is_asked: bool = False) -> None:
    """Raises UnsupportedParameter for a response that is to be kept and can't be."""
    if not (is_asked or call.body.get("store")):
        return
    if _continues_unstored(call):
        message = "\"store\" can't be true: the response that this one continues isn't stored; send false"
        raise UnsupportedParameter(message, param="store")
    if not call.services.responses.is_on:
        raise UnsupportedParameter(
            '"store" can\'t be true: this server keeps no responses (--responses-store); send false, and the whole '
            "conversation as input",
            param="store",
        )


def check_background(call: Call) -> None:
    """Raises InvalidRequest, and as check_store: a response without a client is found by its id alone."""
    if not call.body.get("background"):
        return
    if not present(call.body, "store", True):
        message = '"background" needs "store": true; a response that isn\'t stored could never be asked for'
        raise InvalidRequest(message, param="background", code="unsupported_value")
    if call.headers.get("x-conversation-id") and call.body.get("stream"):
        message = "a background response has its own way back, GET /v1/responses/{id}?stream=true; leave the header out"
        raise InvalidRequest(message, param="X-Conversation-Id", code="unsupported_value")
    check_store(call, is_asked=True)


@handler
async def create_response(call: Call) -> Reply:
    kept, body = call.services.responses, call.body
    check_store(call)
    check_background(call)
    finds = kept if call.turn is None else Beside(call.turn.memory, kept)
    items, history = await resolved(finds, items_of(body["input"])), await _history(call, finds)
    request = await call.services.in_pool(parse, body | {"input": items}, history)
    check_media(request)
    if call.body.get("truncation") == "auto":
        request = await _truncated(call, request, await call.services.ready_card(request.model))
    context = call.reply_context("resp_imp")
    stored = kept.is_on and present(body, "store", True) and not _continues_unstored(call)
    keeping = Keeping(call, context, items, history, is_stored=stored)
    if call.turn is not None and not call.turn.generates:
        context.extra["warms"] = True
        output = msgspec.structs.replace(request.output, max_tokens=0)
        request = msgspec.structs.replace(request, output=output)

    def fold(context: ReplyContext) -> ResponseFold:
        folded = ResponseFold(context)
        if stored:
            kept.begin(context.id, folded.events)
        return folded

    return Generate(
        (request,),
        context,
        present(body, "stream", False),
        fold,
        ResponseStream,
        keeping.end if keeping.is_needed else None,
        background=keeping.queue if keeping.is_background else None,
    )


async def _history(call: Call, finds: Finds) -> list[dict[str, Any]]:
    """The items before the request's own. Raises NotFound, and InvalidRequest for two answers to what they are."""
    name = conversation_of(call.body)
    if name is None:
        return await history_of(finds, call.body)
    if present(call.body, "previous_response_id"):
        message = '"conversation" and "previous_response_id" both say what came before; send one of them'
        raise InvalidRequest(message, param="conversation", code="unsupported_value")
    items = await call.services.conversations.history(name)
    if items is None:
        raise ConversationNotFound(name, "conversation")
    return items


async def _truncated(call: Call, request: ChatRequest, card: ModelCard) -> ChatRequest:
    """Without the turns that `truncation` lets go."""
    length = card.context_length
    return await fitting(request, call.services.count_tokens, length) if length else request


@handler
async def count_input_tokens(call: Call) -> Reply:
    kept = call.services.responses
    items = await resolved(kept, items_of(call.body["input"]))
    request = await call.services.in_pool(parse, call.body | {"input": items}, await _history(call, kept))
    if call.body.get("truncation") == "auto":  # a model that isn't in memory isn't loaded to count
        request = await _truncated(call, request, call.services.card(request.model))
    n_tokens = await call.services.count_tokens(request)
    return JsonReply({"object": "response.input_tokens", "input_tokens": n_tokens})


@handler
async def get_response(call: Call) -> Reply:
    found = await _found(call)
    after = call.query.get("starting_after")
    if not call.query.get("stream"):
        if after is not None:
            raise InvalidRequest("starting_after is of stream=true", param="starting_after", code="unsupported_value")
        return JsonReply(found.resource)
    if not found.is_streamed:
        message = "it has no events to read again: only a response made with background and stream has them"
        raise InvalidRequest(message, param="stream", code="not_streamed")
    return RelayReply(call.services.background.events(call.path["response_id"], -1 if after is None else after))


async def _found(call: Call) -> KeptResponse:
    response_id = call.path["response_id"]
    if (found := await call.services.responses.find(response_id)) is None:
        raise ResponseNotFound(response_id)
    return found


@handler
async def delete_response(call: Call) -> Reply:
    response_id = call.path["response_id"]
    if not await call.services.responses.delete(response_id):
        raise ResponseNotFound(response_id)
    call.services.background.stop(response_id)
    return JsonReply({"id": response_id, "object": "response.deleted", "deleted": True})


@handler
async def cancel_response(call: Call) -> Reply:
    """Idempotent: a response that has ended is answered as it is."""
    found, live = await _found(call), call.services.responses.live(call.path["response_id"])
    return JsonReply(
        live.cancel() if live and found.resource["status"] in ("queued", "in_progress") else found.resource
    )


@handler
async def list_input_items(call: Call) -> Reply:
    response_id = call.path["response_id"]
    items = await call.services.responses.conversation(response_id, with_output=False)
    if items is None:
        raise ResponseNotFound(response_id)
    return JsonReply(page(items, dict(call.query)))


# --- replies ------------------------------------------------------------------------------------


class ResponseFold:
    def __init__(self, ctx: ReplyContext) -> None:
        self.events = ResponseEvents(ctx)

    def feed(self, event: OutputEvent) -> None:
        self.events.feed(event)

    def body(self) -> dict[str, Any]:
        return self.events.response()


class ResponseStream:
    def __init__(self, ctx: ReplyContext) -> None:
        self.events = ResponseEvents(ctx)

    def open(self) -> list[SseFrame]:
        return named_frames(self.events.open())

    def feed(self, event: OutputEvent) -> list[SseFrame]:
        return named_frames(self.events.feed(event))

    def close(self) -> list[SseFrame]:
        return [*named_frames(self.events.close()), SseFrame(b"[DONE]")]

    def as_failed(self, error: ImpError) -> dict[str, Any]:
        """What is kept of a reply that ends so."""
        return self.events.as_failed(error)

    def fail(self, error: ImpError) -> list[SseFrame]:
        return [*named_frames(self.events.fail(error)), SseFrame(b"[DONE]")]
