"""Responses, broken in its events, its resource and its store."""

from __future__ import annotations

from typing import Any

from imp_server.api.conversations_kept import KeptConversations
from imp_server.api.conversations_store import ConversationsStore
from imp_server.api.responses_kept import KeptResponses
from imp_server.api.resumable.sessions import OwnBackground
from imp_server.dialects.base import SseFrame
from imp_server.dialects.handler import Call
from imp_server.dialects.openai_responses import events as openai_responses_events
from imp_server.dialects.openai_responses import handlers as openai_responses
from imp_server.dialects.openai_responses import resource as openai_responses_resource
from imp_server.dialects.openai_responses.events import ResponseEvents
from imp_server.dialects.openai_responses.items import CallItem, MessageItem

from tests.conformance.breaking import (
    Json,
    after,
    before,
    drop,
    events,
    in_events,
    instead,
    later,
    swap,
    without,
)


def _at_the_end(edit: Any) -> Any:
    def change(told: list[Json]) -> None:
        for event in told:
            if event["type"] in ("response.completed", "response.incomplete"):
                edit(event["response"])

    return change


def _reversed_opening(told: list[Json]) -> list[Json]:
    return told[::-1] if told and told[0]["type"] == "response.created" else told


R_BEHIND, TALKS = "openai-responses/background", "openai-responses/conversations"
R, R_STREAM, R_STORE = "openai-responses", "openai-responses/streaming", "openai-responses/store"
NUMBERED = (ResponseEvents, "_numbered")


def _ignored(*_args: Any) -> None:
    return None


async def _nothing(*_args: Any, **_kwargs: Any) -> Any:
    return None


async def _deletes_nothing(kept: KeptResponses, response_id: str) -> bool:
    return await kept.resource(response_id) is not None


async def _no_history(*_args: Any) -> list[Any]:
    return []


RESPONSES_BREAKS = [
    after(
        "responses: numbers start at one",
        R_STREAM,
        *NUMBERED,
        lambda t: [e | {"sequence_number": e["sequence_number"] + 1} for e in t],
    ),
    after(
        "responses: no numbers",
        R_STREAM,
        *NUMBERED,
        lambda t: [{k: v for k, v in e.items() if k != "sequence_number"} for e in t],
    ),
    events("responses: created and in_progress swapped", R_STREAM, *NUMBERED, _reversed_opening),
    events("responses: no in_progress", R_STREAM, *NUMBERED, drop("response.in_progress")),
    events("responses: no output_item.added", R_STREAM, *NUMBERED, drop("response.output_item.added")),
    events("responses: no content_part.added", R_STREAM, *NUMBERED, drop("response.content_part.added")),
    events("responses: no content_part.done", R_STREAM, *NUMBERED, drop("response.content_part.done")),
    events("responses: no output_text.done", R_STREAM, *NUMBERED, drop("response.output_text.done")),
    events("responses: no output_item.done", R_STREAM, *NUMBERED, drop("response.output_item.done")),
    events("responses: no terminal event", R_STREAM, *NUMBERED, drop("response.completed", "response.incomplete")),
    events(
        "responses: item.done before part.done",
        R_STREAM,
        *NUMBERED,
        swap("response.content_part.done", "response.output_item.done"),
    ),
    events(
        "responses: another index at the end of an item",
        R_STREAM,
        *NUMBERED,
        in_events("response.output_item.done", lambda e: e.update(output_index=e["output_index"] + 1)),
    ),
    events(
        "responses: another id at the end of an item",
        R_STREAM,
        *NUMBERED,
        in_events("response.output_item.done", lambda e: e["item"].update(id="msg_other")),
    ),
    events(
        "responses: deltas lack content_index",
        R_STREAM,
        *NUMBERED,
        in_events("response.output_text.delta", lambda e: e.pop("content_index")),
    ),
    events(
        "responses: deltas lack logprobs",
        R_STREAM,
        *NUMBERED,
        in_events("response.output_text.delta", lambda e: e.pop("logprobs")),
    ),
    events(
        "responses: the end lacks output", R_STREAM, *NUMBERED, _at_the_end(lambda response: response.update(output=[]))
    ),
    events(
        "responses: items open with their status done",
        R_STREAM,
        *NUMBERED,
        in_events("response.output_item.added", lambda e: e["item"].update(status="completed")),
    ),
    after(
        "responses: frames have no names",
        R_STREAM,
        openai_responses,
        "named_frames",
        lambda f: [SseFrame(x.data) for x in f],
    ),
    instead(
        "responses: a cut stream is completed",
        R_STREAM,
        openai_responses_events,
        "_terminal",
        lambda status: "completed",
    ),
    instead(
        "responses: a cut reply is completed",
        "openai-responses/reply",
        ResponseEvents,
        "_outcome",
        lambda events, finish: ("completed", None),
    ),
    after(
        "responses: the resource lacks a key",
        "openai-responses/reply",
        openai_responses_events,
        "resource",
        without("incomplete_details"),
    ),
    after(
        "responses: usage lacks its details",
        "openai-responses/reply",
        openai_responses_events,
        "usage",
        without("output_tokens_details"),
    ),
    after(
        "responses: text parts lack annotations", "openai-responses/reply", MessageItem, "_part", without("annotations")
    ),
    after(
        "responses: ids of another dialect",
        "openai-responses/reply",
        Call,
        "reply_context",
        lambda context: setattr(context, "id", context.id.replace("resp_", "chatcmpl-")),
    ),
    after("responses: call items lack call_id", "openai-responses/tools", CallItem, "snapshot", without("call_id")),
    instead(
        "responses: strict is not echoed",
        "openai-responses/tools",
        openai_responses_resource,
        "echo",
        lambda tools: [{"type": t["type"]} for t in tools],
    ),
    instead("responses: nothing is stored", R_STORE, KeptResponses, "put", _nothing),
    later(
        "responses: another id is retrieved",
        R_STORE,
        KeptResponses,
        "find",
        lambda found: found._replace(resource=found.resource | {"id": "resp_other"}) if found else None,
    ),
    instead("responses: delete deletes nothing", R_STORE, KeptResponses, "delete", _deletes_nothing),
    instead("responses: previous_response_id is ignored", R_STORE, openai_responses, "history_of", _no_history),
    after(
        "background: cancelled as completed", R_BEHIND, ResponseEvents, "cancel", lambda r: r | {"status": "completed"}
    ),
    before(
        "background: all events again", R_BEHIND, OwnBackground, "events", lambda own, name, _after: (own, name, -1)
    ),
    instead("background: without store", R_BEHIND, openai_responses, "check_background", _ignored),
    after(
        "conversations: pages backwards", TALKS, ConversationsStore, "page", lambda p: p._replace(items=p.items[::-1])
    ),
    instead("conversations: turns aren't added", TALKS, KeptConversations, "append_turn", _nothing),
    instead("conversations: nothing is read of them", TALKS, KeptConversations, "history", _no_history),
]
