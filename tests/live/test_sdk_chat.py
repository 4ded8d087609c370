"""Chat Completions on a live server: the official SDK with strict validation, streams, tools, errors, replays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from imp_server.core import EngineFaulted
from imp_server.engine.client.scripted import Emit, Fail, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, call_text, openai_sdk, prompt_of, toy_server

MESSAGES: Any = [{"role": "user", "content": "hi"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        yield live


@pytest.fixture
def sdk(server: LiveServer) -> openai.OpenAI:
    return openai_sdk(server)


def test_chat(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("Hello wörld"))
    reply = sdk.chat.completions.create(model="toy", messages=MESSAGES, seed=1, user="u", metadata={"a": "b"})
    assert reply.choices[0].message.content == "Hello wörld"
    assert reply.choices[0].finish_reason == "stop"
    assert reply._request_id == reply.id
    assert reply.usage and reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details and reply.usage.completion_tokens_details


def test_stream(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("Hello wörld"))
    options: Any = {"include_usage": True}
    chunks = list(sdk.chat.completions.create(model="toy", messages=MESSAGES, stream=True, stream_options=options))
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Hello wörld"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == len("Hello wörld".encode()) + 1


def test_the_stream_helper(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("<think>hm</think>Hello wörld"))
    with sdk.chat.completions.stream(model="toy", messages=MESSAGES) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == "Hello wörld"


def test_the_async_client(server: LiveServer) -> None:
    async def chat() -> str:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", _strict_response_validation=True)
        server.engine.play(text_ids("async"))
        stream = await client.chat.completions.create(model="toy", messages=MESSAGES, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(chat()) == "async"


def test_several_choices_streamed(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play_choices([text_ids("zero")], [text_ids("one")], [text_ids("two")])
    with sdk.chat.completions.stream(model="toy", messages=MESSAGES, n=3) as stream:
        for _event in stream:
            pass
        final = stream.get_final_completion()
    assert [(c.index, c.message.content) for c in final.choices] == [(0, "zero"), (1, "one"), (2, "two")]


def test_logprobs(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("né"))
    reply = sdk.chat.completions.create(model="toy", messages=MESSAGES, logprobs=True, top_logprobs=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs and logprobs.content
    assert b"".join(bytes(entry.bytes or []) for entry in logprobs.content) == "né".encode()
    server.engine.play(text_ids("né"))
    found = []
    for chunk in sdk.chat.completions.create(model="toy", messages=MESSAGES, logprobs=True, stream=True):
        choice = chunk.choices[0]
        assert (choice.logprobs is None) or choice.delta.content or choice.finish_reason
        found += choice.logprobs.content or [] if choice.logprobs else []
    assert b"".join(bytes(entry.bytes or []) for entry in found) == "né".encode()
    assert all(entry.top_logprobs == [] for entry in found)


@pytest.mark.parametrize("stream", [True, False])
def test_parallel_calls_with_reasoning_and_replay(server: LiveServer, sdk: openai.OpenAI, stream: bool) -> None:
    output = "<think>both</think>Let me see." + call_text("weather", city="Köln") + call_text("clock")
    server.engine.play(Emit(text_ids(output)[:40]), text_ids(output)[40:])
    if stream:
        with sdk.chat.completions.stream(model="toy", messages=MESSAGES, tools=[WEATHER, CLOCK]) as events:
            for _event in events:
                pass
            reply: Any = events.get_final_completion()
    else:
        reply = sdk.chat.completions.create(model="toy", messages=MESSAGES, tools=[WEATHER, CLOCK])
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    message = choice.message
    assert message.content == "Let me see."
    assert message.reasoning_content == message.reasoning == "both"
    assert [call.function.name for call in message.tool_calls] == ["weather", "clock"]
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"city": "Köln"}, {}]
    history = [*MESSAGES, message.model_dump(exclude={"parsed"}, warnings=False)]
    for call in history[-1]["tool_calls"]:
        call["function"].pop("parsed_arguments", None)
        history.append({"role": "tool", "tool_call_id": call["id"], "content": "fine"})
    server.engine.play(text_ids("It is sunny."))
    again = sdk.chat.completions.create(model="toy", messages=history, tools=[WEATHER, CLOCK])
    assert again.choices[0].message.content == "It is sunny."
    assert "<think>both</think>Let me see.<tool_call>" in prompt_of(server)


NAMED: Any = {"type": "function", "function": {"name": "clock"}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("choice", "reason"), [("auto", "tool_calls"), ("required", "tool_calls"), (NAMED, "stop")])
def test_how_calls_finish(server: LiveServer, sdk: openai.OpenAI, choice: Any, reason: str, stream: bool) -> None:
    server.engine.play(text_ids(call_text("clock")))
    options: Any = {"tool_choice": choice, "stream": stream, "tools": [CLOCK]}
    reply: Any = sdk.chat.completions.create(model="toy", messages=MESSAGES, **options)
    if stream:
        assert [c.choices[0].finish_reason for c in reply][-1] == reason
    else:
        assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == (reason, None)


def test_length_wins_over_calls(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids(call_text("weather", city="Köln")))
    reply = sdk.chat.completions.create(model="toy", messages=MESSAGES, tools=[WEATHER], max_completion_tokens=30)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage and reply.usage.completion_tokens == 30


def test_without_tools_what_looks_like_a_call_is_text(server: LiveServer, sdk: openai.OpenAI) -> None:
    text = call_text("clock")
    more: dict[str, Any]
    for more in ({}, {"tools": []}, {"tools": [CLOCK], "tool_choice": "none"}):
        server.engine.play(text_ids(text))
        options: Any = more
        reply = sdk.chat.completions.create(model="toy", messages=MESSAGES, **options)
        assert reply.choices[0].message.content == text
        assert reply.choices[0].finish_reason == "stop"


def test_stop_strings(server: LiveServer, sdk: openai.OpenAI) -> None:
    for stream in (False, True):
        server.engine.play(text_ids("<think>no STOP here</think>before STOP after"))
        options: Any = {"stop": ["STOP"], "stream": stream}
        reply: Any = sdk.chat.completions.create(model="toy", messages=MESSAGES, **options)
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in reply)
        else:
            text = reply.choices[0].message.content
            assert reply.choices[0].message.reasoning == "no STOP here"
        assert text == "before "


@pytest.mark.parametrize("n_tokens", range(1, 9))
def test_a_cut_inside_a_character_shows_nothing_of_it(server: LiveServer, sdk: openai.OpenAI, n_tokens: int) -> None:
    texts = []
    for stream in (False, True):
        server.engine.play(text_ids("aé👋b"))
        options: Any = {"max_tokens": n_tokens, "stream": stream}
        reply: Any = sdk.chat.completions.create(model="toy", messages=MESSAGES, **options)
        parts = [chunk.choices[0].delta.content or "" for chunk in reply] if stream else []
        texts.append("".join(parts) if stream else reply.choices[0].message.content)
    assert texts[0] == texts[1] == "aé👋b".encode()[:n_tokens].decode(errors="ignore")


def test_errors(server: LiveServer, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="gone", messages=MESSAGES)
    assert missing.value.code == "model_not_found" and missing.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as wrong:
        sdk.chat.completions.create(model="toy", messages=MESSAGES, temperature=7)
    assert wrong.value.param == "temperature"
    long: Any = [{"role": "user", "content": "x" * 40000}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 32768 tokens"):
        sdk.chat.completions.create(model="toy", messages=long)
    server.engine.play(text_ids("so far"), Fail(EngineFaulted("step failed")))
    with pytest.raises(openai.InternalServerError):
        sdk.chat.completions.create(model="toy", messages=MESSAGES)
    server.engine.play(text_ids("so far"), Fail(EngineFaulted("step failed")))
    with pytest.raises(openai.APIError, match="step failed"):
        list(sdk.chat.completions.create(model="toy", messages=MESSAGES, stream=True))


def test_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["toy"]
    assert sdk.models.retrieve("toy").owned_by == "imp"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("org/other")


def test_keys_in_either_header() -> None:
    with toy_server(TOOLS_CHATML, settings={"server.api_key": ("k",)}) as live:
        live.engine.play(text_ids("in"))
        assert openai_sdk(live).chat.completions.create(model="toy", messages=MESSAGES).choices[0].message.content
        with pytest.raises(openai.AuthenticationError):
            openai_sdk(live).with_options(api_key="wrong").models.list()
