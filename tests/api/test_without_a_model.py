"""A server without a model still says what is wrong with a request; only a good one is told that no model is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.live_server import LiveServer, live_server

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
FILE = {"type": "input_file", "file_data": "AAAA"}
DOCUMENT = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}


@pytest.fixture(scope="module")
def empty() -> Iterator[LiveServer]:
    with live_server(None) as live:
        yield live


def code_of(body: dict[str, Any]) -> str:
    error = body["error"]
    return str(error["details"]["error_code"] if "details" in error else error["code"])


def chat(*parts: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], "max_tokens": 3}


def responses(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": [{"role": "user", "content": list(parts)}], **more}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(IMAGE)),
        ("/v1/chat/completions", chat({"type": "file", "file": {"file_data": "AAAA"}})),
        ("/v1/chat/completions/input_tokens", chat(IMAGE)),
        ("/apply-template", chat(IMAGE)),
        ("/v1/messages", chat(DOCUMENT)),
        ("/v1/messages/count_tokens", chat(DOCUMENT)),
        ("/v1/responses", responses(FILE)),
        ("/v1/responses", responses(FILE, truncation="auto")),
        ("/v1/responses/input_tokens", responses(FILE)),
        ("/v1/responses/compact", responses(FILE)),
        ("/completion", {"prompt": {"prompt_string": "x", "multimodal_data": ["AAAA"]}}),
        ("/v1/completions", {"model": "m", "prompt": [1, 2], "suffix": "x"}),
        ("/v1/completions", {"model": "m", "prompt": ["a", 2], "suffix": "x"}),
    ],
)
def test_what_no_model_could_take_is_a_400(empty: LiveServer, path: str, body: dict[str, Any]) -> None:
    reply = httpx.post(empty.url + path, json=body, headers={"anthropic-version": "2023-06-01"})
    assert reply.status_code == 400, reply.text
    assert code_of(reply.json()) in {"vision_unavailable", "fim_not_supported"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat({"type": "text", "text": "hi"})),
        ("/v1/messages", chat({"type": "text", "text": "hi"})),
        ("/v1/responses", responses({"type": "input_text", "text": "hi"})),
        ("/v1/responses/compact", responses({"type": "input_text", "text": "hi"})),
        ("/completion", {"prompt": "hi"}),
        ("/v1/embeddings", {"model": "m", "input": "hi"}),
        ("/v1/completions", {"model": "m", "prompt": "hi", "suffix": "x"}),
    ],
)
def test_a_good_request_is_a_503(empty: LiveServer, path: str, body: dict[str, Any]) -> None:
    reply = httpx.post(empty.url + path, json=body)
    assert (reply.status_code, code_of(reply.json())) == (503, "no_model")
