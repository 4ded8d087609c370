"""x-imp-ignored-fields: what has no effect in a request is named by its reply, in every dialect that generates."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from imp_server.api.headers import listed
from imp_server.api.ignored_fields import KnownFields
from imp_server.engine.client.scripted import PlayedVectors, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server
from tests.toy import CHATML

HEADER = "x-imp-ignored-fields"
USER = [{"role": "user", "content": "hi"}]
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": USER}),
    "completions": ("/v1/completions", {"prompt": "hi"}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "messages": ("/v1/messages", {"messages": USER, "max_tokens": 9}),
    "llamacpp": ("/completion", {"prompt": "hi"}),
    "tgi": ("/generate", {"inputs": "hi"}),
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(CHATML) as live:
        yield live


def ask(server: LiveServer, dialect: str, **more: Any) -> httpx.Response:
    server.engine.play(text_ids("ok"))
    path, body = ASKS[dialect]
    model = {} if dialect == "tgi" else {"model": "toy"}
    reply = httpx.post(server.url + path, json=model | body | more, timeout=10)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dialect", ASKS)
def test_every_dialect_tells(server: LiveServer, dialect: str, streamed: bool) -> None:
    more = {"stream": streamed} if dialect != "tgi" else {}
    assert HEADER not in ask(server, dialect, **more).headers
    reply = ask(server, dialect, temprature=0, maxtokens=None, stop_word=["x"], **more)
    assert reply.headers[HEADER] == "/temprature, /stop_word", "null is as good as absent"


def test_embeddings_tell(server: LiveServer) -> None:
    server.engine.play(PlayedVectors((bytes(32),)))
    body = {"model": "toy", "input": "hi", "dimension": 3}
    reply = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=10)
    assert (reply.status_code, reply.headers[HEADER]) == (200, "/dimension")


@pytest.mark.parametrize(
    "name", ["a\r\nset-cookie: x=1", "temperatur\u00e9", "", "\x00\x7f", "a,b", "a/b~c", "\U0001f600" * 40, "x" * 999]
)
def test_names_can_do_no_harm(server: LiveServer, name: str) -> None:
    reply = ask(server, "chat", **{name: 1})
    value = reply.headers[HEADER]
    assert "set-cookie" not in reply.headers
    assert re.fullmatch(r"/[A-Za-z0-9_.~%-]{0,127}", value)
    assert name.startswith(unquote(value.removeprefix("/")).replace("~1", "/").replace("~0", "~"))


def test_many_names_are_cut_short(server: LiveServer) -> None:
    names = [f"{i:02d}" + "\u00e9" * 60 for i in range(40)]
    value = ask(server, "llamacpp", **dict.fromkeys(names, 1)).headers[HEADER]
    assert value.split(", ")[16:] == ["..."] and len(value) < 2200
    assert listed(names[:16]).count(",") == 15 and not listed(names[:16]).endswith("...")


WEATHER = {"type": "object", "properties": {"city": {"type": "string", "x-note": 1}}, "unknownKeyword": True}
DEEP: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b", "nam": "x"}]},
     "/messages/1/nam"),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "txt": 1}]}]},
     "/messages/0/content/0/txt"),
    ("chat", {"messages": [{"role": "user", "content": "a", "tool_calls": []}]}, "/messages/0/tool_calls"),
    ("chat", {"stream_options": {"include_usages": True}}, "/stream_options/include_usages"),
    ("chat", {"structured_outputs": {"jsn": {}}}, "/structured_outputs/jsn"),
    ("chat", {"tools": [{"type": "function", "function": {"name": "f", "paramters": {}, "parameters": WEATHER}}]},
     "/tools/0/function/paramters"),
    ("responses", {"reasoning": {"effrt": "low"}, "text": {"format": {"type": "text", "nme": 1}}},
     "/reasoning/effrt, /text/format/nme"),
    ("responses", {"tools": [{"type": "function", "name": "f", "parameters": WEATHER}, {"type": "web_search", "a": 1}]},
     "/tools/1"),
    ("responses", {"tools": [{"type": name} for name in ("code_interpreter", "mcp", "bash", "image_generation")]},
     "/tools/0, /tools/1, /tools/2, /tools/3"),
    ("responses",
     {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "c"}, {"type": "x"}]}]},
     "/tools/0/tools/1"),
    ("responses", {"input": [{"type": "web_search_call", "id": "ws_1"}, {"role": "user", "content": "hi", "rol": 1}]},
     "/input/0, /input/1/rol"),
    ("messages", {"tools": [{"name": "f", "input_schema": WEATHER}, {"type": "web_search_20250305", "name": "w"}]},
     "/tools/1"),
    ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}], "metadata": {"user": "x"}},
     "/tools/0, /metadata/user"),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "a/b~": 1}]}]},
     "/messages/0/content/0/a~1b~0"),
    ("llamacpp", {"logit_bias": {"5": 1}, "response_fields": ["content"], "lora": None, "nested": {"a": 1}}, "/nested"),
    ("tgi", {"parameters": {"temperture": 1, "grammar": {"type": "json", "value": WEATHER, "valu": 1}}},
     "/parameters/temperture, /parameters/grammar/valu"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "more", "pointers"), DEEP)
def test_at_any_depth(server: LiveServer, dialect: str, more: dict[str, Any], pointers: str) -> None:
    assert ask(server, dialect, **more).headers[HEADER] == pointers


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_what_is_the_clients_own_is_never_named(server: LiveServer, dialect: str) -> None:
    own = {"metadata": {"user_id": "x"} if dialect == "messages" else {"any": "x"}}
    tool = {
        "chat": {"type": "function", "function": {"name": "f", "parameters": WEATHER}},
        "responses": {"type": "function", "name": "f", "parameters": WEATHER},
        "messages": {"name": "f", "input_schema": WEATHER},
    }[dialect]
    more = own | {"tools": [tool], "chat_template_kwargs": {"anything": {"deep": 1}}}
    assert HEADER not in ask(server, dialect, **more).headers


def test_our_own_answers_come_back_without_complaint(server: LiveServer) -> None:
    """Clients send what they got; nothing that the server wrote itself is called unknown."""
    message = ask(server, "chat").json()["choices"][0]["message"]
    assert HEADER not in ask(server, "chat", messages=[*USER, message, *USER]).headers
    output = ask(server, "responses", include=["message.output_text.logprobs"]).json()["output"]
    assert HEADER not in ask(server, "responses", input=[*USER, *output, *USER]).headers
    content = ask(server, "messages").json()["content"]
    messages = [*USER, {"role": "assistant", "content": content}, *USER]
    assert HEADER not in ask(server, "messages", messages=messages).headers


def test_a_million_parts_are_looked_through_in_the_time_of_one_reading(server: LiveServer) -> None:
    parts = [{"type": "text", "text": "a"}] * 100_000
    known = KnownFields(server.services.contract, {"$ref": "#/components/schemas/ChatRequest"})
    began = time.process_time()
    assert known.ignored({"messages": [{"role": "user", "content": [*parts, {"type": "text", "x": 1}]}]}, 17) == [
        "/messages/0/content/100000/x"
    ]
    assert time.process_time() - began < 2


def test_tags_of_a_clients_own_are_not_remembered_without_end(server: LiveServer) -> None:
    known = KnownFields(server.services.contract, {"$ref": "#/components/schemas/ResponsesHostedTool"})
    for i in range(1000):
        assert known.ignored({"type": f"tool_{i}"}, 17) == [""]
    assert len(known._shapes) <= 64
