"""What a server may do wrong in Messages."""

from __future__ import annotations

from typing import Any

from tests.conformance.bending import (
    Event,
    Events,
    each,
    first,
    in_events,
    in_json,
    swap,
    without,
)

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


def _start_lacks(*keys: str) -> Any:
    def change(events: Events) -> None:
        for key in keys:
            del events[0].data["message"][key]

    return change


def _blocks_by_two(events: Events) -> None:
    each(events, lambda data: data.update(index=2 * data["index"] + 1) if "index" in data else None)


def _never_closed(events: Events) -> Events:
    return without(events, "content_block_stop")


def _stop_sequence_null(reply: Any) -> None:
    reply["stop_sequence"] = None


def _end_turn_always(reply: Any) -> None:
    reply["stop_reason"] = "end_turn"


def _cached_counted(reply: Any) -> None:
    reply["usage"]["input_tokens"] += reply["usage"]["cache_read_input_tokens"]


def _broken_partial_json(events: Events) -> None:
    for event in events:
        if event.data.get("type") == "content_block_delta" and "partial_json" in event.data["delta"]:
            event.data["delta"]["partial_json"] += "{"


def _delta_first(events: Events) -> None:
    at = first(events, "content_block_start")
    swap(events, at, at + 1)


def _leading_empty_block(reply: Any) -> None:
    reply["content"].insert(0, {"type": "text", "text": ""})


def _null_final_usage(events: Events) -> None:
    events[first(events, "message_delta")].data["usage"] = None


MESSAGES_FAULTS = [
    in_events("messages: message_start lacks type and role", MESSAGES, _start_lacks("type", "role")),
    in_events("messages: message_start lacks stop_reason", MESSAGES, _start_lacks("stop_reason")),
    in_events("messages: gaps in the block indexes", MESSAGES, _blocks_by_two),
    in_events("messages: a block is never stopped", MESSAGES, _never_closed),
    in_events("messages: a delta before its block", MESSAGES, _delta_first),
    in_events("messages: events without names", MESSAGES, lambda events: [Event(None, e.data) for e in events]),
    in_events("messages: no message_stop", MESSAGES, lambda e: without(e, "message_stop")),
    in_events("messages: no message_delta", MESSAGES, lambda e: without(e, "message_delta")),
    in_events("messages: the final usage is null", MESSAGES, _null_final_usage),
    in_events("messages: [DONE] at the end", MESSAGES, lambda events: [*events, Event(None, "[DONE]")]),
    in_events("messages: partial_json doesn't parse", MESSAGES, _broken_partial_json),
    in_json("messages: stop_sequence is always null", MESSAGES, _stop_sequence_null),
    in_json("messages: stop_reason is always end_turn", MESSAGES, _end_turn_always),
    in_json("messages: input_tokens counts cached tokens", MESSAGES, _cached_counted),
    in_json("messages: no cache counters", MESSAGES, lambda r: r["usage"].pop("cache_read_input_tokens") and None),
    in_json("messages: an empty block leads", MESSAGES, _leading_empty_block),
    in_json("messages: ids of another dialect", MESSAGES, lambda r: r.update(id="chatcmpl-1")),
    in_json("messages: count_tokens counts nothing", COUNT, lambda r: r.update(input_tokens=1)),
]
