"""The default model, sampled wildly: the text of a free-form call obeys the tool's grammar, on both dialects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from imp_server.backends import choose
from imp_server.grammar.languages.lark.compile import compile_lark

from tests.api.live_server import LiveServer
from tests.grammar.lark.grammars import APPLY_PATCH, CALCULATOR
from tests.grammar.test_regex import accepted
from tests.live.test_real_constraints import server as server

pytestmark = pytest.mark.skipif(choose("auto") == "reference", reason="the native library isn't built")
PHONE = r"\+\d{2} \d{3,5}( \d{2,4}){1,3}"
FORMATS: dict[str, tuple[str, str]] = {
    "apply_patch": ("lark", APPLY_PATCH),
    "calculate": ("lark", CALCULATOR),
    "call": ("regex", PHONE),
}
WILD: dict[str, Any] = {"temperature": 1.5, "top_p": 1}


def obeys(name: str, text: str) -> bool:
    syntax, definition = FORMATS[name]
    return bool(re.fullmatch(definition, text)) if syntax == "regex" else accepted(compile_lark(definition), text)


@pytest.fixture
def sdk(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="k", _strict_response_validation=True) as client:
        yield client


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_chat(sdk: openai.OpenAI, name: str, seed: int) -> None:
    syntax, definition = FORMATS[name]
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    tool: Any = {"type": "custom", "custom": {"name": name, "description": "Works.", "format": form}}
    asked: Any = [{"role": "user", "content": "Do something with it."}]
    forced: Any = {"type": "custom", "custom": {"name": name}}
    reply = sdk.chat.completions.create(
        model="smollm2", messages=asked, tools=[tool], tool_choice=forced, max_tokens=120, seed=seed, **WILD
    )
    [call] = reply.choices[0].message.tool_calls or []
    cut = reply.choices[0].finish_reason == "length"  # then it is as it was written, and not whole
    assert call.type == "custom" and (cut or obeys(name, call.custom.input)), call


@pytest.mark.parametrize("name", FORMATS)
def test_responses_streamed_and_sent_back(sdk: openai.OpenAI, name: str) -> None:
    syntax, definition = FORMATS[name]
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    tools: Any = [{"type": "web_search"}, {"type": "custom", "name": name, "format": form}]
    asked: Any = [{"role": "user", "content": "Do something with it."}]
    options: Any = {"tool_choice": "required", "max_output_tokens": 120, "parallel_tool_calls": False, **WILD}
    events = list(sdk.responses.create(model="smollm2", input=asked, tools=tools, stream=True, **options))
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    last: Any = events[-1]
    call: Any = last.response.output[-1]
    assert call.type == "custom_tool_call" and "".join(deltas) == call.input
    if call.status == "incomplete":  # as far as it was written
        assert last.type == "response.incomplete"
    else:  # whole, though the limit may have come behind it
        assert obeys(name, call.input), call
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
    again = [*asked, call.model_dump(exclude_none=True), result]
    assert sdk.responses.create(model="smollm2", input=again, tools=tools, max_output_tokens=8).status


@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_definition_is_a_400_before_anything_else(server: LiveServer, stream: bool) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: WORD\n  | missing"}
    body = {
        "model": "smollm2",
        "input": "x",
        "tools": [{"type": "custom", "name": "t", "format": form}],
        "stream": stream,
    }
    reply = httpx.post(server.url + "/v1/responses", json=body, timeout=60)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "grammar_unsupported")
    assert error["param"] == "tools[0].format.definition"
    assert "line 1, column 8: the terminal WORD isn't defined (%import common.WORD brings it)" in error["message"]
    chat = {"model": "smollm2", "messages": [{"role": "user", "content": "x"}], "stream": stream}
    nested = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "(a"}}
    chat["tools"] = [{"type": "custom", "custom": {"name": "t", "format": nested}}]
    reply = httpx.post(server.url + "/v1/chat/completions", json=chat, timeout=60)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tools[0].custom.format.grammar.definition"
    assert "line 1, column 1: pattern '(a': unclosed group" in reply.json()["error"]["message"]
