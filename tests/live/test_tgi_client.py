"""The Hugging Face client on TGI's routes: it is given an address and no path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from huggingface_hub import InferenceClient
from imp_server.engine.client.scripted import Emit

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server

TEXT = "Grüße 👋🏽"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server() as live:
        yield live


def scripted(server: LiveServer) -> None:
    """One token per byte, each handed over by itself."""
    server.engine.play(*(Emit([byte]) for byte in TEXT.encode()))


def test_a_text_whole_streamed_and_with_details(server: LiveServer) -> None:
    client = InferenceClient(server.url)
    scripted(server)
    assert client.text_generation("Say hi", max_new_tokens=40) == TEXT
    scripted(server)
    told = client.text_generation("Say hi", max_new_tokens=40, details=True)
    assert told.generated_text == TEXT and told.details is not None
    assert "".join(token.text for token in told.details.tokens) == TEXT
    assert len(told.details.tokens) == len(TEXT.encode()) and told.details.prefill == []
    scripted(server)
    assert "".join(client.text_generation("Say hi", max_new_tokens=40, stream=True)) == TEXT


@pytest.mark.parametrize("path", ["/", "/generate"])
def test_stream_in_the_body_streams(server: LiveServer, path: str) -> None:
    body: dict[str, Any] = {"inputs": "Say hi", "parameters": {"max_new_tokens": 40}}
    scripted(server)
    streamed = httpx.post(server.url + path, json=body | {"stream": True})
    assert streamed.status_code == 200 and streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.count("data:") > len(TEXT)
    scripted(server)
    whole = httpx.post(server.url + path, json=body | {"stream": False}).json()
    assert whole == ([{"generated_text": TEXT}] if path == "/" else {"generated_text": TEXT})


def test_the_prompts_tokens_cant_be_streamed(server: LiveServer) -> None:
    body = {"inputs": "Say hi", "parameters": {"decoder_input_details": True}, "stream": True}
    refused = httpx.post(server.url + "/", json=body)
    assert refused.status_code == 422 and refused.json()["error_type"] == "validation"


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/files"), ("POST", "/v1/v1/messages"), ("POST", "/v1/files")])
def test_a_lost_client_of_anthropics_is_answered_in_its_shape(server: LiveServer, method: str, path: str) -> None:
    answer = httpx.request(method, server.url + path, headers={"anthropic-version": "2023-06-01"})
    told = answer.json()
    assert answer.status_code == 404 and told["type"] == "error" and told["error"]["type"] == "not_found_error"
    assert told["request_id"] == answer.headers["request-id"]
    assert "type" not in httpx.request(method, server.url + path).json()
