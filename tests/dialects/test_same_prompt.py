"""Routes that tell a prompt, or count it, tell that of the same request for an answer: over all pairs of options."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import httpx
import pytest
from imp_server.core import unpack_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, toy_server

TEMPLATE = TOOLS_CHATML.replace(
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
    "{% if reasoning_effort %}({{ reasoning_effort }}){% endif %}{{ note or '' }}<think>\n",
)
"""Opens thinking by itself; what is asked of it shows."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "f", "parameters": SCHEMA}
USER = {"role": "user", "content": "hi"}

CHAT: dict[str, dict[str, Any]] = {
    "tools": {"tools": [{"type": "function", "function": FUNCTION}]},
    "no call": {"tool_choice": "none"},
    "json": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    "guided": {"guided_choice": ["a", "b"]},
    "structured": {"structured_outputs": {"regex": "a+"}},
    "llama": {"json_schema": SCHEMA},
    "grammar": {"grammar": 'root ::= "a"'},
    "regex": {"regex": "a+"},
    "on": {"enable_thinking": True},
    "off": {"enable_thinking": False},
    "effort": {"reasoning_effort": "low"},
    "no effort": {"reasoning_effort": "none"},
    "share": {"think_budget": 0.3},
    "no share": {"think_budget": 0},
    "budget": {"reasoning_budget_tokens": 0},
    "another budget": {"thinking_budget_tokens": 5},
    "variables": {"chat_template_kwargs": {"note": "well"}},
    "continued": {"messages": [USER, {"role": "assistant", "content": "a"}], "continue_final_message": True},
    "not begun": {"add_generation_prompt": False},
    "cut": {"stop": ["x"], "temperature": 0.5, "n": 2},
}
RESPONSES: dict[str, dict[str, Any]] = {
    "tools": {"tools": [{"type": "function", **FUNCTION}]},
    "no call": {"tool_choice": "none"},
    "json": {"text": {"format": {"type": "json_object"}}},
    "guided": {"guided_choice": ["a", "b"]},
    "on": {"enable_thinking": True},
    "effort": {"reasoning": {"effort": "low"}},
    "no effort": {"reasoning": {"effort": "none"}},
    "share": {"think_budget": 0},
    "instructions": {"instructions": "be kind"},
    "variables": {"chat_template_kwargs": {"note": "well"}},
    "dropped turns": {"truncation": "auto", "input": [{"role": "user", "content": "old " * 800}, USER]},
}
MESSAGES: dict[str, dict[str, Any]] = {
    "tools": {"tools": [{"name": "f", "input_schema": SCHEMA}]},
    "no call": {"tool_choice": {"type": "none"}},
    "schema": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "on": {"thinking": {"type": "adaptive"}},
    "budget": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    "off": {"thinking": {"type": "disabled"}},
    "system": {"system": "be kind"},
    "prefilled": {"messages": [USER, {"role": "assistant", "content": "a"}]},
    "variables": {"chat_template_kwargs": {"note": "well"}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TEMPLATE, context_length=2048) as live:
        yield live


def prompt_of(server: LiveServer, client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[int, ...] | None:
    """The ids that the engine was given; None if the request is refused."""
    n_seen = len(server.engine.requests_seen)
    answer = client.post(path, json=body)
    if answer.status_code != 200:
        assert answer.status_code == 400, answer.text
        return None
    return tuple(unpack_ids(server.engine.requests_seen[n_seen].ids))


def pairs(options: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    assert len(options) > 5
    for one, other in combinations(options.values(), 2):
        yield {**one, **other}


@pytest.mark.parametrize("path", ["/apply-template", "/v1/chat/completions/input_tokens"])
def test_of_a_chat(server: LiveServer, path: str) -> None:
    check(server, "/v1/chat/completions", path, {"model": "toy", "messages": [USER], "max_tokens": 1}, CHAT)


def test_of_a_response(server: LiveServer) -> None:
    body = {"model": "toy", "input": [USER], "max_output_tokens": 1}
    check(server, "/v1/responses", "/v1/responses/input_tokens", body, RESPONSES)


def test_of_a_message(server: LiveServer) -> None:
    body = {"model": "toy", "messages": [USER], "max_tokens": 1}
    check(server, "/v1/messages", "/v1/messages/count_tokens", body, MESSAGES)


def check(server: LiveServer, asked: str, told: str, plain: dict[str, Any], options: dict[str, dict[str, Any]]) -> None:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        prompts = set()
        for more in pairs(options):
            prompt = prompt_of(server, client, asked, plain | more)
            answer = client.post(told, json=plain | more)
            if prompt is None:
                assert answer.status_code == 400, more
                continue
            assert answer.status_code == 200, (more, answer.text)
            found = answer.json()
            if told == "/apply-template":
                assert ids_of(client, found["prompt"]) == prompt, more
            else:
                assert found["input_tokens"] == len(prompt), more
            prompts.add(prompt)
        assert len(prompts) > len(options) // 2, "the options change nothing"


def ids_of(client: httpx.Client, text: str) -> tuple[int, ...]:
    return tuple(client.post("/tokenize", json={"content": text, "parse_special": True}).json()["tokens"])
