"""x-imp-ignored-fields: a misspelt field has no effect, and its reply says so in every dialect that generates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from imp_server.api.headers import listed
from imp_server.engine.scripted import Vectors, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import CHATML, toy_server

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
    assert reply.headers[HEADER] == "temprature, stop_word", "null is as good as absent"


def test_embeddings_tell(server: LiveServer) -> None:
    server.engine.play(Vectors((bytes(32),)))
    body = {"model": "toy", "input": "hi", "dimension": 3}
    reply = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=10)
    assert (reply.status_code, reply.headers[HEADER]) == (200, "dimension")


@pytest.mark.parametrize(
    "name", ["a\r\nset-cookie: x=1", "temperatur\u00e9", "", "\x00\x7f", "a,b", "\U0001f600" * 40, "x" * 999]
)
def test_names_can_do_no_harm(server: LiveServer, name: str) -> None:
    reply = ask(server, "chat", **{name: 1})
    value = reply.headers[HEADER]
    assert "set-cookie" not in reply.headers
    assert re.fullmatch(r"[A-Za-z0-9_.~%-]{1,64}", value)
    assert (name or '""').startswith(unquote(value))


def test_many_names_are_cut_short(server: LiveServer) -> None:
    names = [f"{i:02d}" + "\u00e9" * 60 for i in range(40)]
    value = ask(server, "llamacpp", **dict.fromkeys(names, 1)).headers[HEADER]
    assert value.split(", ")[16:] == ["..."] and len(value) < 1200
    assert listed(names[:16]).count(",") == 15 and not listed(names[:16]).endswith("...")
