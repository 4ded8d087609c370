"""Whole turns of Codex and Claude Code against a 32k context: request, tool call, the answer sent back, the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.live_server import LiveServer
from tests.dialects.message_accumulator import accumulate
from tests.live.client_shapes import CLAUDE_HEADERS, CODEX_HEADERS, claude_body, codex_body
from tests.live.toy_server import TOOLS_CHATML, call_text, toy_server
from tests.toy import bpe_model

MODEL = bpe_model()


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML, make_model=bpe_model) as live:
        yield live


def play(server: LiveServer, text: str) -> None:
    server.engine.play(MODEL.tokenize(text, control=False))


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def codex(server: LiveServer, *later: dict[str, Any]) -> list[dict[str, Any]]:
    url = f"{server.url}/v1/responses"
    return events(httpx.post(url, json=codex_body(*later), headers=CODEX_HEADERS, timeout=30))


def test_codex_calls_a_tool_and_ends(server: LiveServer) -> None:
    assert len(json.dumps(codex_body())) > 40_000
    play(server, "<think>list them</think>" + call_text("exec_command", cmd="ls") + call_text("spawn", task="x"))
    first = codex(server)
    assert first[-1]["type"] == "response.completed" and first[-1]["response"]["id"].startswith("resp_")
    done = [event["item"] for event in first if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "function_call", "function_call"]
    assert done[0]["summary"][0]["text"] == "list them" and done[0]["encrypted_content"]
    assert done[2]["namespace"] == "multi_agent"

    # It resends everything, reasoning without ids and calls with their namespace, and never names the response.
    replay = [{key: value for key, value in item.items() if key not in {"id", "status"}} for item in done]
    results = [{"type": "function_call_output", "call_id": c["call_id"], "output": "README.md"} for c in done[1:]]
    play(server, "There is a README.md.")
    second = codex(server, *replay, *results)
    assert [e["delta"] for e in second if e["type"] == "response.output_text.delta"]
    texts = [e["item"]["content"][0]["text"] for e in second if e["type"] == "response.output_item.done"]
    assert texts == ["There is a README.md."]
    usage = second[-1]["response"]["usage"]
    assert first[-1]["response"]["usage"]["input_tokens"] < usage["input_tokens"] < 32768


def claude(server: LiveServer, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}{path}?beta=true", json=body, headers=CLAUDE_HEADERS, timeout=30)


def test_claude_code_counts_calls_a_tool_and_ends(server: LiveServer) -> None:
    counted = claude(server, "/v1/messages/count_tokens", claude_body()).json()["input_tokens"]
    assert 10_000 < counted < 30_000
    play(server, "<think>list them</think>I'll look." + call_text("Bash", command="ls"))
    first = events(claude(server, "/v1/messages", claude_body()))
    usage = first[-2]["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    assert total == counted and first[-2]["delta"]["stop_reason"] == "tool_use"

    content = accumulate(first)
    assert [block["type"] for block in content] == ["thinking", "text", "tool_use"]
    result = {"type": "tool_result", "tool_use_id": content[2]["id"], "content": "README.md", "is_error": False}
    later = {"role": "assistant", "content": content}, {"role": "user", "content": [result]}
    play(server, "There is a README.md.")
    second = events(claude(server, "/v1/messages", claude_body(*later)))
    assert accumulate(second) == [{"type": "text", "text": "There is a README.md."}]

    # When a stream displeases it, it asks again without one.
    play(server, "There is a README.md.")
    whole = claude(server, "/v1/messages", claude_body(*later) | {"stream": False}).json()
    assert whole["content"] == accumulate(second) and whole["stop_reason"] == "end_turn"
