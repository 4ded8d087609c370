"""The event stream of a message against the official SDK, and against its own fold."""

from __future__ import annotations

import json
import re
from typing import Any

import anthropic
import msgspec
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from imp_server.core import (
    Accepted,
    CallArgs,
    CallEnd,
    CallStart,
    EngineCrashed,
    Finish,
    OutputEvent,
    Progress,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from imp_server.dialects.anthropic.call_ids import call_id_of, tool_use_id
from imp_server.dialects.anthropic.messages import MessageFold, MessageStream
from imp_server.dialects.anthropic.thinking import signature
from imp_server.dialects.base import AcceptedPrompts
from pydantic import TypeAdapter

from tests.dialects.contract_check import check_frames, check_reply
from tests.dialects.event_lists import event_lists
from tests.dialects.sdk_streams import anthropic_client, context, frames_of

BODY: dict[str, Any] = {"model": "toy", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
DONE = Finish(0, "stop", Usage(prompt_tokens=10, completion_tokens=2, cached_tokens=4, reasoning_tokens=1))
CALL: list[OutputEvent] = [CallStart(0, 0, "call_a", "weather"), CallArgs(0, 0, '{"x":1}'), CallEnd(0, 0)]


def payloads(events: list[OutputEvent], **body: Any) -> list[dict[str, Any]]:
    frames = frames_of(MessageStream(context("msg", BODY | body)), events)
    assert all(frame.event == json.loads(frame.data)["type"] for frame in frames)
    return [json.loads(frame.data) for frame in frames]


def folded(events: list[OutputEvent], **body: Any) -> dict[str, Any]:
    fold = MessageFold(context("msg", BODY | body))
    for event in events:
        fold.feed(event)
    return fold.body()


@settings(max_examples=80, deadline=None)
@given(event_lists())
def test_the_sdk_accumulates_the_fold(events: list[OutputEvent]) -> None:
    for payload in payloads(events):
        if payload["type"] != "ping":
            EVENT.validate_json(json.dumps(payload), strict=True)
    frames = frames_of(MessageStream(context("msg", BODY)), events)
    check_frames("anthropic_messages.create_message", frames)
    with anthropic_client(frames).messages.stream(model="toy", max_tokens=64, messages=[]) as stream:
        accumulated: dict[str, Any] = stream.get_final_message().to_dict()
    whole = folded(events)
    usage = accumulated["usage"]
    assert isinstance(usage, dict)
    # message_delta has no breakdown of cache writes, so the SDK keeps that of message_start
    usage["cache_creation"] = whole["usage"]["cache_creation"]
    # and it takes over only what the published event has
    assert whole.pop("timings") == payloads(events)[-2]["timings"]
    assert whole["usage"].pop("evicted_tokens", 0) == payloads(events)[-2]["usage"].get("evicted_tokens", 0)
    if whole.get("imp_finish_detail") == "call_cut":
        accumulated["content"].pop()  # the SDK guesses the input of the call that is cut
        whole.pop("imp_finish_detail")
    assert accumulated == whole


@settings(max_examples=80, deadline=None)
@given(event_lists())
def test_blocks_are_dense_and_one_at_a_time(events: list[OutputEvent]) -> None:
    n_blocks, is_open = 0, False
    kinds = [payload["type"] for payload in payloads(events) if payload["type"] != "ping"]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    for payload in payloads(events):
        if payload["type"] == "content_block_start":
            assert not is_open and payload["index"] == n_blocks
            is_open = True
        elif payload["type"] in {"content_block_delta", "content_block_stop"}:
            assert is_open and payload["index"] == n_blocks
            if payload["type"] == "content_block_stop":
                is_open, n_blocks = False, n_blocks + 1
    is_cut = folded(events).get("imp_finish_detail") == "call_cut"
    assert not is_open and n_blocks == len(folded(events)["content"]) + is_cut


@settings(max_examples=30, deadline=None)
@given(event_lists())
def test_fold_is_a_strict_sdk_message(events: list[OutputEvent]) -> None:
    Message.model_validate_json(json.dumps(folded(events)), strict=True)
    check_reply("anthropic_messages.create_message", folded(events))


@pytest.mark.parametrize("arguments", ['{"cmd": "rm -rf build/old", ', '{"cmd": "rm -rf build', "{", ""])
@pytest.mark.parametrize(("reason", "stop"), [("length", "max_tokens"), ("stop", "end_turn")])
def test_a_cut_call_is_streamed_as_written_and_not_in_the_message(arguments: str, reason: Any, stop: str) -> None:
    cut: list[OutputEvent] = [CallStart(0, 1, "call_b", "run"), CallArgs(0, 1, arguments), CallEnd(0, 1, True)]
    events: list[OutputEvent] = [*CALL, *cut, Finish(0, reason, Usage(9, 64), detail="call_cut")]
    message = folded(events)
    assert [block["name"] for block in message["content"]] == ["weather"]
    assert (message["stop_reason"], message["imp_finish_detail"]) == (stop, "call_cut")
    sent = payloads(events)
    told = [p["delta"]["partial_json"] for p in sent if p["type"] == "content_block_delta" and p["index"] == 1]
    assert "".join(told) == arguments and sent[-2]["delta"]["stop_reason"] == stop


def test_arguments_too_deep_for_pythons_parser_are_shown() -> None:
    deep = "[" * 4000 + "]" * 4000
    events: list[OutputEvent] = [CallStart(0, 0, "c", "f"), CallArgs(0, 0, f'{{"a": {deep}}}'), CallEnd(0, 0), DONE]
    assert f'"input":{{"a": {deep}}}'.encode() in msgspec.json.encode(folded(events))


def test_order_of_a_message_with_everything() -> None:
    events: list[OutputEvent] = [Accepted(0, 10, 4), Progress(0, 5, 10), ReasoningDelta(0, "hm"), TextDelta(0, "Hi")]
    kinds = [
        (p["type"], p.get("delta", p.get("content_block", {})).get("type")) for p in payloads([*events, *CALL, DONE])
    ]
    assert kinds == [
        ("message_start", None),
        ("ping", None),
        ("ping", None),
        ("content_block_start", "thinking"),
        ("content_block_delta", "thinking_delta"),
        ("content_block_delta", "signature_delta"),
        ("content_block_stop", None),
        ("content_block_start", "text"),
        ("content_block_delta", "text_delta"),
        ("content_block_stop", None),
        ("content_block_start", "tool_use"),
        ("content_block_delta", "input_json_delta"),
        ("content_block_stop", None),
        ("message_delta", None),
        ("message_stop", None),
    ]


def test_message_start_is_a_whole_message() -> None:
    message = payloads([TextDelta(0, "x"), DONE])[0]["message"]
    assert message["type"] == "message" and message["role"] == "assistant" and message["content"] == []
    assert (
        message["stop_reason"] is None and message["stop_sequence"] is None and message["usage"]["output_tokens"] == 0
    )
    assert message["id"].startswith("msg_")


def test_a_matched_stop_string_is_named() -> None:
    events: list[OutputEvent] = [TextDelta(0, "x"), Finish(0, "stop", Usage(9, 3), "END")]
    assert (folded(events)["stop_reason"], folded(events)["stop_sequence"]) == ("stop_sequence", "END")
    assert payloads(events)[-2]["delta"]["stop_sequence"] == "END"


def test_thinking_and_tool_are_blocks_0_and_1() -> None:
    starts = [p for p in payloads([ReasoningDelta(0, "hm"), *CALL, DONE]) if p["type"] == "content_block_start"]
    assert [(p["index"], p["content_block"]["type"]) for p in starts] == [(0, "thinking"), (1, "tool_use")]


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
def test_a_call_is_tool_use_and_there_is_no_empty_text(reason: Any) -> None:
    message = folded([TextDelta(0, ""), *CALL, Finish(0, reason, Usage(9, 3))])
    assert message["stop_reason"] == "tool_use"
    assert [block["type"] for block in message["content"]] == ["tool_use"]


def test_no_delta_without_its_start() -> None:
    kinds = [p["type"] for p in payloads([TextDelta(0, ""), ReasoningDelta(0, ""), TextDelta(0, "a"), DONE])]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1


def test_cached_tokens_are_told_and_not_counted_twice() -> None:
    usage = folded([TextDelta(0, "x"), DONE])["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (6, 4, 0)


def test_cache_writes_count_for_those_who_asked_for_them() -> None:
    finish = Finish(0, "stop", Usage(prompt_tokens=10, cached_tokens=4, cache_write_tokens=6))
    asked = context("msg", BODY)
    for pin_until, counts in [(10, (0, 6)), (9, (1, 5)), (3, (6, 0)), (0, (6, 0))]:
        asked.accepted = AcceptedPrompts(pin_until=pin_until)
        fold = MessageFold(asked)
        fold.feed(finish)
        marked = fold.body()["usage"]
        assert (marked["input_tokens"], marked["cache_creation_input_tokens"]) == counts
    assert folded([finish])["usage"]["input_tokens"] == 6


def test_length_wins_over_a_call() -> None:
    assert folded([*CALL, Finish(0, "length", Usage(9, 64))])["stop_reason"] == "max_tokens"


def test_a_full_context_is_told_apart_from_max_tokens() -> None:
    asked = context("msg", BODY)
    asked.extra["context_length"] = 12
    for finish, reason in (
        (Finish(0, "length", Usage(9, 3)), "model_context_window_exceeded"),
        (Finish(0, "length", Usage(9, 3), detail="call_cut"), "model_context_window_exceeded"),
        (Finish(0, "length", Usage(9, 2)), "max_tokens"),
        (Finish(0, "length", Usage(8, 3), detail="timed_out"), "max_tokens"),
    ):
        fold = MessageFold(asked)
        fold.feed(finish)
        assert fold.body()["stop_reason"] == reason


def test_display_omitted_hides_the_thinking_and_signs_what_is_shown() -> None:
    block = folded(
        [ReasoningDelta(0, "secret"), TextDelta(0, "x"), DONE], thinking={"type": "adaptive", "display": "omitted"}
    )
    assert block["content"][0] == {"type": "thinking", "thinking": "", "signature": signature("")}


def test_signature_is_fnv_1a() -> None:
    assert signature("") == f"imp_sig_{1469598103934665603:016x}"
    assert signature("a") == f"imp_sig_{((1469598103934665603 ^ 97) * 1099511628211) % 2**64:016x}"
    assert signature("ab") != signature("ba")


def test_tool_ids_are_anthropics() -> None:
    assert folded([*CALL, DONE])["content"][0]["id"] == "toolu_a"


@pytest.mark.parametrize(
    "name",
    ["functions.get_weather:0", "functions.größe:12", "call_1", "imp_x", "abc123DEF", "a b/c?", "call_call_1", ""],
)
def test_an_id_of_the_models_own_survives_in_anthropics_alphabet(name: str) -> None:
    wire = tool_use_id(name)
    assert re.fullmatch("toolu_[A-Za-z0-9_-]+", wire)
    assert call_id_of(wire) in {name, wire}
    if not re.fullmatch("[A-Za-z0-9_-]+", name):
        assert call_id_of(wire) == name, "a template that shows the id shows the model's"
    assert call_id_of("toolu_01A09q90qw90lq917835lq9") == "toolu_01A09q90qw90lq917835lq9"
    assert call_id_of("toolu_imp_%%%") == "toolu_imp_%%%"


def test_failure_is_an_error_event_and_no_end() -> None:
    stream = MessageStream(context("msg", BODY))
    frames = stream.open() + stream.feed(TextDelta(0, "par")) + stream.fail(EngineCrashed("the engine died"))
    check_frames("anthropic_messages.create_message", frames)
    error = json.loads(frames[-1].data)
    assert frames[-1].event == error["type"] == "error" and error["request_id"] == "req-1"
    assert error["error"]["type"] == "api_error" and error["error"]["details"]["error_code"] == "engine_crashed"
    assert not any(frame.event in {"message_delta", "message_stop"} for frame in frames)
    with (
        pytest.raises(anthropic.APIStatusError, match="the engine died"),
        anthropic_client(frames).messages.stream(model="toy", max_tokens=8, messages=[]) as sdk,
    ):
        list(sdk)
