"""Tool choices on every dialect: what the grammar lets the model write, and how the reply says it ended."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.api.model_text_side import ModelTextSide
from imp_server.core import GrammarPlan
from imp_server.grammar.engine import GrammarSpace

from tests.dialects.contract_check import checked
from tests.dialects.replies import DIALECTS, USER, run
from tests.live.toy_server import TOOLS_CHATML, call_text
from tests.toy import CHATML, byte_model

XML = CHATML.replace(
    "{% for message",
    "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call><function=n><parameter=p>{% endfor %}{% for message",
    1,
)
"""Teaches Qwen-Coder's notation."""
HERMES_SIDE, XML_SIDE = (ModelTextSide(byte_model(t, context_length=4096)) for t in (TOOLS_CHATML, XML))
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Köln", "Bonn"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
CODE = {"type": "object", "properties": {"code": {"type": "string"}, "dry": {"type": "boolean"}}, "required": ["code"]}
TOOLS: dict[str, Any] = {"weather": WEATHER, "clock": {"type": "object", "properties": {}}, "run": CODE}
CHOICES = ("auto", "required", "named", "allowed", "none")


@cache
def space() -> GrammarSpace:
    return GrammarSpace(HERMES_SIDE.vocabulary)


def body_of(
    name: str, choice: str, *, strict: bool = False, parallel: bool = True, only: str = "clock", **more: Any
) -> dict[str, Any]:
    """`only`: the tool of the choices named and allowed."""
    body: dict[str, Any] = {"model": "toy", **DIALECTS[name].body, DIALECTS[name].limit: 400, **more}
    if name == "messages":
        kinds: dict[str, Any] = {"required": {"type": "any"}, "named": {"type": "tool", "name": only}}
        wanted = kinds.get(choice, {"type": choice})
        body["tool_choice"] = wanted | ({} if parallel or choice == "none" else {"disable_parallel_tool_use": True})
        body["tools"] = [{"name": n, "input_schema": s, "strict": strict} for n, s in TOOLS.items()]
        return body
    body["parallel_tool_calls"] = parallel
    functions = [{"name": n, "parameters": s, "strict": strict} for n, s in TOOLS.items()]
    one: dict[str, Any] = {"type": "function", "name": only}
    if name == "chat":
        body["tools"] = [{"type": "function", "function": f} for f in functions]
        one = {"type": "function", "function": {"name": only}}
        allowed: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    else:
        body["tools"] = [{"type": "function", **f} for f in functions]
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [one]}
    return body | {"tool_choice": {"named": one, "allowed": allowed}.get(choice, choice)}


def grammar_of(name: str, body: dict[str, Any], side: ModelTextSide = HERMES_SIDE) -> GrammarPlan | None:
    dialect = DIALECTS[name]
    return side.prepare_chat(dialect.parse(checked(dialect.operation, body))).request.plan.grammar


def takes(grammar: GrammarPlan | None, text: str) -> bool:
    """May the whole reply be `text`?"""
    if grammar is None:
        return True
    matcher = space().matcher(grammar)
    state = matcher.advance_bytes(matcher.start, text.encode())
    return state is not None and matcher.is_done(state)


def calls_in(name: str, reply: dict[str, Any]) -> list[tuple[str, Any]]:
    if name == "chat":
        made = reply["choices"][0]["message"].get("tool_calls", [])
        return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in made]
    if name == "responses":
        return [(i["name"], json.loads(i["arguments"])) for i in reply["output"] if i["type"] == "function_call"]
    return [(block["name"], block["input"]) for block in reply["content"] if block["type"] == "tool_use"]


def ending(name: str, reply: dict[str, Any]) -> str:
    where = reply["choices"][0] if name == "chat" else reply
    found: str = where[{"chat": "finish_reason", "responses": "status", "messages": "stop_reason"}[name]]
    return found


ENDS = {
    "chat": {"auto": "tool_calls", "required": "tool_calls", "named": "stop", "allowed": "tool_calls"},
    "responses": dict.fromkeys(CHOICES, "completed"),
    "messages": dict.fromkeys(CHOICES, "tool_use"),
}
LENGTH = {"chat": "length", "responses": "incomplete", "messages": "max_tokens"}
DIALECT_CHOICES = [(n, c) for n in DIALECTS for c in CHOICES if c != "none" and (n, c) != ("messages", "allowed")]


