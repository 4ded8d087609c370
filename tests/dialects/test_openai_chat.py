"""Chat Completions: the stream and the fold can't differ, and fields mean what they say."""

from __future__ import annotations

import asyncio
import copy
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.generations import Generations
from imp_server.core import (
    CallArgs,
    CallEnd,
    CallStart,
    Finish,
    InvalidRequest,
    LogprobEntry,
    Logprobs,
    MediaPart,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    TextPart,
    ToolCall,
    ToolChoice,
    Usage,
)
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.openai_chat.reply import ChatFold, ChatStream
from imp_server.dialects.openai_chat.request import chat_request
from imp_server.engine.client.scripted import Emit, ScriptedEngine

from tests.api.byte_text import THINK, THOUGHT, ByteText
from tests.dialects.chat_accumulator import accumulate

USER = {"role": "user", "content": "hi"}
TEXT = ByteText()
SPECIALS = {THINK: 257, THOUGHT: 258}


def context(body: dict[str, Any], n: int = 1) -> ReplyContext:
    return ReplyContext("chatcmpl-1", "m", 7, "req_1", body, n)


def both_ways(body: dict[str, Any], found: list[OutputEvent], n: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    fold, stream = ChatFold(context(body, n)), ChatStream(context(body, n))
    frames = stream.open()
    for event in found:
        fold.feed(event)
        frames += stream.feed(event)
    frames += stream.close()
    folded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fold.body()))
    return folded, accumulate(frames)


def assert_same(folded: dict[str, Any], streamed: dict[str, Any], *, with_usage: bool) -> None:
    folded = copy.deepcopy(folded)
    if not with_usage:
        folded["usage"] = None
    for choice in folded["choices"]:
        if choice["logprobs"] is not None and not choice["logprobs"]["content"]:
            choice["logprobs"] = None  # a stream without text has no chunk to carry an empty list
    assert streamed == folded


# --- through the scripted engine, for every cut of the tokens -----------------------------------


def ids_of(*pieces: str) -> list[int]:
    return [i for p in pieces for i in ([SPECIALS[p]] if p in SPECIALS else p.encode())]


async def play(request_body: dict[str, Any], plays: list[list[Emit]]) -> list[OutputEvent]:
    engine = ScriptedEngine(TEXT.vocabulary)
    await engine.start()
    engine.play_choices(*plays)
    watch = DisconnectWatch(None)
    running = Generations(engine, [TEXT.prepare_chat(chat_request(request_body))])
    await running.accept(watch)
    found = [event async for batch in running.events() for event in batch]
    await engine.stop()
    return found


def cut(ids: list[int], places: set[int]) -> list[Emit]:
    edges = [0, *sorted(p for p in places if 0 < p < len(ids)), len(ids)]
    return [Emit(ids[a:b]) for a, b in itertools.pairwise(edges) if a < b]


OUTPUTS = [
    ids_of("plain text"),
    ids_of("Grüße 👋🏽 日本語"),
    ids_of(THINK, "let me see…", THOUGHT, "42"),
    ids_of("a", THINK, "b", THOUGHT, "c", THINK, "d"),
    ids_of("before STOP after"),
    ids_of("STO"),
    [],
    ids_of("cut ") + list("é".encode())[:1],
]


