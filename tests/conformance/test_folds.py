"""Folds raise where an official SDK would fail, and give what a client would hold otherwise."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from imp_server.conformance.exchange import SseEvent, read_reply
from imp_server.conformance.folds import fold_chat, fold_completions, fold_messages, fold_responses, payloads


def frames(*events: Any, done: bool = False, named: bool = False) -> list[SseEvent]:
    text = "".join((f"event: {e['type']}\n" if named else "") + f"data: {json.dumps(e)}\n\n" for e in events)
    data = (text + "data: [DONE]\n\n" * done).encode()
    return read_reply(200, {"content-type": "text/event-stream; charset=utf-8"}, io.BytesIO(data)).frames


def chunk(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def test_chat() -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": "{}"}}
    events = [
        chunk(role="assistant", content="a"),
        chunk(content="b"),
        chunk(tool_calls=[call]),
        chunk(tool_calls=[more]),
    ]
    held = fold_chat(frames(*events, chunk(finish="stop"), done=True)).choices[0]
    assert (held.content, held.n_roles, held.n_finishes, held.finish_reason) == ("ab", 1, 1, "stop")
    assert held.tool_calls[0].arguments == "{}"
    for wrong in (
        [chunk(1, content="x")],
        [chunk(tool_calls=[more])],
        [chunk(tool_calls=[call]), chunk(tool_calls=[call])],
    ):
        with pytest.raises(ValueError):
            fold_chat(frames(*wrong, done=True))


def test_done_is_last_and_all_else_is_json() -> None:
    with pytest.raises(ValueError, match="DONE"):
        payloads(frames(chunk()))
    with pytest.raises(ValueError, match="no events"):
        payloads([])
    with pytest.raises(ValueError, match="not JSON"):
        payloads([SseEvent(None, "{oops"), *frames(done=True)])


def test_completions_need_dense_choices() -> None:
    with pytest.raises(ValueError, match="dense"):
        fold_completions(frames({"choices": [{"index": 1, "text": "x", "finish_reason": None}]}, done=True))


def responses_events() -> list[dict[str, Any]]:
    item = {"id": "msg_1", "type": "message", "content": []}
    full = item | {"content": [{"type": "output_text", "text": "ab"}]}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "resp_1", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", "output_index": 0, "item_id": "msg_1", "content_index": 0},
        {
            "type": "response.output_text.delta",
            "output_index": 0,
            "item_id": "msg_1",
            "content_index": 0,
            "delta": "ab",
        },
        {"type": "response.output_item.done", "output_index": 0, "item": full},
        {"type": "response.completed", "response": {"id": "resp_1", "output": [full]}},
    ]
    for number, event in enumerate(events):
        event["sequence_number"] = number
    return events


def test_responses() -> None:
    assert fold_responses(frames(*responses_events(), named=True)).deltas == ["ab"]


@pytest.mark.parametrize(
    "at, values",
    [
        (0, {"type": "response.in_progress"}),
        (1, {"output_index": 1}),
        (2, {"content_index": 1}),
        (3, {"item_id": "msg_2"}),
        (3, {"sequence_number": 9}),
        (4, {"item": {"id": "msg_2"}}),
        (5, {"type": "response.in_progress"}),
        (5, {"response": {"id": "resp_2", "output": []}}),
    ],
)
def test_responses_that_break_off_or_contradict_themselves(at: int, values: dict[str, Any]) -> None:
    events = responses_events()
    events[at] |= values
    with pytest.raises((ValueError, IndexError)):
        fold_responses(frames(*events, named=True))


def messages_events() -> list[dict[str, Any]]:
    return [
        {"type": "message_start", "message": {"id": "msg_1"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "input": {}}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


def test_messages() -> None:
    held = fold_messages(frames(*messages_events(), named=True))
    assert held.blocks[0].input.value == {"a": 1} and held.stop_reason == "tool_use"


@pytest.mark.parametrize("gone", [0, 1, 4, 5, 6])
def test_messages_without_a_necessary_event(gone: int) -> None:
    events = messages_events()
    del events[gone]
    with pytest.raises(ValueError):
        fold_messages(frames(*events, named=True))


def test_messages_with_nameless_events() -> None:
    with pytest.raises(ValueError, match="name"):
        fold_messages(frames(*messages_events()))
