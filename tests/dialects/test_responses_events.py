"""The event stream of a response against the official SDK, and against its own fold."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from imp_server.core import (
    CallArgs,
    CallEnd,
    CallStart,
    EngineCrashed,
    Finish,
    OutputEvent,
    Overloaded,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from imp_server.dialects.openai_responses.handlers import ResponseFold, ResponseStream
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.dialects.contract_check import check_frames, check_reply
from tests.dialects.event_lists import event_lists
from tests.dialects.sdk_streams import context, frames_of, openai_client

BODY: dict[str, Any] = {
    "model": "toy",
    "input": "hi",
    "tools": [
        {"type": "function", "name": "weather", "parameters": {"type": "object"}},
        {"type": "namespace", "name": "mcp", "description": "d", "tools": [{"type": "function", "name": "search"}]},
        {"type": "web_search"},
    ],
}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def payloads(events: list[OutputEvent], **body: Any) -> list[dict[str, Any]]:
    frames = frames_of(ResponseStream(context("resp", BODY | body)), events)
    assert frames[-1].data == b"[DONE]" and frames[-1].event is None
    return [json.loads(frame.data) for frame in frames[:-1]]


def folded(events: list[OutputEvent], **body: Any) -> dict[str, Any]:
    fold = ResponseFold(context("resp", BODY | body))
    for event in events:
        fold.feed(event)
    return fold.body()


def timeless(resource: dict[str, Any]) -> dict[str, Any]:
    return resource | {"completed_at": None}


@settings(max_examples=60, deadline=None)
@given(event_lists(logprobs=True))
def test_stream_is_what_the_sdk_accepts_and_ends_in_the_fold(events: list[OutputEvent]) -> None:
    sent = payloads(events)
    for payload in sent:
        EVENT.validate_json(json.dumps(payload), strict=True)
    assert [payload["sequence_number"] for payload in sent] == list(range(len(sent)))
    assert timeless(sent[-1]["response"]) == timeless(folded(events))

    frames = frames_of(ResponseStream(context("resp", BODY)), events)
    check_frames("openai_responses.create_response", frames)
    with openai_client(frames).responses.stream(model="toy", input="hi") as stream:
        seen = list(stream)
        if sent[-1]["type"] == "response.completed":
            stream.get_final_response()
    assert [event.type for event in seen] == [payload["type"] for payload in sent]


@settings(max_examples=60, deadline=None)
@given(event_lists(logprobs=True))
def test_items_open_grow_and_close_in_order(events: list[OutputEvent]) -> None:
    built: dict[int, dict[str, Any]] = {}
    open_index: int | None = None
    for payload in payloads(events):
        kind, index = payload["type"], payload.get("output_index")
        if kind == "response.output_item.added":
            assert open_index is None and index == len(built)
            open_index, built[index] = index, payload["item"]
        elif index is not None:
            assert index == open_index
            assert payload.get("item_id", built[index]["id"]) == built[index]["id"]
        if kind.endswith(".delta"):
            assert index is not None
            built[index].setdefault("grown", []).append(payload["delta"])
        elif kind.endswith(("text.done", "arguments.done")):
            assert index is not None
            assert "".join(built[index].get("grown", [])) == payload.get("text", payload.get("arguments"))
        elif kind == "response.output_item.done":
            assert index is not None
            assert payload["item"]["id"] == built[index]["id"]
            built[index], open_index = payload["item"], None
    assert list(built.values()) == folded(events)["output"]


@settings(max_examples=30, deadline=None)
@given(event_lists())
def test_fold_is_a_strict_sdk_response(events: list[OutputEvent]) -> None:
    Response.model_validate_json(json.dumps(folded(events)), strict=True)
    check_reply("openai_responses.create_response", folded(events))


DONE = Finish(0, "stop", Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=1, reasoning_tokens=1))


def test_text_events_in_the_published_order() -> None:
    kinds = [payload["type"] for payload in payloads([TextDelta(0, "Hel"), TextDelta(0, "lo"), DONE])]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_event_names_equal_the_types() -> None:
    frames = frames_of(ResponseStream(context("resp", BODY)), [ReasoningDelta(0, "hm"), TextDelta(0, "a"), DONE])
    assert all(frame.event == json.loads(frame.data)["type"] for frame in frames[:-1])


def test_usage_has_all_details() -> None:
    assert folded([TextDelta(0, "x"), DONE])["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 7,
    }


def test_length_makes_the_response_and_its_last_item_incomplete() -> None:
    events: list[OutputEvent] = [ReasoningDelta(0, "so"), TextDelta(0, "cut"), Finish(0, "length", Usage(9, 3))]
    sent = payloads(events)
    final = sent[-1]["response"]
    assert sent[-1]["type"] == "response.incomplete" and final["status"] == "incomplete"
    assert final["incomplete_details"] == {"reason": "max_output_tokens"} and final["completed_at"] is None
    assert [item["status"] for item in final["output"]] == ["completed", "incomplete"]


def test_an_empty_answer_is_an_empty_message() -> None:
    (item,) = folded([DONE])["output"]
    assert item["type"] == "message" and item["content"][0]["text"] == ""


def test_thinking_cut_by_length_is_no_message() -> None:
    (item,) = folded([ReasoningDelta(0, "hm"), Finish(0, "length", Usage(9, 3))])["output"]
    assert item["type"] == "reasoning" and item["status"] == "incomplete"


def test_reasoning_is_a_summary_for_those_who_asked_for_one() -> None:
    events: list[OutputEvent] = [ReasoningDelta(0, "because"), TextDelta(0, "x"), DONE]
    plain, asked = folded(events)["output"][0], folded(events, reasoning={"summary": "auto"})["output"][0]
    assert plain["content"] == [{"type": "reasoning_text", "text": "because"}] and plain["summary"] == []
    assert asked["summary"] == [{"type": "summary_text", "text": "because"}] and asked["content"] == []
    kinds = {payload["type"] for payload in payloads(events, reasoning={"summary": "auto"})}
    assert "response.reasoning_summary_text.delta" in kinds and "response.reasoning_text.delta" not in kinds
    frames = frames_of(ResponseStream(context("resp", BODY | {"reasoning": {"summary": "auto"}})), events)
    check_frames("openai_responses.create_response", frames)
    for frame in frames[:-1]:
        EVENT.validate_json(frame.data, strict=True)


def test_encrypted_content_only_when_included() -> None:
    events: list[OutputEvent] = [ReasoningDelta(0, "why"), TextDelta(0, "x"), DONE]
    assert folded(events)["output"][0]["encrypted_content"] is None
    sealed = folded(events, include=["reasoning.encrypted_content"])["output"][0]["encrypted_content"]
    assert sealed and "why" not in sealed


def test_call_ids_are_equal_in_every_event() -> None:
    events: list[OutputEvent] = [
        CallStart(0, 0, "call_a", "weather"),
        CallArgs(0, 0, '{"x":1}'),
        CallEnd(0, 0),
        Finish(0, "tool_calls", Usage(9, 3)),
    ]
    sent = payloads(events)
    items = [p["item"] for p in sent if "item" in p] + sent[-1]["response"]["output"]
    assert {item["call_id"] for item in items} == {"call_a"} and len({item["id"] for item in items}) == 1


def test_the_index_of_an_item_never_changes() -> None:
    events: list[OutputEvent] = [ReasoningDelta(0, "a"), ReasoningDelta(0, "b"), TextDelta(0, "c"), DONE]
    of_item: dict[str, set[int]] = {}
    for payload in payloads(events):
        if "output_index" in payload:
            name = payload.get("item_id") or payload["item"]["id"]
            of_item.setdefault(name, set()).add(payload["output_index"])
    assert [len(indexes) for indexes in of_item.values()] == [1, 1]
    assert not any("reasoning_part" in payload["type"] for payload in payloads(events))


def test_every_event_has_its_type_and_the_end_a_whole_response() -> None:
    sent = payloads([TextDelta(0, "x"), DONE])
    assert all("type" in payload for payload in sent)
    final = sent[-1]["response"]
    assert final["id"] == "resp_imp0123" and final["object"] == "response" and final["model"] == "toy"
    assert final["output"] and sent[0]["response"].keys() == final.keys() - {"timings"}


PLACED: dict[str, tuple[int, int | None]] = {
    "response.reasoning_text.delta": (0, 0),
    "response.reasoning_text.done": (0, 0),
    "response.output_text.delta": (1, 0),
    "response.output_text.done": (1, 0),
    "response.function_call_arguments.delta": (2, None),
    "response.function_call_arguments.done": (2, None),
}
"""Of each event, the output_index and the content_index."""


def test_events_name_their_item_and_part() -> None:
    call: list[OutputEvent] = [CallStart(0, 0, "call_a", "weather"), CallArgs(0, 0, "{}"), CallEnd(0, 0)]
    sent = payloads([ReasoningDelta(0, "hm"), TextDelta(0, "x"), *call, Finish(0, "tool_calls", Usage(9, 3))])
    ids = [payload["item"]["id"] for payload in sent if payload["type"] == "response.output_item.added"]
    seen = set()
    for payload in sent:
        if (kind := payload["type"]) in PLACED:
            index, part = PLACED[kind]
            assert (payload["output_index"], payload.get("content_index")) == (index, part), kind
            assert payload["item_id"] == ids[index], kind
            seen.add(kind)
        elif "content_part" in kind:
            assert payload["content_index"] == 0 and payload["item_id"] == ids[payload["output_index"]], kind
            seen.add(kind)
    assert seen == {*PLACED, "response.content_part.added", "response.content_part.done"}
    parts = [p["part"]["type"] for p in sent if p["type"] == "response.content_part.added"]
    assert parts == ["reasoning_text", "output_text"]
    asked = payloads([ReasoningDelta(0, "hm"), TextDelta(0, "x"), DONE], reasoning={"summary": "auto"})
    told = [p for p in asked if "reasoning_summary" in p["type"]]
    assert len(told) == 4 and all(p["summary_index"] == 0 and "content_index" not in p for p in told)


def test_a_namespaced_call_goes_back_under_its_namespace() -> None:
    (item,) = folded([CallStart(0, 0, "call_a", "search"), CallEnd(0, 0), Finish(0, "tool_calls", Usage(9, 3))])[
        "output"
    ]
    assert (item["name"], item["namespace"]) == ("search", "mcp")


def test_failure_is_both_error_shapes_then_failed() -> None:
    stream = ResponseStream(context("resp", BODY))
    frames = stream.open() + stream.feed(TextDelta(0, "par")) + stream.fail(EngineCrashed("the engine died"))
    error, failed = json.loads(frames[-3].data), json.loads(frames[-2].data)
    assert error["type"] == "error" and error["code"] == error["error"]["code"] == "engine_crashed"
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "the engine died"}
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert frames[-1].data == b"[DONE]" and not any(b"response.completed" in frame.data for frame in frames)
    check_frames("openai_responses.create_response", frames)
    EVENT.validate_json(frames[-3].data, strict=True)
    EVENT.validate_json(frames[-2].data, strict=True)


def test_the_sdk_raises_on_a_failure_mid_stream() -> None:
    stream = ResponseStream(context("resp", BODY))
    frames = stream.open() + stream.feed(TextDelta(0, "par")) + stream.fail(Overloaded("busy"))
    with (
        pytest.raises(openai.APIError, match="busy"),
        openai_client(frames).responses.stream(model="toy", input="hi") as sdk,
    ):
        list(sdk)
