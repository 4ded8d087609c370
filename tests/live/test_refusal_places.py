"""A schema that is refused, in every dialect: the error names the field, and the place in the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, toy_server

ITEMS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 200}
SCHEMA = {"type": "object", "properties": {"a": ITEMS}, "required": ["a"]}
CHAT: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
NAMED = {"type": "json_schema", "name": "x", "schema": SCHEMA}
FUNCTION = {"name": "f", "parameters": SCHEMA, "strict": True}
TOOL = {"name": "f", "input_schema": SCHEMA}
ASKED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", CHAT | {"response_format": FORMAT}, "response_format.json_schema.schema"),
    ("/v1/chat/completions", CHAT | {"guided_json": SCHEMA}, "guided_json"),
    ("/v1/chat/completions", CHAT | {"tools": [{"type": "function", "function": FUNCTION}]},
     "tools[0].function.parameters"),
    ("/v1/completions", {"model": "toy", "prompt": "hi", "response_format": FORMAT},
     "response_format.json_schema.schema"),
    ("/v1/responses", {"model": "toy", "input": "hi", "text": {"format": NAMED}},
     "text.format"),
    ("/v1/responses", {"model": "toy", "input": "hi", "tools": [FUNCTION | {"type": "function"}]},
     "tools[0].parameters"),
    ("/v1/messages", CHAT | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
     "output_config.format"),
    ("/v1/messages", CHAT | {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tools[0].input_schema"),
    ("/completion", {"prompt": "hi", "json_schema": SCHEMA}, "json_schema"),
    ("/generate", {"inputs": "hi", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}},
     "parameters.grammar.value"),
]  # fmt: skip


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as server:
        yield server


@pytest.mark.parametrize(("route", "body", "param"), ASKED)
def test_a_refusal_names_field_and_place(live: LiveServer, route: str, body: dict[str, Any], param: str) -> None:
    reply = httpx.post(live.url + route, json=body, headers={"anthropic-version": "2023-06-01"}, timeout=30)
    assert reply.status_code == (422 if route == "/generate" else 400)
    error = reply.json()["error"]
    if isinstance(error, str):
        assert error.startswith(f"{param}: ")
    else:
        assert error.get("details", error)["param"] == param
    assert "at #/properties/a;" in (error if isinstance(error, str) else error["message"])
