"""The default model, sampled wildly: what the request demands of the answer holds every time, through the whole server.

In `make test` a few seeds; all of them are marked slow.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.backends import choose
from imp_server.config import Config
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine

from tests.api.live_server import LiveServer, live_server
from tests.real_model import smollm2

pytestmark = pytest.mark.skipif(choose("auto") == "reference", reason="the native library isn't built")
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "notes": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
SEARCH = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 0}},
    "required": ["query"],
}
SCHEMAS = {"weather": WEATHER, "search": SEARCH, "ping": {"type": "object", "properties": {}}}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z]"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "address": {"$ref": "#/$defs/address"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "age", "address", "tags"],
    "additionalProperties": False,
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["zip"],
        }
    },
}
CIRCLE = {
    "type": "object",
    "properties": {"kind": {"const": "circle"}, "r": {"type": "number", "exclusiveMinimum": 0}},
    "required": ["kind", "r"],
    "additionalProperties": False,
}
LINE = {
    "type": "object",
    "properties": {
        "kind": {"const": "line"},
        "to": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    },
    "required": ["kind", "to"],
    "additionalProperties": False,
}
SHAPE = {"oneOf": [CIRCLE, LINE]}
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.3, "top_p": 1, "top_k": 0},
    {"temperature": 1.3, "min_p": 0.05, "top_k": 0},
    {"temperature": 2, "top_p": 1, "top_k": 0},
]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    config = Config.of({})
    path = str(smollm2())

    def engine() -> InlineEngine:
        return InlineEngine(functools.partial(build_engine, path, "smollm2", config.for_engine()))

    with live_server(engine, lambda: ModelTextSide.load(path, config), model="smollm2") as live:
        yield live
        counters = httpx.get(live.url + "/metrics", timeout=20).text
        dead_ends = re.findall(r"^imp_grammar_dead_ends_total\S* (\S+)$", counters, re.MULTILINE)
        assert dead_ends and float(dead_ends[0]) == 0, "the grammar led a reply into a dead end"


def chat(server: LiveServer, **body: Any) -> dict[str, Any]:
    fields = {"model": "smollm2", **body}
    reply = httpx.post(server.url + CHAT, json=fields, timeout=300)
    assert reply.status_code == 200, reply.text
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


def tool(name: str) -> dict[str, Any]:
    function = {"name": name, "description": f"Does {name}.", "parameters": SCHEMAS[name]}
    return {"type": "function", "function": function}


def required_call(server: LiveServer, seed: int) -> None:
    """120 tokens: many of these calls would run on for longer, and end as they stand; or the limit is between two."""
    choice = chat(
        server,
        messages=[{"role": "user", "content": f"How will the weather be in city number {seed}?"}],
        tools=[tool(name) for name in SCHEMAS],
        tool_choice="required",
        parallel_tool_calls=seed % 2 == 0,
        max_tokens=120,
        temperature=1.5,
        top_p=1,
        top_k=0,
        seed=seed,
    )
    calls = choice["message"]["tool_calls"]
    is_cut = choice.get("imp_finish_detail") == "call_cut"
    ends = {"length"} if is_cut else {"tool_calls", "length"} if seed % 2 == 0 else {"tool_calls"}
    assert choice["finish_reason"] in ends, (seed, choice)
    assert not (choice["message"]["content"] or "").strip()
    assert len(calls) == 1 or seed % 2 == 0
    for call in calls[: len(calls) - is_cut]:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])


def in_batches(server: LiveServer, check: Any, numbers: range) -> None:
    """Eight at a time, with an unconstrained reply among them."""
    with ThreadPoolExecutor(8) as pool:
        free = [{"role": "user", "content": "Tell me a story."}]
        loud = [pool.submit(chat, server, messages=free, max_tokens=60, temperature=1, seed=i) for i in numbers[::7]]
        done = [pool.submit(check, server, number) for number in numbers]
        for each in (*done, *loud):
            each.result()


def structured(server: LiveServer, number: int) -> None:
    schema: Any = (PERSON, SHAPE, WEATHER)[number % 3]
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    choice = chat(
        server,
        messages=[{"role": "user", "content": f"Invent example number {number} as JSON."}],
        response_format=form,
        max_tokens=100,
        seed=number,
        **SAMPLINGS[number % len(SAMPLINGS)],
    )
    # A value whose last token is the last that may be written ends with `length`, and is whole all the same.
    assert choice["finish_reason"] in ("stop", "length"), (number, choice)
    jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_rows_that_only_the_host_can_sample_are_counted_by_reason(server: LiveServer) -> None:
    def fallbacks() -> float:
        text = httpx.get(server.url + "/metrics", timeout=20).text
        found = re.findall(
            r'^imp_constrained_eager_fallback_total\{.*reason="typical_p".*\} (\S+)$', text, re.MULTILINE
        )
        return float(found[0])

    before = fallbacks()
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"enum": ["yes", "no"]}}}
    asked = {"messages": [{"role": "user", "content": "Is water wet?"}], "response_format": form, "max_tokens": 20}
    chat(server, temperature=1, seed=1, **asked)
    assert fallbacks() == before
    chat(server, temperature=1, seed=1, typical_p=0.9, **asked)
    assert fallbacks() > before


def test_a_required_call_obeys_its_schema_at_any_seed(server: LiveServer) -> None:
    in_batches(server, required_call, range(6))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_required_call_obeys_its_schema_at_fifty_seeds(server: LiveServer) -> None:
    in_batches(server, required_call, range(50))


def ended(server: LiveServer, dialect: str, wanted: str, limit: int) -> tuple[Any, str, Any]:
    """What an answer of at most `limit` tokens holds, how it ended, and the detail of that."""
    ask = [{"role": "user", "content": "Describe a person at length."}]
    sampling = {"model": "smollm2", "temperature": 1.5, "seed": limit}
    function = {"name": "save", "parameters": PERSON}
    if dialect == "chat":
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        called = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
        body = {"messages": ask, "max_tokens": limit}
        path: str = CHAT
        more: dict[str, Any] = {"response_format": schema} if wanted == "schema" else called
    elif dialect == "responses":
        schema = {"format": {"type": "json_schema", "name": "person", "schema": PERSON}}
        called = {"tools": [{"type": "function", **function}], "tool_choice": "required"}
        body = {"input": ask, "max_output_tokens": limit}
        path, more = "/v1/responses", {"text": schema} if wanted == "schema" else called
    else:
        form = {"output_config": {"format": {"type": "json_schema", "schema": PERSON}}}
        tools = [{"name": "save", "input_schema": PERSON}]
        body = {"messages": ask, "max_tokens": limit}
        path, more = "/v1/messages", form if wanted == "schema" else {"tools": tools, "tool_choice": {"type": "any"}}
    reply = httpx.post(server.url + path, json={**sampling, **body, **more}, timeout=300)
    assert reply.status_code == 200, reply.text
    told = reply.json()
    if dialect == "chat":
        [told] = told["choices"]
    reason = told[{"chat": "finish_reason", "responses": "status", "messages": "stop_reason"}[dialect]]
    return _written_in(told, wanted), reason, told.get("imp_finish_detail")


def _written_in(reply: dict[str, Any], wanted: str) -> Any:
    """Text of the answer, or of the arguments of its first call; None if there is no call."""
    if "message" in reply:
        message = reply["message"]
        return message["content"] if wanted == "schema" else message["tool_calls"][0]["function"]["arguments"]
    if "output" in reply:
        item = reply["output"][0]
        return item["content"][0]["text"] if wanted == "schema" else item["arguments"]
    return next((block["text"] if wanted == "schema" else block["input"] for block in reply["content"]), None)


AT_A_LIMIT = {"chat": "length", "responses": "incomplete", "messages": "max_tokens"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_at_max_tokens_an_answer_still_parses(server: LiveServer, dialect: str) -> None:
    for limit in (64, 80):
        text, reason, detail = ended(server, dialect, "schema", limit)
        jsonschema.validate(json.loads(text), PERSON)
        assert (reason == AT_A_LIMIT[dialect]) == (detail == "length_steered")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_at_max_tokens_a_call_is_cut_as_it_stands(server: LiveServer, dialect: str) -> None:
    written, reason, detail = ended(server, dialect, "call", 30)
    assert (reason, detail) == (AT_A_LIMIT[dialect], "call_cut")
    if dialect == "messages":
        assert written is None
    else:
        assert written.startswith("{")
        with pytest.raises(ValueError):
            json.loads(written)


@pytest.mark.timeout(300)
def test_structured_answers_satisfy_their_schema(server: LiveServer) -> None:
    in_batches(server, structured, range(30))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_structured_answers_satisfy_their_schema_three_hundred_times(server: LiveServer) -> None:
    in_batches(server, structured, range(300))
