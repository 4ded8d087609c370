"""server.habits = llama-server: its errors and small ways, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import live_server
from tests.api.raw_http import BODY, CHAT

SETTINGS = {"server.habits": "llama-server", "server.slots": False, "metrics.enabled": False, "model.max_seq_len": 512}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server(scripted, ByteText, check_replies=False, settings=SETTINGS) as live:
        yield live.url


@pytest.fixture(scope="module")
def usual() -> Iterator[str]:
    with live_server(scripted, ByteText) as live:
        yield live.url


def error(reply: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = reply.json()["error"]
    assert found["code"] == reply.status_code
    return found


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", CHAT, {"messages": 7}, 400, "invalid_request_error"),
        ("POST", "/completion", {}, 400, "invalid_request_error"),
        ("GET", "/nowhere", None, 404, "not_found_error"),
        ("GET", "/v1/nowhere", None, 404, "not_found_error"),
        ("GET", "/slots", None, 501, "not_supported_error"),
        ("GET", "/metrics", None, 501, "not_supported_error"),
    ],
)
def test_errors(url: str, method: str, path: str, body: Any, status: int, kind: str) -> None:
    reply = httpx.request(method, url + path, json=body)
    assert reply.status_code == status and set(error(reply)) == {"code", "message", "type"}
    assert error(reply)["type"] == kind


def test_a_prompt_that_is_too_long_says_by_how_much(url: str) -> None:
    reply = httpx.post(url + CHAT, json={**BODY, "messages": [{"role": "user", "content": "x" * 9000}]})
    found = error(reply)
    assert found["type"] == "exceed_context_size_error" and found["n_prompt_tokens"] > found["n_ctx"] > 0


def test_replies(url: str, usual: str) -> None:
    there = [httpx.post(u + CHAT, json=BODY).json()["system_fingerprint"] for u in (url, usual)]
    assert there[0].startswith("b") and there[1].startswith("fp_imp")
    firsts = []
    for each in (url, usual):
        with httpx.stream("POST", each + CHAT, json={**BODY, "stream": True}) as stream:
            firsts.append(next(line for line in stream.iter_lines() if line.startswith("data:")))
    assert '"content":null' in firsts[0] and '"content":""' in firsts[1]


def test_other_dialects_keep_their_shapes(url: str) -> None:
    reply = httpx.post(url + "/v1/messages", json={})
    assert reply.json()["type"] == "error"


def test_both_routes_answer_by_default(usual: str) -> None:
    assert [httpx.get(usual + path).status_code for path in ("/slots", "/metrics")] == [200, 200]