@settings(max_examples=150, deadline=None)
@given(
    outputs=st.lists(st.sampled_from(OUTPUTS), min_size=1, max_size=3),
    places=st.lists(st.sets(st.integers(1, 40)), min_size=3, max_size=3),
    max_tokens=st.sampled_from([None, 1, 5, 12]),
    logprobs=st.booleans(),
    with_usage=st.booleans(),
)
def test_the_stream_equals_the_fold_for_every_cut(
    outputs: list[list[int]], places: list[set[int]], max_tokens: int | None, logprobs: bool, with_usage: bool
) -> None:
    body: dict[str, Any] = {"model": "m", "messages": [USER], "n": len(outputs), "stop": ["STOP"], "logprobs": logprobs}
    body["stream_options"] = {"include_usage": with_usage}
    if max_tokens:
        body["max_tokens"] = max_tokens
    whole = asyncio.run(play(body, [[Emit(ids)] if ids else [] for ids in outputs]))
    pieces = asyncio.run(play(body, [cut(ids, where) for ids, where in zip(outputs, places, strict=False)]))
    n = len(outputs)
    folded, streamed = both_ways(body, pieces, n)
    uncut, _ = both_ways(body, whole, n)
    assert folded == uncut | {"timings": folded["timings"]}
    assert_same(folded, streamed, with_usage=with_usage)
    for choice in folded["choices"]:
        text = choice["message"]["content"]
        assert "STOP" not in text and "\ufffd" not in text
        if logprobs:
            data = bytes(b for entry in choice["logprobs"]["content"] for b in entry["bytes"])
            assert data == text.encode()


# --- events that need a tool format ------------------------------------------------------------

USAGE = Usage(prompt_tokens=3, completion_tokens=4)


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.text(min_size=1), max_size=3),
    thoughts=st.lists(st.text(min_size=1), max_size=3),
    calls=st.lists(st.tuples(st.text("abc", min_size=1), st.lists(st.text(min_size=1), max_size=3)), max_size=3),
    reason=st.sampled_from(["stop", "length", "tool_calls"]),
    named=st.booleans(),
)
def test_calls_and_reasoning(texts: Any, thoughts: Any, calls: Any, reason: Any, named: bool) -> None:
    found: list[OutputEvent] = [*(ReasoningDelta(0, t) for t in thoughts), *(TextDelta(0, t) for t in texts)]
    for index, (name, pieces) in enumerate(calls):
        found += [CallStart(0, index, f"call_{index}", name), *(CallArgs(0, index, p) for p in pieces)]
        found += [CallEnd(0, index)]
    found.append(Finish(0, reason, USAGE, detail="timed_out"))
    body: dict[str, Any] = {"tool_choice": {"type": "function", "function": {"name": "f"}}} if named else {}
    folded, streamed = both_ways(body, found)
    assert_same(folded, streamed, with_usage=False)
    [choice] = folded["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == ("stop" if named and reason == "tool_calls" else reason)
    assert choice["imp_finish_detail"] == "timed_out"
    assert message["content"] == ("".join(texts) if texts or not calls else None)
    assert message.get("reasoning_content", "") == message.get("reasoning", "") == "".join(thoughts)
    assert len(message.get("tool_calls", [])) == len(calls)


def test_logprobs_have_bytes_and_ride_with_their_text() -> None:
    entry = LogprobEntry(5, "é".encode()[:1], -0.5, ((5, "é".encode()[:1], -0.5), (6, b"x", -9999.0)))
    found: list[OutputEvent] = [Logprobs(0, (entry,)), TextDelta(0, "é"), Finish(0, "stop", USAGE)]
    folded, streamed = both_ways({"logprobs": True}, found)
    assert_same(folded, streamed, with_usage=False)
    [shown] = folded["choices"][0]["logprobs"]["content"]
    assert shown["bytes"] == [0xC3]
    assert shown["token"] == "\\xc3"
    assert [t["logprob"] for t in shown["top_logprobs"]] == [-0.5, -9999.0]
    stream = ChatStream(context({"logprobs": True}))
    assert stream.feed(found[0]) == []
    [frame] = stream.feed(found[1])
    assert msgspec.json.decode(frame.data)["choices"][0]["logprobs"]["content"]


# --- usage --------------------------------------------------------------------------------------


def test_usage_sums_the_choices_and_always_has_its_details() -> None:
    found: list[OutputEvent] = [
        Finish(0, "stop", Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4, reasoning_tokens=1)),
        Finish(1, "stop", Usage(completion_tokens=3)),
    ]
    usage = both_ways({"stream_options": {"include_usage": True}}, found, 2)[0]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (9, 5, 14)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4, "audio_tokens": 0}
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 1
    assert usage["completion_tokens_details"]["rejected_prediction_tokens"] == 0


