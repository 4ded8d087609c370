"""Errors of /v1/embeddings speak of what its clients sent: an input, never a prompt or a completion."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from imp_server.api.preparing import check_vectors
from imp_server.core import GenerateRequest, InvalidRequest
from imp_server.engine.client.script import Action
from imp_server.engine.client.scripted import PlayedVectors

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server
from tests.toy import CHATML


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(CHATML, context_length=64) as live:
        yield live


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        (["a", [1.5, 2]], "invalid_type", "input[1][0]"),
        (["a", True], "invalid_type", "input[1]"),
        ([["a"]], "invalid_value", "input[0]"),
        ([None], "invalid_type", "input[0]"),
        ("", "invalid_value", "input"),
        (["a", ""], "invalid_value", "input[1]"),
        ([], "invalid_value", "input"),
        ([[1], []], "invalid_value", "input[1]"),
        ([99999], "unknown_token", "input"),
        ([[1], [99999]], "unknown_token", "input"),
        ("x" * 65, "context_length_exceeded", "input"),
        ("x" * 5000, "context_length_exceeded", "input"),
    ],
)
def test_an_input_at_fault_is_called_input(server: LiveServer, given: Any, code: str, param: str) -> None:
    reply = httpx.post(f"{server.url}/v1/embeddings", json={"model": "toy", "input": given})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)
    assert "prompt" not in error["message"] and "completion" not in error["message"]


@pytest.mark.parametrize(
    ("given", "n"), [(["a", [1, 2]], 2), (["a", 3], 1), ([3, "a"], 1), ([[1], "a"], 2), ({"prompt_string": "x"}, 1)]
)
def test_texts_and_ids_may_be_mixed(server: LiveServer, given: Any, n: int) -> None:
    for _ in range(n):
        server.engine.play(PlayedVectors((bytes(32),)))
    reply = httpx.post(f"{server.url}/v1/embeddings", json={"model": "toy", "input": given})
    assert reply.status_code == 200 and len(reply.json()["data"]) == n


def test_a_list_of_a_list_of_texts_is_told_what_it_lacks(server: LiveServer) -> None:
    reply = httpx.post(f"{server.url}/v1/embeddings", json={"model": "toy", "input": [["a"]]})
    assert reply.json()["error"]["message"] == '"input[0]" must hold at least an integer'


def test_the_whole_context_is_for_the_input(server: LiveServer) -> None:
    server.engine.play(PlayedVectors((bytes(32),)))
    assert httpx.post(f"{server.url}/v1/embeddings", json={"model": "toy", "input": "x" * 64}).status_code == 200


def test_ids_at_fault_are_called_by_the_name_they_came_under(server: LiveServer) -> None:
    for path, field in (("/v1/completions", "prompt"), ("/completion", "prompt"), ("/embedding", "input")):
        reply = httpx.post(server.url + path, json={"model": "toy", field: [99999]})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, field), path


def test_dimensions(server: LiveServer) -> None:
    server.engine.play(PlayedVectors((bytes(32),)))
    ask = {"model": "toy", "input": "hi"}
    reply = httpx.post(f"{server.url}/v1/embeddings", json=ask | {"dimensions": 3})
    assert len(reply.json()["data"][0]["embedding"]) == 3
    refused = httpx.post(f"{server.url}/v1/embeddings", json=ask | {"dimensions": 9}).json()["error"]
    assert (refused["code"], refused["param"]) == ("dimensions_unsupported", "dimensions")


def test_a_vector_for_each_token_has_no_place_with_openai() -> None:
    asked = list[GenerateRequest]()

    def play(request: GenerateRequest, _choice: int) -> list[Action]:
        asked.append(request)
        return [PlayedVectors((bytes(32), bytes(range(32))))]

    with toy_server(CHATML, context_length=64, settings={"model.pooling": "none"}) as live:
        live.engine.answer_with(play)
        refused = httpx.post(f"{live.url}/v1/embeddings", json={"model": "toy", "input": "hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "embeddings_unsupported")
        assert "POST /embedding" in refused.json()["error"]["message"]
        for path, body in (
            ("/embedding", {"content": "hi"}),
            ("/embeddings", {"input": "hi"}),
            ("/embeddings", {"model": "toy", "input": "hi", "embd_normalize": 1}),
        ):
            (entry,) = httpx.post(live.url + path, json=body).raise_for_status().json()
            assert len(entry["embedding"]) == 2 and entry["embedding"][0] == [0.0] * 8
        assert [request.pooling for request in asked] == ["none"] * 3


def test_a_reply_holds_no_more_numbers_than_it_may() -> None:
    def prepared(n_tokens: int, pooling: Any) -> Any:
        return SimpleNamespace(request=GenerateRequest(1, bytes(4 * n_tokens), task="embed", pooling=pooling))

    check_vectors([prepared(256, "none")], 1024, 1)
    check_vectors([prepared(9999, "mean")] * 256, 1024, 1)
    for too_many in ([prepared(200, "none"), prepared(57, "none")], [prepared(9999, "last")] * 257):
        with pytest.raises(InvalidRequest, match=r"257 vectors of 1024 numbers .* a reply may hold 1 .*max_vector_mib"):
            check_vectors(too_many, 1024, 1)
    with toy_server(CHATML, context_length=512, settings={"model.pooling": "none", "server.max_vector_mib": 1}) as live:
        for name in ("content", "input"):
            reply = httpx.post(f"{live.url}/embedding", json={name: ["x" * 512] * 65})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
