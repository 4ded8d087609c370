"""Schemas that can't be closed within the limits of a check are enforced as they stand, and a header names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.api.test_lenient import ASKS, USER
from tests.grammar.test_binding import TANGLED
from tests.live.toy_server import toy_server
from tests.toy import CHATML

HEADER = "x-imp-extra-properties"
NAMED = {
    "chat": "response_format.json_schema.schema",
    "completions": "response_format.json_schema.schema",
    "responses": "text.format",
    "messages": "output_config.format",
    "llamacpp": "json_schema",
    "tgi": "parameters.grammar.value",
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(CHATML) as live:
        yield live


def with_schema(body: Any, schema: Any) -> Any:
    """The body with its schema replaced, wherever it stands."""
    if not isinstance(body, dict):
        return body
    if "properties" in body:
        return schema
    return {key: with_schema(value, schema) for key, value in body.items()}


def ask(server: LiveServer, dialect: str, schema: Any, **more: Any) -> httpx.Response:
    server.engine.play(text_ids('{"z":1}'))
    path, body = ASKS[dialect]
    reply = httpx.post(server.url + path, json=with_schema({"model": "toy", **body, **more}, schema), timeout=60)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.parametrize("dialect", NAMED)
def test_the_header_names_what_stays_open(server: LiveServer, dialect: str) -> None:
    assert ask(server, dialect, TANGLED).headers[HEADER] == NAMED[dialect]
    assert HEADER not in ask(server, dialect, {"type": "object", "properties": {"z": {}}}).headers


def test_tools_are_named_by_their_places(server: LiveServer) -> None:
    tools = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in (("a", {}), ("b", TANGLED))]
    body = {"model": "toy", "messages": USER, "tools": tools, "tool_choice": "required"}
    server.engine.play(text_ids('<tool_call>\n{"name": "b", "arguments": {"z": 1}}\n</tool_call>'))
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.headers[HEADER] == "tools[1].function.parameters"
    assert reply.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"z": 1}'
