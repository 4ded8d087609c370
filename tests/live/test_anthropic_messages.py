"""/v1/messages on a live server: the official SDK, thinking, tools, counting, errors in Anthropic's shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from imp_server.core import EngineFaulted
from imp_server.engine.client.scripted import Fail, Prefilled, ScriptGate, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, anthropic_sdk, call_text, prompt_of, toy_server

WEATHER: Any = {
    "name": "weather",
    "description": "d",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
GONE = b'{"model":"gone","messages":[{"role":"user","content":"x"}]}'
HI: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        yield live


@pytest.fixture
def sdk(server: LiveServer) -> anthropic.Anthropic:
    return anthropic_sdk(server)


def post(server: LiveServer, path: str = "/v1/messages", headers: Any = None, **body: Any) -> httpx.Response:
    content = {"model": "toy", "max_tokens": 32, "messages": HI} | body
    return httpx.post(server.url + path, json=content, headers=headers, timeout=20)


def test_create(server: LiveServer, sdk: anthropic.Anthropic) -> None:
    server.engine.play(text_ids("Hello wörld"))
    message = sdk.messages.create(model="toy", max_tokens=32, messages=HI, system="be brief")
    assert [block.type for block in message.content] == ["text"] and message.content[0].text == "Hello wörld"  # type: ignore[union-attr]
    assert (message.stop_reason, message.stop_sequence, message.model) == ("end_turn", None, "toy")
    assert message.id.startswith("msg_") and message._request_id
    assert "system\nbe brief" in prompt_of(server)


def test_stream_helper(server: LiveServer, sdk: anthropic.Anthropic) -> None:
    server.engine.play(text_ids("Hello wörld"))
    with sdk.messages.stream(model="toy", max_tokens=32, messages=HI) as stream:
        assert "".join(stream.text_stream) == "Hello wörld"
        final = stream.get_final_message()
    assert final.usage.input_tokens > 0 and final.usage.output_tokens == 13


def test_thinking_is_opt_in(server: LiveServer, sdk: anthropic.Anthropic) -> None:
    sdk.messages.create(model="toy", max_tokens=32, messages=HI)
    assert prompt_of(server).endswith("<think>\n\n</think>\n\n")
    server.engine.play(text_ids("<think>because</think>So."))
    message = sdk.messages.create(
        model="toy", max_tokens=2048, messages=HI, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    assert not prompt_of(server).endswith("<think>\n\n</think>\n\n")
    thinking, text = message.content
    assert thinking.type == "thinking" and thinking.thinking == "because" and thinking.signature.startswith("imp_sig_")
    assert text.type == "text" and text.text == "So."
    details = message.usage.output_tokens_details
    assert details and details.thinking_tokens > 0


def test_tools_and_the_replay_of_the_answer(server: LiveServer, sdk: anthropic.Anthropic) -> None:
    server.engine.play(text_ids("<think>need it</think>Let me see." + call_text("weather", city="Köln")))
    thinking: Any = {"type": "adaptive"}
    first = sdk.messages.create(model="toy", max_tokens=512, messages=HI, tools=[WEATHER], thinking=thinking)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    call: Any = first.content[-1]
    assert first.stop_reason == "tool_use" and call.input == {"city": "Köln"} and call.id.startswith("toolu_")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sun"}]}
    answer: Any = {"role": "user", "content": [result]}
    server.engine.play(text_ids("Sunny."))
    second = sdk.messages.create(
        model="toy",
        max_tokens=32,
        messages=[*HI, first.to_param(), answer],
        tools=[WEATHER],
        thinking=thinking,
    )
    assert second.content[0].text == "Sunny."  # type: ignore[union-attr]
    assert "<think>need it</think>Let me see.<tool_call>" in prompt_of(server)


def test_streamed_tools_arrive_as_json_deltas(server: LiveServer, sdk: anthropic.Anthropic) -> None:
    server.engine.play(text_ids(call_text("weather", city="Köln") + call_text("weather", city="Bonn")))
    with sdk.messages.stream(model="toy", max_tokens=512, messages=HI, tools=[WEATHER]) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        blocks: list[Any] = list(stream.get_final_message().content)
    assert [block.input for block in blocks] == [{"city": "Köln"}, {"city": "Bonn"}]
    assert "".join(pieces).count("{") == 2 and len({block.id for block in blocks}) == 2


def test_stop_sequence_is_named(server: LiveServer, sdk: anthropic.Anthropic) -> None:
    server.engine.play(text_ids("one two three"))
    message = sdk.messages.create(model="toy", max_tokens=32, messages=HI, stop_sequences=["two", "zzz"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "two")
    assert message.content[0].text == "one "  # type: ignore[union-attr]


def test_max_tokens(server: LiveServer, sdk: anthropic.Anthropic) -> None:
    server.engine.play(text_ids("one two three"))
    message = sdk.messages.create(model="toy", max_tokens=3, messages=HI)
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 3
    server.engine.play(text_ids("one"))
    assert post(server, max_tokens=None).json()["stop_reason"] == "end_turn"


def test_count_equals_the_input_tokens_of_the_call(server: LiveServer, sdk: anthropic.Anthropic) -> None:
    body: Any = {"model": "toy", "messages": HI}
    plain = sdk.messages.count_tokens(**body).input_tokens
    for extra in ({}, {"system": "s"}, {"tools": [WEATHER]}, {"thinking": {"type": "adaptive"}}):
        counted = sdk.messages.count_tokens(**body, **extra).input_tokens
        usage = sdk.messages.create(**body, **extra, max_tokens=8).usage
        assert usage.input_tokens == counted
        assert bool(extra) == (counted != plain)


def test_cached_tokens(server: LiveServer, sdk: anthropic.Anthropic) -> None:
    counted = sdk.messages.count_tokens(model="toy", messages=HI).input_tokens
    server.engine.play(Prefilled(counted, 10), text_ids("x"))
    usage = sdk.messages.create(model="toy", max_tokens=8, messages=HI).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (counted - 10, 10)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "secret", "anthropic-version": "2023-06-01"},
        {"authorization": "Bearer secret", "anthropic-version": "2026-10-21"},
        {"x-api-key": "secret", "anthropic-beta": "no-such-beta-2099,another"},
    ],
)
def test_keys_in_either_header_and_unknown_betas(headers: dict[str, str]) -> None:
    with toy_server(settings={"server.api_key": ("secret",)}) as live:
        answered = post(live, headers=headers)
        assert answered.status_code == 200
        assert all(answered.headers[n] == v for n, v in headers.items() if n.startswith("anthropic-"))
        assert post(live, path="/v1/messages?beta=true", headers=headers).status_code == 200
        refused = post(live, headers=headers | {"x-api-key": "wrong", "authorization": "Bearer wrong"})
        assert refused.status_code == 401 and refused.json()["error"]["type"] == "authentication_error"


def test_the_two_versions_differ_in_sampling(server: LiveServer) -> None:
    assert post(server, temperature=0.5, headers={"anthropic-version": "2023-06-01"}).status_code == 200
    assert post(server, temperature=0.5).status_code == 200
    refused = post(server, temperature=0.5, headers={"anthropic-version": "2026-10-21"})
    assert refused.status_code == 400 and "temperature" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "kind"),
    [
        ("GET", "/v1/messages", b"", 405, "invalid_request_error"),
        ("POST", "/v1/messages/nothing", b"{}", 404, "not_found_error"),
        ("POST", "/v1/messages/batches", b"{}", 404, "not_found_error"),
        ("POST", "/v1/messages", b"{not json", 400, "invalid_request_error"),
        ("POST", "/v1/messages", b"[1]", 400, "invalid_request_error"),
        ("POST", "/v1/messages", GONE, 404, "not_found_error"),
        ("POST", "/v1/messages/count_tokens", b'{"model":"toy"}', 400, "invalid_request_error"),
    ],
)  # fmt: skip
def test_errors_have_anthropics_shape(
    server: LiveServer, method: str, path: str, content: bytes, status: int, kind: str
) -> None:
    headers = {"content-type": "application/json"}
    response = httpx.request(method, server.url + path, content=content, headers=headers)
    body = response.json()
    assert response.status_code == status
    assert body["type"] == "error" and body["error"]["type"] == kind
    assert body["request_id"] == response.headers["request-id"]


def test_media_is_refused_by_name_also_in_tool_results(server: LiveServer) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    for block, path in ((image, "messages[0].content[0]"), (result, "messages[0].content[0].content[0]")):
        error = post(server, messages=[{"role": "user", "content": [block]}]).json()["error"]
        assert error["details"]["error_code"] == "vision_unavailable" and path in error["message"]


def test_failure_mid_stream_is_an_error_event(server: LiveServer, sdk: anthropic.Anthropic) -> None:
    server.engine.play(text_ids("par"), Fail(EngineFaulted("one step failed")))
    stream = sdk.messages.create(model="toy", max_tokens=32, messages=HI, stream=True)
    seen: list[str] = []
    with pytest.raises(anthropic.APIStatusError, match="one step failed"):
        seen.extend(event.type for event in stream)
    assert "message_stop" not in seen and "content_block_delta" in seen


def test_message_start_comes_before_prefill_ends_and_pings_follow(server: LiveServer) -> None:
    gate = server.on_loop(asyncio.Event)
    server.engine.play(Prefilled(3), ScriptGate(gate), text_ids("x"))
    body = {"model": "toy", "max_tokens": 32, "messages": HI, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/messages", json=body) as reply:
        lines = (line for line in reply.iter_lines() if line)
        assert next(lines) == "event: message_start"
        assert json.loads(next(lines)[6:])["message"]["usage"]["input_tokens"] > 0
        assert [next(lines) for _ in range(4)] == ["event: ping", 'data: {"type":"ping"}'] * 2
        server.on_loop(gate.set)
        assert list(lines)[-2:] == ["event: message_stop", 'data: {"type":"message_stop"}']


def test_the_prompt_does_not_change_with_the_billing_header(server: LiveServer) -> None:
    prompts = []
    for digest in ("a1b2c", "d3e4f"):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={digest};"}]
        assert post(server, system=system).status_code == 200
        prompts.append(prompt_of(server))
    assert prompts[0] == prompts[1]
