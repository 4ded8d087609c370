"""Faults that other servers had, on /v1/responses and /v1/messages alike."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.core import EngineFaulted
from imp_server.engine.client.scripted import Fail, ScriptGate, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, call_text, toy_server

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
PATHS = {"responses": "/v1/responses", "messages": "/v1/messages"}
both = pytest.mark.parametrize("dialect", list(PATHS))


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        yield live


def body_of(dialect: str, *, text: str = "hi", offer: bool = False, **more: Any) -> dict[str, Any]:
    if dialect == "responses":
        body: dict[str, Any] = {"model": "toy", "input": text}
        tool: dict[str, Any] = {"type": "function", "name": "weather", "description": None, "parameters": SCHEMA}
    else:
        body = {"model": "toy", "max_tokens": 512, "messages": [{"role": "user", "content": text}]}
        tool = {"name": "weather", "description": None, "input_schema": SCHEMA}
    return body | ({"tools": [tool]} if offer else {}) | more


def ask(server: LiveServer, dialect: str, **options: Any) -> httpx.Response:
    return httpx.post(server.url + PATHS[dialect], json=body_of(dialect, **options), timeout=20)


def payloads(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def text_in(dialect: str, reply: dict[str, Any]) -> str:
    if dialect == "responses":
        parts = [part for item in reply["output"] if item["type"] == "message" for part in item["content"]]
    else:
        parts = [block for block in reply["content"] if block["type"] == "text"]
    return "".join(part["text"] for part in parts)


def arguments_in(dialect: str, reply: dict[str, Any]) -> list[Any]:
    if dialect == "responses":
        return [json.loads(item["arguments"]) for item in reply["output"] if item["type"] == "function_call"]
    return [block["input"] for block in reply["content"] if block["type"] == "tool_use"]


@both
def test_a_bad_request_for_a_stream_is_a_plain_400(server: LiveServer, dialect: str) -> None:
    response = ask(server, dialect, text="x" * 40000, stream=True)
    assert response.status_code == 400 and response.headers["content-type"] == "application/json"
    assert "maximum context length is 32768 tokens" in response.text


@both
def test_an_error_is_never_content(server: LiveServer, dialect: str) -> None:
    server.engine.play(Fail(EngineFaulted("one step failed")))
    response = ask(server, dialect)
    assert response.status_code == 500 and "error" in response.json()


@both
def test_every_event_is_named_and_ends_in_a_blank_line(server: LiveServer, dialect: str) -> None:
    blocks = ask(server, dialect, stream=True).text.split("\n\n")
    assert blocks[-1] == ""
    for block in blocks[:-1]:
        lines = block.split("\n")
        if lines != ["data: [DONE]"]:
            assert lines[0] == f"event: {json.loads(lines[1][6:])['type']}" and len(lines) == 2


@both
@pytest.mark.parametrize("streamed", [True, False])
def test_a_dropped_client_frees_its_row(server: LiveServer, dialect: str, streamed: bool) -> None:
    gate = server.on_loop(asyncio.Event)
    server.engine.play(text_ids("a"), ScriptGate(gate))
    url, body = server.url + PATHS[dialect], body_of(dialect, stream=streamed)
    with (
        httpx.Client(timeout=httpx.Timeout(20, read=0.3)) as client,
        pytest.raises(httpx.ReadTimeout),
        client.stream("POST", url, json=body) as response,
    ):
        response.read()
    deadline = time.monotonic() + 5
    while server.engine.n_running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.engine.n_running == 0


@both
def test_markup_of_calls_is_never_text(server: LiveServer, dialect: str) -> None:
    server.engine.play(text_ids("Look: " + call_text("weather", city="<b>")))
    sent = payloads(ask(server, dialect, offer=True, stream=True))
    deltas = "".join(
        payload.get("delta", "") if dialect == "responses" else payload.get("delta", {}).get("text", "")
        for payload in sent
        if payload["type"] in ("response.output_text.delta", "content_block_delta")
    )
    assert deltas.strip() == "Look:"


@both
def test_a_call_without_arguments_has_an_empty_object(server: LiveServer, dialect: str) -> None:
    server.engine.play(text_ids(call_text("weather")))
    assert arguments_in(dialect, ask(server, dialect, offer=True).json()) == [{}]


@both
def test_no_tools_no_calls(server: LiveServer, dialect: str) -> None:
    none: Any = "none" if dialect == "responses" else {"type": "none"}
    reply = ask(server, dialect, tools=[], tool_choice=none)
    assert reply.status_code == 200 and arguments_in(dialect, reply.json()) == []


@both
def test_with_choice_none_text_like_a_call_stays(server: LiveServer, dialect: str) -> None:
    text = call_text("weather", city="Bonn")
    server.engine.play(text_ids(text))
    none: Any = "none" if dialect == "responses" else {"type": "none"}
    reply = ask(server, dialect, offer=True, tool_choice=none).json()
    assert text_in(dialect, reply) == text and arguments_in(dialect, reply) == []


@both
def test_a_call_of_broken_json_is_no_500(server: LiveServer, dialect: str) -> None:
    server.engine.play(text_ids('<tool_call>\n{"name": "weather", "arguments": {"city": \n</tool_call>'))
    whole = ask(server, dialect, offer=True)
    server.engine.play(text_ids('<tool_call>\n{"name": "weather", "arguments": {"city": \n</tool_call>'))
    streamed = ask(server, dialect, offer=True, stream=True)
    assert whole.status_code == streamed.status_code == 200
    assert payloads(streamed)[-1]["type"] in ("response.completed", "message_stop")


@both
def test_unknown_models_and_junk(server: LiveServer, dialect: str) -> None:
    gone = ask(server, dialect, model="gone")
    assert gone.status_code == 404 and gone.json()["error"]["message"]
    junk: dict[str, Any]
    for junk in ({"stream": {"a": []}}, {"temperature": [1]}, {"tools": {"x": 1}}, {"metadata": 5}):
        assert ask(server, dialect, **junk).status_code == 400


@both
@pytest.mark.parametrize("text", ["", "a", "<think>hm</think>", "<think>hm", call_text("weather") * 2])
def test_a_stream_always_ends(server: LiveServer, dialect: str, text: str) -> None:
    server.engine.play(text_ids(text))
    kinds = [payload["type"] for payload in payloads(ask(server, dialect, offer=True, stream=True))]
    assert kinds[-1] in ("response.completed", "message_stop")
    assert sum(kind in ("response.completed", "message_stop") for kind in kinds) == 1


def test_a_named_tool_is_forced_or_refused(server: LiveServer) -> None:
    for dialect, choice in (("responses", {"type": "function"}), ("messages", {"type": "tool"})):
        refused = ask(server, dialect, offer=True, tool_choice=choice | {"name": "other"})
        assert refused.status_code == 400 and "other" in refused.json()["error"]["message"]


def test_parallel_calls_have_dense_indexes(server: LiveServer) -> None:
    server.engine.play(text_ids(call_text("weather", city="a") + call_text("weather", city="b")))
    added = [
        payload
        for payload in payloads(ask(server, "responses", offer=True, stream=True))
        if payload["type"] == "response.output_item.added"
    ]
    assert [payload["output_index"] for payload in added] == [0, 1]
    assert len({payload["item"]["call_id"] for payload in added}) == 2


@both
def test_a_format_binds_the_answer(server: LiveServer, dialect: str) -> None:
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA}
    asked: dict[str, Any] = (
        {"text": {"format": form}} if dialect == "responses" else {"output_config": {"format": form}}
    )
    server.engine.play(text_ids("{}"))
    body = body_of(dialect) | asked
    assert httpx.post(server.url + PATHS[dialect], json=body, timeout=20).status_code == 200
    assert server.engine.requests_seen[-1].plan.grammar is not None
    ask(server, dialect)
    assert server.engine.requests_seen[-1].plan.grammar is None
