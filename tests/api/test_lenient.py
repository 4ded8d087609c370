"""grammar.lenient over HTTP: the parts that aren't enforced are named in a header, and a broken one is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.engine.client.scripted import text_ids
from imp_server.workers.wire import JobLimits

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server
from tests.toy import CHATML

SCHEMA = {"type": "object", "properties": {"a b": {"type": "string", "pattern": r"(?<=\b)cat\b"}}}
IGNORED = "#/properties/a%20b/pattern"
USER = [{"role": "user", "content": "hi"}]
NAMED = {"name": "cat", "schema": SCHEMA}
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": USER, "response_format": {"type": "json_schema", "json_schema": NAMED}},
    ),
    "completions": (
        "/v1/completions",
        {"prompt": "hi", "max_tokens": 99, "response_format": {"type": "json_schema", "json_schema": NAMED}},
    ),
    "responses": ("/v1/responses", {"input": "hi", "text": {"format": {"type": "json_schema", **NAMED}}}),
    "messages": (
        "/v1/messages",
        {
            "messages": USER,
            "max_tokens": 99,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    ),
    "llamacpp": ("/completion", {"prompt": "hi", "json_schema": SCHEMA}),
    "tgi": ("/generate", {"inputs": "hi", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}),
}
TELLING = ("chat", "completions", "responses", "messages")
"""Dialects whose replies have a place for imp_finish_detail."""


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(CHATML, settings={"grammar.lenient": True}) as live:
        yield live


def ask(server: LiveServer, dialect: str, text: str, **more: Any) -> httpx.Response:
    server.engine.play(text_ids(text))
    path, body = ASKS[dialect]
    reply = httpx.post(server.url + path, json={"model": "toy", **body, **more}, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.parametrize("dialect", list(ASKS))
def test_the_header_names_what_is_ignored(server: LiveServer, dialect: str) -> None:
    assert ask(server, dialect, '{"a b": "cat"}').headers["x-imp-ignored"] == IGNORED


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dialect", TELLING)
def test_a_broken_part_is_told(server: LiveServer, dialect: str, streamed: bool) -> None:
    good = ask(server, dialect, '{"a b": "a cat"}', stream=streamed)
    bad = ask(server, dialect, '{"a b": "concat"}', stream=streamed)
    assert good.headers["x-imp-ignored"] == bad.headers["x-imp-ignored"] == IGNORED
    assert "schema_violated" in bad.text and "schema_violated" not in good.text


def test_no_header_where_all_is_enforced(server: LiveServer) -> None:
    server.engine.play(text_ids("hello"))
    reply = httpx.post(f"{server.url}/v1/chat/completions", json={"model": "toy", "messages": USER}, timeout=10)
    assert "x-imp-ignored" not in reply.headers


def test_by_default_it_is_a_refusal() -> None:
    with toy_server(CHATML) as server:
        path, body = ASKS["chat"]
        reply = httpx.post(server.url + path, json={"model": "toy", **body}, timeout=10)
    assert reply.status_code == 400 and "pattern" in reply.text


@pytest.mark.parametrize("job", ["crash", "never", "sulk"])
def test_a_judgement_that_never_comes_is_none(server: LiveServer, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    assert "schema_violated" not in ask(server, "chat", '{"a b": "a cat"}').text
    monkeypatch.setattr("imp_server.api.checks.JUDGE", f"tests.workers.some_jobs:{job}")
    monkeypatch.setattr(server.services.checks, "_limits", JobLimits(cpu_s=0.2))
    assert "schema_violated" in ask(server, "chat", '{"a b": "a cat"}').text


def test_a_judgement_ends_with_its_client(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(server, "chat", '{"a b": "a cat"}')
    monkeypatch.setattr("imp_server.api.checks.JUDGE", "tests.workers.some_jobs:never")
    monkeypatch.setattr(server.services.checks, "_limits", JobLimits(cpu_s=500))
    server.engine.play(text_ids('{"a b": "a cat"}'))
    path, body = ASKS["chat"]
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + path, json={"model": "toy", **body}, timeout=1)
    until = time.monotonic() + 5
    while server.services.workers.n_children:
        assert time.monotonic() < until
        time.sleep(0.02)
