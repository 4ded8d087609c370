"""Faults that other servers had with tools, reasoning and structured answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.core import InvalidRequest
from imp_server.dialects.base import ReplyContext

from tests.dialects.contract_check import checked
from tests.dialects.replies import DIALECTS, USER, run
from tests.dialects.test_every_cut import cut, play
from tests.dialects.test_tool_matrix import (
    HERMES_SIDE,
    LENGTH,
    XML_SIDE,
    body_of,
    calls_in,
    grammar_of,
    takes,
    xml_call,
)
from tests.live.toy_server import call_text
from tests.toy import OPEN_THINKING_CHATML, THINKING_CHATML, byte_model

BOTH = call_text("weather", city="Köln") + "\n" + call_text("clock")
R1 = ModelTextSide(byte_model(OPEN_THINKING_CHATML, context_length=4096))
QWEN3 = ModelTextSide(byte_model(THINKING_CHATML, context_length=4096))
OPERATION = DIALECTS["chat"].operation


def deltas(
    body: dict[str, Any], text: str, places: set[int], side: ModelTextSide = HERMES_SIDE
) -> list[dict[str, Any]]:
    """The deltas of a chat stream."""
    dialect, body = DIALECTS["chat"], checked(OPERATION, body)
    events = asyncio.run(play(side.prepare_chat(dialect.parse(body)), cut(text.encode(), places)))
    stream = dialect.stream(ReplyContext("chatcmpl-1", "toy", 7, "req_1", body))
    frames = stream.open() + [frame for event in events for frame in stream.feed(event)]
    return [json.loads(frame.data)["choices"][0]["delta"] for frame in frames]


def chat_message(side: ModelTextSide, body: dict[str, Any], text: str, places: set[int]) -> dict[str, Any]:
    message: dict[str, Any] = run("chat", side, body, text.encode(), places)["choices"][0]["message"]
    return message


@pytest.mark.parametrize("places", [set(), set(range(400)), {70, 90}])
def test_each_call_is_introduced_once_and_numbered(places: set[int]) -> None:
    parts = [part for delta in deltas(body_of("chat", "auto"), BOTH, places) for part in delta.get("tool_calls", [])]
    assert all(isinstance(part, dict) for part in parts)
    heads = [part for part in parts if "id" in part]
    assert [part["index"] for part in heads] == [0, 1] and len({part["id"] for part in heads}) == 2
    assert all(part["id"] and part["type"] == "function" and part["function"]["name"] for part in heads)
    assert all(set(part) == {"index", "function"} for part in parts if part not in heads)
    assert [part["index"] for part in parts] == sorted(part["index"] for part in parts)


@pytest.mark.parametrize("name", list(DIALECTS))
def test_no_cut_loses_or_repeats_arguments(name: str) -> None:
    data = BOTH.encode()
    for place in range(1, len(data), 3):
        found = calls_in(name, run(name, HERMES_SIDE, body_of(name, "auto"), data, {place, place + 1}))
        assert found == [("weather", {"city": "Köln"}), ("clock", {})]


@pytest.mark.parametrize("content", [None, "", [], "missing"])
def test_a_call_may_be_sent_back_without_content(content: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    turn: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": [call]}
    if content == "missing":
        del turn["content"]
    body = body_of("chat", "auto") | {
        "messages": [*USER, turn, {"role": "tool", "tool_call_id": "call_1", "content": "x"}]
    }
    prompt = HERMES_SIDE.render(DIALECTS["chat"].parse(checked(OPERATION, body)))
    assert '"clock"' in prompt and "None" not in prompt


@pytest.mark.parametrize("unnamed", [{}, {"id": None}])
def test_calls_sent_back_without_an_id_keep_their_results(unnamed: dict[str, None]) -> None:
    """Other servers' ids and arguments may be null: neither is a reason to lose the conversation."""
    calls = [{**unnamed, "type": "function", "function": {"name": n, "arguments": None}} for n in ("clock", "run")]
    told = [{"role": "tool", "content": text} for text in ("noon", "done")]
    turns = [*USER, {"role": "assistant", "content": None, "tool_calls": calls}, *told]
    prompt = HERMES_SIDE.render(
        DIALECTS["chat"].parse(checked(OPERATION, body_of("chat", "auto") | {"messages": turns}))
    )
    marks = [prompt.index(part) for part in ('"clock", "arguments": {}', '"run", "arguments": {}', "noon", "done")]
    assert marks == sorted(marks) and "null" not in prompt and "None" not in prompt


@pytest.mark.parametrize("places", [set(), set(range(60))])
def test_stop_strings_hold_back_neither_tags_nor_text(places: set[int]) -> None:
    body = {"model": "toy", "messages": USER, "stop": ["</th", "xyz", "STOPPED"], "max_tokens": 300}
    said = chat_message(R1, body, "hm</think>an answer, STOP", places)
    assert (said["reasoning"], said["content"]) == ("hm", "an answer, STOP")


