"""What a server may do wrong in Responses."""

from __future__ import annotations

from typing import Any

from tests.conformance.bending import (
    Event,
    Events,
    Fault,
    each,
    first,
    in_events,
    in_json,
    renumber,
    swap,
    without,
)

RESPONSES = "/v1/responses"


def _numbers_from_two(events: Events) -> None:
    for event in events[2:]:
        event.data["sequence_number"] += 1


def _outputs_from_one(events: Events) -> None:
    each(events, lambda d: d.update(output_index=d["output_index"] + 1) if "output_index" in d else None)


def _item_renamed(events: Events) -> None:
    events[first(events, "response.output_item.done")].data["item"]["id"] = "msg_other"


def _two_ends(events: Events) -> Events:
    twice = [*events, Event(events[-1].name, dict(events[-1].data))]
    renumber(twice)
    return twice


def _swap_opening(events: Events) -> None:
    swap(events, 0, 1)
    renumber(events)


def _swap_part_and_item(events: Events) -> None:
    at = first(events, "response.output_item.added")
    swap(events, at, at + 1)
    renumber(events)


def _end_event(kind: str) -> Any:
    def change(events: Events) -> None:
        events[-1].name = events[-1].data["type"] = kind

    return change


def _lost_delta(events: Events) -> Events:
    at = first(events, "response.output_text.delta")
    left = events[:at] + events[at + 1 :]
    renumber(left)
    return left


def _in_responses(name: str, change: Any) -> Fault:
    """On the events before a possible [DONE]."""

    def on_real(events: Events) -> Events:
        real = [e for e in events if e.data != "[DONE]"]
        return (change(real) or real) + events[len(real) :]

    return in_events(name, RESPONSES, on_real)


RESPONSES_FAULTS = [
    _in_responses("responses: a gap in sequence_number", _numbers_from_two),
    _in_responses("responses: output_index counts from one", _outputs_from_one),
    _in_responses("responses: the item's id changes when done", _item_renamed),
    _in_responses("responses: two terminal events", _two_ends),
    _in_responses("responses: no terminal event", lambda events: events[:-1]),
    _in_responses("responses: in_progress before created", _swap_opening),
    _in_responses("responses: the part before its item", _swap_part_and_item),
    _in_responses("responses: a cut stream says completed", _end_event("response.completed")),
    _in_responses("responses: events without names", lambda events: [Event(None, e.data) for e in events]),
    _in_responses("responses: no content_part.added", lambda e: without(e, "response.content_part.added")),
    _in_responses("responses: no output_item.done", lambda e: without(e, "response.output_item.done")),
    _in_responses("responses: a delta is lost", _lost_delta),
    _in_responses("responses: deltas without logprobs", lambda e: each(e, lambda d: d.pop("logprobs", None))),
    _in_responses("responses: the end is not nested", lambda e: e[-1].data.update(e[-1].data.pop("response"))),
    in_json(
        "responses: annotations are missing",
        RESPONSES,
        lambda r: [p.pop("annotations") for i in r["output"] for p in i["content"]] and None,
    ),
    in_json("responses: incomplete without a reason", RESPONSES, lambda r: r.update(incomplete_details=None)),
    in_json("responses: no token details", RESPONSES, lambda r: r["usage"].pop("input_tokens_details") and None),
    in_json("responses: retrieved under another id", RESPONSES + "/resp_*", lambda r: r.update(id="resp_other")),
]
