"""Where the routes are: without /v1, below a prefix; and what an unknown path is told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from imp_server.api.paths import Paths
from imp_server.core import ConfigError
from imp_server.engine.client.scripted import PlayedVectors

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import LiveServer, live_server
from tests.api.raw_http import BODY, CHAT
from tests.live.toy_server import toy_server


@pytest.fixture(scope="module")
def toy() -> Iterator[LiveServer]:
    with toy_server() as live:
        yield live


@pytest.mark.parametrize("base", ["", "/v1"])
def test_openai_s_client_works_with_and_without_v1(server: LiveServer, base: str) -> None:
    client = openai.OpenAI(base_url=server.url + base, api_key="x", max_retries=0)
    message = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert message.choices[0].message.content == "Hello wörld"
    assert client.responses.create(model="m", input="hi").output_text == "Hello wörld"
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").id == "m"


@pytest.mark.parametrize("base", ["", "/v1"])
def test_embeddings_without_v1(toy: LiveServer, base: str) -> None:
    toy.engine.play(PlayedVectors((bytes(32),)))
    client = openai.OpenAI(base_url=toy.url + base, api_key="x", max_retries=0)
    assert len(client.embeddings.create(model="toy", input="hi").data[0].embedding) == 8


def test_llama_cpp_s_own_embeddings_stay(toy: LiveServer) -> None:
    for body in ({"content": "hi"}, {"input": "hi"}):
        toy.engine.play(PlayedVectors((bytes(32),)))
        assert httpx.post(toy.url + "/embeddings", json=body).json() == [{"index": 0, "embedding": [[0.0] * 8]}]
    wrong = {"model": "toy", "input": "hi", "encoding_format": "x"}
    assert httpx.post(toy.url + "/embeddings", json=wrong).status_code == 400


def test_methods_without_v1(http: httpx.Client) -> None:
    response = http.get("/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST, OPTIONS")
    assert http.get("/responses/input_tokens").status_code == 405
    assert http.post("/messages", json={}).json()["type"] == "error"


@pytest.mark.parametrize("path", ["/v1/v1/chat/completions", "/v1/v1/models", "/v1/v1"])
def test_v1_twice_says_so(http: httpx.Client, path: str) -> None:
    response = http.post(path, json=BODY)
    assert response.status_code == 404 and "leave it out" in response.json()["error"]["message"]
    assert "leave it out" not in http.post("/v1/nope", json=BODY).text


def test_clients_of_ollama_are_told_which_api_there_is(http: httpx.Client) -> None:
    message = http.post("/api/chat", json=BODY).json()["error"]["message"]
    assert message.endswith("POST /v1/chat/completions")
    assert Paths([CHAT], "/llm").advice("/llm/api/chat").endswith("POST /llm/v1/chat/completions")


@pytest.fixture(scope="module")
def prefixed() -> Iterator[LiveServer]:
    with live_server(scripted, ByteText, settings={"server.api_prefix": "/llm/"}) as live:
        yield live


def test_a_prefix_is_what_every_path_begins_with(prefixed: LiveServer) -> None:
    with httpx.Client(base_url=prefixed.url) as client:
        for path in (CHAT, "/chat/completions", "/completion"):
            assert client.post("/llm" + path, json={**BODY, "prompt": "x"}).status_code == 200
        assert client.get("/llm/health").status_code == client.get("/llm").status_code == 200
        assert client.get("/llm" + CHAT).headers["allow"] == "POST, OPTIONS"
        for path in (CHAT, "/health", "/llmx/health", "/"):
            response = client.get(path)
            assert response.status_code == 404 and "begins with /llm" in response.text
        message = client.post("/llm/v1/messages/nope", json={}).json()
        assert message["type"] == "error", "the dialect's shape, as without a prefix"
        document = client.get("/llm/openapi.json").json()
        assert document["servers"] == [{"url": "/llm"}]
        assert client.post("/llm/v1/v1/messages", json={}).status_code == 404


def test_paths() -> None:
    paths = Paths(["/v1/a", "/a", "/v1/b", "/c"], "x")
    assert paths.served("/v1/a") == ("/x/v1/a",)
    assert paths.served("/v1/b") == ("/x/v1/b", "/x/b")
    assert [paths.meant(p) for p in ("/x/b", "/x/v1/b/", "/x/a", "/b", "/x/d")] == ["/v1/b", "/v1/b", "/a", "", "/d"]
    for prefix in ("/a b", "/a//b", "/{x}"):
        with pytest.raises(ConfigError, match="api-prefix"):
            Paths([], prefix)


# --- names of models ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def any_name() -> Iterator[LiveServer]:
    with live_server(scripted, ByteText, settings={"server.model_names": "any"}) as live:
        yield live


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses", "/v1/completions"])
@pytest.mark.parametrize("named", [{}, {"model": "gpt-4o"}, {"model": "m"}, {"model": None}, {"model": ""}])
def test_any_name_means_the_loaded_model(any_name: LiveServer, path: str, named: dict[str, str]) -> None:
    text = {"/v1/responses": {"input": "x"}, "/v1/completions": {"prompt": "x"}}
    body = {"max_tokens": 20, **text.get(path, {"messages": BODY["messages"]}), **named}
    response = httpx.post(any_name.url + path, json=body)
    assert (response.status_code, response.json()["model"]) == (200, "m")
    streamed = httpx.post(any_name.url + path, json=body | {"stream": True}).text
    assert '"model":"gpt-4o"' not in streamed


def test_any_name_is_found(any_name: LiveServer) -> None:
    assert httpx.get(any_name.url + "/v1/models/gpt-4o").json()["id"] == "m"
    assert [m["id"] for m in httpx.get(any_name.url + "/v1/models").json()["data"]] == ["m"]


def test_strict_names_are_asked_for(http: httpx.Client) -> None:
    assert http.post(CHAT, json={"messages": BODY["messages"]}).status_code == 400
    assert http.post(CHAT, json={**BODY, "model": "gpt-4o"}).status_code == 404


def test_any_name_needs_a_model() -> None:
    with live_server(None, settings={"server.model_names": "any"}) as live:
        response = httpx.post(live.url + CHAT, content=json.dumps({"messages": BODY["messages"]}))
        assert response.status_code == 415
        response = httpx.post(live.url + CHAT, json={"messages": BODY["messages"]})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "no_model")