@pytest.mark.parametrize("places", [set(), set(range(60))])
def test_the_first_closer_ends_the_thinking_on_both_transports(places: set[int]) -> None:
    said = chat_message(R1, {"model": "toy", "messages": USER}, "a</think>b</think>c", places)
    assert (said["reasoning"], said["content"]) == ("a", "b</think>c")


def test_reasoning_has_both_its_names_and_is_read_by_either() -> None:
    said = chat_message(R1, {"model": "toy", "messages": USER}, "why</think>so", set())
    assert said["reasoning"] == said["reasoning_content"] == "why"
    for field in ("reasoning", "reasoning_content"):
        turns = [*USER, {"role": "assistant", "content": "so", field: "why"}]
        parsed = DIALECTS["chat"].parse(checked(OPERATION, {"model": "toy", "messages": turns}))
        assert parsed.messages[1].reasoning == "why"


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_schema_binds_whatever_strict_says(strict: bool | None) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": strict}}
    grammar = grammar_of("chat", {"model": "toy", "messages": USER, "response_format": form})
    assert takes(grammar, '{"n": 1}') and not takes(grammar, '{"n": "1"}')


@pytest.mark.parametrize(("side", "lead"), [(R1, ""), (QWEN3, "<think>")])
def test_a_schema_binds_the_answer_and_not_the_thinking(side: ModelTextSide, lead: str) -> None:
    more: dict[str, Any] = {
        "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        "responses": {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    }
    for name, dialect in DIALECTS.items():
        thinks: dict[str, Any] = {"thinking": {"type": "adaptive"}} if name == "messages" else {"enable_thinking": True}
        body = {"model": "toy", **dialect.body, dialect.limit: 300, **more[name], **thinks}
        grammar = grammar_of(name, body, side)
        assert takes(grammar, lead + 'free } text, {"n": x}</think>\n\n{"n": 1}')
        assert not takes(grammar, lead + "free</think>\n\nfree") and not takes(grammar, lead + 'free</think>{"n": "1"}')


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("budget", [1, 2, 5])
def test_no_tag_shows_when_the_budget_ends(name: str, budget: int) -> None:
    limit: dict[str, Any] = {"reasoning_budget_tokens": budget}
    if name == "messages":
        limit = {"thinking": {"type": "enabled", "budget_tokens": budget}}
    body = {"model": "toy", **DIALECTS[name].body, DIALECTS[name].limit: 300, **limit}
    reply = run(name, R1, body, b"." * budget + b"The answer.", {budget})
    said = json.dumps(reply)
    assert "think>" not in said and '"The answer."' in said and f'"{"." * budget}"' in said


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("n_more", range(1, 10))
def test_no_piece_of_the_tag_shows_where_the_limit_cuts_the_end_of_the_budget(name: str, n_more: int) -> None:
    """A byte is a token here: the forced closing takes nine of them."""
    limit: dict[str, Any] = {"reasoning_budget_tokens": 5}
    if name == "messages":
        limit = {"thinking": {"type": "enabled", "budget_tokens": 5}}
    body = {"model": "toy", **DIALECTS[name].body, DIALECTS[name].limit: 5 + n_more, **limit}
    said = json.dumps(run(name, R1, body, b".....", {3}))
    assert '"....."' in said and "<" not in said and LENGTH[name] in said


def test_a_named_tool_that_is_missing_is_refused() -> None:
    body = body_of("chat", "named", only="nobody")
    with pytest.raises(InvalidRequest) as caught:
        DIALECTS["chat"].parse(checked(OPERATION, body))
    assert caught.value.code == "unknown_tool"


def test_patterns_search_and_know_shorthand() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "string", "pattern": r"x\d[\w-]"}}, "required": ["id"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    grammar = grammar_of("chat", {"model": "toy", "messages": USER, "tools": tools, "tool_choice": "required"})
    assert takes(grammar, call_text("f", id="before x3- after")) and not takes(grammar, call_text("f", id="x-3"))


def test_a_null_description_is_none() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": None}}]
    parsed = DIALECTS["chat"].parse(checked(OPERATION, {"model": "toy", "messages": USER, "tools": tools}))
    assert parsed.tools[0].description == "" and parsed.tools[0].parameters == {}


@pytest.mark.parametrize("choice", ["required", "named"])
def test_xml_calls_are_forced_in_their_own_notation(choice: str) -> None:
    grammar = grammar_of("chat", body_of("chat", choice, only="run"), XML_SIDE)
    assert (
        takes(grammar, xml_call("x")) and not takes(grammar, "text") and not takes(grammar, call_text("run", code="x"))
    )


def test_strings_of_an_enum_have_no_quotes_of_their_own() -> None:
    kinds = {"a": {"enum": ["x y"]}, "b": {"const": "z"}, "c": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": kinds}}}]
    pairs = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in (("a", "x y"), ("b", "z")))
    text = f"<tool_call>\n<function=f>\n{pairs}</function>\n</tool_call>"
    body = {"model": "toy", "messages": USER, "tools": tools}
    assert calls_in("chat", run("chat", XML_SIDE, body, text.encode(), {9})) == [("f", {"a": "x y", "b": "z"})]