@pytest.mark.parametrize(("name", "choice"), DIALECT_CHOICES)
def test_how_a_call_ends_the_reply(name: str, choice: str) -> None:
    """The same whole and streamed: `run` compares them."""
    text = call_text("clock")
    body = body_of(name, choice)
    assert takes(grammar_of(name, body), text)
    reply = run(name, HERMES_SIDE, body, text.encode(), {5, 17})
    assert (calls_in(name, reply), ending(name, reply)) == ([("clock", {})], ENDS[name][choice])


@pytest.mark.parametrize(("name", "choice"), DIALECT_CHOICES)
def test_a_cut_call_ends_with_length(name: str, choice: str) -> None:
    body = body_of(name, choice, only="weather") | {DIALECTS[name].limit: 40}
    reply = run(name, HERMES_SIDE, body, call_text("weather", city="Köln").encode(), {5})
    assert ending(name, reply) == LENGTH[name]


WITHOUT_CALLS = {"chat": "stop", "responses": "completed", "messages": "end_turn"}


@pytest.mark.parametrize(("name", "choice"), [c for c in DIALECT_CHOICES if c[1] != "auto"])
def test_no_piece_of_a_forced_calls_tag_shows_where_the_limit_cuts_it(name: str, choice: str) -> None:
    """A byte is a token here: the tag takes eleven of them."""
    for limit in range(1, 14):
        body = body_of(name, choice) | {DIALECTS[name].limit: limit}
        reply = run(name, HERMES_SIDE, body, call_text("clock").encode(), {2, 7})
        assert ending(name, reply) == LENGTH[name] and calls_in(name, reply) == []
        assert "<" not in json.dumps(reply["choices"] if name == "chat" else reply.get("output", reply.get("content")))


@pytest.mark.parametrize("name", list(DIALECTS))
def test_no_reply_without_a_call_says_that_it_called(name: str) -> None:
    for text in ("<tool_call>\n</tool_call>", "<tool_call>no JSON</tool_call>", '<tool_call>{"name": 5}</tool_call>'):
        reply = run(name, HERMES_SIDE, body_of(name, "auto"), text.encode(), {3, 14})
        assert (calls_in(name, reply), ending(name, reply)) == ([], WITHOUT_CALLS[name])
        assert '"tool_calls"' not in json.dumps(reply)


@pytest.mark.parametrize("name", list(DIALECTS))
def test_what_each_choice_lets_the_model_write(name: str) -> None:
    one, other = call_text("clock"), call_text("weather", city="Bonn")
    wrong = call_text("weather", city="Rome")
    auto = grammar_of(name, body_of(name, "auto"))
    assert takes(auto, "Just text.") and takes(auto, f"Look: {one}\n{other} done") and not takes(auto, wrong)
    required = grammar_of(name, body_of(name, "required"))
    assert takes(required, one) and takes(required, f"{one}\n{other}")
    assert not takes(required, "Just text.") and not takes(required, wrong) and not takes(required, "")
    for choice in ("named", "allowed"):
        if (name, choice) != ("messages", "allowed"):
            grammar = grammar_of(name, body_of(name, choice))
            assert takes(grammar, one) and not takes(grammar, other), choice
    assert not takes(grammar_of(name, body_of(name, "named")), f"{one}\n{one}")
    assert grammar_of(name, body_of(name, "none")) is None


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_without_parallel_calls_there_is_one(name: str, choice: str) -> None:
    one, other = call_text("clock"), call_text("weather", city="Bonn")
    single = grammar_of(name, body_of(name, choice, parallel=False))
    assert takes(single, one) and not takes(single, f"{one}\n{other}") and not takes(single, f"{one} and more")


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("strict", [True, False])
def test_a_tool_of_no_parameters_takes_the_empty_object_only(name: str, strict: bool) -> None:
    grammar = grammar_of(name, body_of(name, "named", strict=strict))
    assert takes(grammar, call_text("clock")) and not takes(grammar, call_text("clock", zone="UTC"))