# --- requests -----------------------------------------------------------------------------------


def parse(**fields: Any) -> Any:
    return chat_request({"model": "m", "messages": [USER], **fields})


def test_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": " brief"}]},
        {"role": "assistant", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": "x", "reasoning": "other name"},
        {"role": "function", "name": "f", "content": "old"},
    ]
    first, second, third, fourth, fifth = parse(messages=messages).messages
    assert (first.role, first.parts) == ("system", (TextPart("be"), TextPart(" brief")))
    assert (second.parts, second.reasoning, second.tool_calls) == ((), "hm", (ToolCall("c1", "f", "{}"),))
    assert third.parts == (MediaPart("image_url", "messages[2].content[0]"),)
    assert fourth.reasoning == "other name"
    assert (fifth.role, fifth.name) == ("tool", "f")


def test_limits_and_logprobs() -> None:
    assert parse(max_tokens=5, max_completion_tokens=3).output.max_tokens == 3
    assert parse(max_tokens=5).output.max_tokens == 5
    assert parse().output.max_tokens is None
    assert parse(logprobs=True).options.logprobs == 0
    assert parse(logprobs=True, top_logprobs=4).options.logprobs == 4
    assert parse(top_logprobs=4).options.logprobs is None
    assert parse(n=2.0).options.n == 2


def test_sampling() -> None:
    sampling = parse(temperature=0, top_k=-1, seed=-1, stop="x", logit_bias={"5": 1}).sampling
    assert (
        sampling.asked.get("temperature"),
        sampling.asked.get("top_k"),
        sampling.asked.get("seed"),
        sampling.asked.get("top_p"),
    ) == (0.0, 0, None, None)
    assert sampling.logit_bias == {5: 1.0}
    assert parse(seed=7).sampling.asked.get("seed") == 7
    assert parse(stop=["a", "", "b"]).output.stop == ("a", "b")
    assert parse(stop="").output.stop == ()


TOOLS = [{"type": "function", "function": {"name": n}} for n in ("f", "g")]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        (named("g"), ToolChoice("required", ("g",), named=True)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("f")]}},
            ToolChoice("auto", ("f",)),
        ),
    ],
)
def test_tool_choice(choice: Any, expected: ToolChoice) -> None:
    fields = {"tool_choice": choice} if choice is not None else {}
    assert parse(tools=TOOLS, **fields).tool_choice == expected


def test_tool_choice_names_a_tool() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(tools=TOOLS, tool_choice=named("h"))
    assert caught.value.code == "unknown_tool"
    assert not parse(tools=TOOLS, parallel_tool_calls=False).tool_choice.parallel


def test_response_formats() -> None:
    schema = {"type": "object", "default": None}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    found = parse(response_format=wanted).output.response_format
    assert (found.kind, found.schema, found.name) == ("json_schema", schema, "n")
    assert found.param == "response_format.json_schema.schema"
    assert parse(response_format={"type": "regex", "pattern": "a+"}).output.response_format.text == "a+"
    assert (
        parse(response_format={"type": "grammar", "gbnf": "g"}).output.response_format.param == "response_format.gbnf"
    )
    assert parse().output.response_format.kind == "text"


def test_reasoning() -> None:
    assert parse().reasoning.enabled is None
    assert parse(enable_thinking=False, chat_template_kwargs={"enable_thinking": True}).reasoning.enabled is False
    assert parse(chat_template_kwargs={"enable_thinking": True}).reasoning.enabled is True
    assert parse(reasoning_effort="none").reasoning.enabled is False
    assert parse(reasoning_effort="low").reasoning.effort == "low"
    assert parse(think_budget=0).reasoning.enabled is False
    assert parse(think_budget=0.25).reasoning.budget_fraction == 0.25


def test_predictions_of_unknown_shape_are_ignored() -> None:
    assert parse(prediction={"type": "content", "content": "abc"}).prediction == "abc"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse(prediction={"type": "content", "content": parts}).prediction == "ab"
    assert parse(prediction={"what": 3}).prediction is None