@pytest.mark.parametrize("name", list(DIALECTS))
def test_tools_beside_a_schema_are_a_call_or_the_schema(name: str) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    formats: dict[str, dict[str, Any]] = {
        "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
        "responses": {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    }
    more = formats[name]
    both = grammar_of(name, body_of(name, "auto", **more))
    assert takes(both, call_text("clock")) and takes(both, '{"ok": true}')
    assert not takes(both, "text") and not takes(both, '{"ok": 1}') and not takes(both, call_text("weather", city="x"))
    call = run(name, HERMES_SIDE, body_of(name, "auto", **more), call_text("clock").encode(), set())
    assert calls_in(name, call) == [("clock", {})]


@pytest.mark.parametrize("name", list(DIALECTS))
def test_with_none_what_looks_like_a_call_is_text(name: str) -> None:
    reply = run(name, HERMES_SIDE, body_of(name, "none"), call_text("clock").encode(), {3, 12})
    assert calls_in(name, reply) == [] and json.dumps(call_text("clock"))[1:-1] in json.dumps(reply)


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("offered", [{"tools": []}, {}])
def test_without_tools_what_looks_like_a_call_is_text(name: str, offered: dict[str, Any]) -> None:
    none: Any = {"type": "none"} if name == "messages" else "none"
    for choice in ({"tool_choice": none}, {}):
        body = {"model": "toy", **DIALECTS[name].body, DIALECTS[name].limit: 400, **offered, **choice}
        reply = run(name, HERMES_SIDE, body, call_text("clock").encode(), {3, 12})
        assert calls_in(name, reply) == [] and json.dumps(call_text("clock"))[1:-1] in json.dumps(reply)


def xml_call(code: str) -> str:
    return f"<tool_call>\n<function=run>\n<parameter=code>\n{code}\n</parameter>\n</function>\n</tool_call>"


SNIPPETS = [
    "def f(x):\n    if x < 3:\n        return \"a</param\" + '</tool_call>'\n\n\treturn x\n",
    "x</parameter> </parameter>",
    "a\n</paramet\n<parameter=x>\n<function=y>",
    '{"json": [1, "\\n"]}',
    "",
    "\n\n",
    "Größe 👋\r\n\\",
    "true",
    "a\n</param",
    "</parameter>\n",
    "<parameters>\n<parameter>\n</parameter>\n</parameters>\n</parameter1>",
]
MODES = [("required", False), ("named", False), ("auto", True), ("auto", False)]


@pytest.mark.parametrize("code", SNIPPETS)
@pytest.mark.parametrize(("choice", "strict"), MODES)
def test_code_in_xml_arguments_comes_back_byte_by_byte(code: str, choice: str, strict: bool) -> None:
    """Forced, strict and auto; whole and streamed; wherever the hand-offs are cut."""
    text = xml_call(code)
    for name in DIALECTS:
        body = body_of(name, choice, strict=strict, only="run")
        assert takes(grammar_of(name, body, XML_SIDE), text)
        for places in (set(), set(range(1, len(text.encode())))):
            reply = run(name, XML_SIDE, body, text.encode(), places)
            assert calls_in(name, reply) == [("run", {"code": code})]


TAG_PARTS = ["\n</parameter", ">", ">\n", "\n</parameter>\n", "</function", "<parameter", "=", "</tool_call>"]
PARTS = [*"ab\n\t\"'\\<>/{}é👋 ", *TAG_PARTS]
CALL_GOES_ON = re.compile(r"\n</parameter>\n\n?(<parameter=|</function>)")
MISSPELT_CLOSER = re.compile(r"^((?!<parameter).)*\n</parameter(?!>)", re.DOTALL)
CALL_ENDS = re.compile(r"</function>\n?\n?</tool_call>")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PARTS) | st.text(st.characters(codec="utf-8"), max_size=9), max_size=12), st.data())
def test_any_code_in_xml_arguments_comes_back_byte_by_byte(parts: list[str], data: st.DataObject) -> None:
    code = "".join(parts)
    if CALL_GOES_ON.search(f"{code}\n") or CALL_ENDS.search(code):
        return  # only the notation itself is what this notation cannot hold
    if MISSPELT_CLOSER.search(f"{code}\n"):
        return  # docs/known-faults.md
    text = xml_call(code).encode()
    body = body_of("chat", "required")
    assert takes(grammar_of("chat", body, XML_SIDE), text.decode())
    places = data.draw(st.sets(st.integers(1, len(text)), max_size=20))
    assert calls_in("chat", run("chat", XML_SIDE, body, text, places)) == [("run", {"code": code})]


def test_history_of_calls_renders_as_the_template_teaches() -> None:
    call = {"id": "call_9", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    history = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "call_9", "content": [{"type": "text", "text": "noon"}]}]  # fmt: skip
    body = body_of("chat", "auto") | {"messages": history}
    prompt = HERMES_SIDE.render(DIALECTS["chat"].parse(checked("openai_chat.create_chat_completion", body)))
    assert "<tool_call>" in prompt and '"clock"' in prompt and "noon" in prompt
