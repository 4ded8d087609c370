"""What llama.cpp's clients send that every server of ours takes, whatever its habits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from imp_server.api.services import build_services
from imp_server.config import Config
from imp_server.core import ConfigError
from imp_server.dialects.llamacpp.fields import prompts_of
from imp_server.engine.client.scripted import ScriptedEngine, ScriptGate, text_ids

from tests.api.byte_text import ByteText
from tests.api.conftest import scripted
from tests.api.live_server import live_server
from tests.api.raw_http import BODY, CHAT
from tests.api.test_streams import until
from tests.dialects.contract_check import checked

SETTINGS = {"server.predict_route": "/v9/ask", "server.health_route": "/alive", "server.max_n_probs": 30}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server(scripted, ByteText, settings=SETTINGS) as live:
        yield live.url


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        ({}, []),
        ({"content": ""}, []),
        ({"content": None}, []),
        ({"content": "ab"}, [97, 98]),
        ({"content": ["a", 5, "b", 7]}, [97, 5, 98, 7]),
        ({"content": []}, []),
        ({"prompt": [3]}, [3]),
    ],
)
def test_tokenize(url: str, body: dict[str, Any], ids: list[int]) -> None:
    assert httpx.post(url + "/tokenize", json=body).json() == {"tokens": ids}


def test_tokenize_names_an_id_that_is_none(url: str) -> None:
    error = httpx.post(url + "/tokenize", json={"content": ["a", 2**30]}).json()["error"]
    assert (error["code"], error["param"]) == ("unknown_token", "content[1]")


@pytest.mark.parametrize(
    ("given", "n_vectors"),
    [
        ({"prompt_string": "ab"}, 1),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, 1),
        ([12, 34, "ab", 56], 1),
        (["a", [12, 34]], 2),
        ([[12], [12, "a", 34]], 2),
        (["a", {"prompt_string": "b"}, {"content": [{"type": "text", "text": "c"}]}], 3),
    ],
)
def test_embedding_inputs(given: Any, n_vectors: int) -> None:
    body = checked("openai_embeddings.create_embedding", {"model": "m", "input": given})
    assert len(prompts_of(body["input"])) == n_vectors
    assert prompts_of(checked("llamacpp.embedding", {"content": given})["content"]) == prompts_of(given)


@pytest.mark.parametrize(
    "given",
    [
        [],
        "",
        {"content": "a"},
        {"content": [{"type": "unknown"}]},
        {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
    ],
)
def test_embedding_inputs_that_are_none(url: str, given: Any) -> None:
    assert httpx.post(url + "/v1/embeddings", json={"model": BODY["model"], "input": given}).status_code == 400


def test_the_parts_of_an_embedding_input_are_one_text() -> None:
    parts = {"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}
    assert prompts_of(parts) == prompts_of("a b") == [("a b",)]


def test_n_probs_up_to_the_knob(url: str) -> None:
    statuses = [
        httpx.post(url + "/completion", json={"prompt": "a", "n_predict": 1, "n_probs": n}).status_code
        for n in (30, 31)
    ]
    assert statuses == [200, 400]


def test_no_adapters(url: str) -> None:
    assert httpx.get(url + "/lora-adapters").json() == []
    assert httpx.post(url + "/lora-adapters", json=[]).json() == {"success": True}
    refused = httpx.post(url + "/lora-adapters", json=[{"id": 0, "scale": 1.0}])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "lora_not_found")


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"x": 1}, "the request body must be an array, not an object", None),
        (7, "the request body must be an array, not an integer", None),
        ([7], '"[0]" must be an object, not an integer', "[0]"),
        ([{"scale": 1}], '"[0].id" is missing', "[0].id"),
        ([{"id": 1.5, "scale": 1}], '"[0].id" must be an integer, not a number', "[0].id"),
        ([{"id": 0, "scale": 1}] * 1025, "the request body must be an array of at most 1024", None),
    ],
)
def test_bodies_that_are_arrays(url: str, body: Any, message: str, param: str | None) -> None:
    reply = httpx.post(url + "/lora-adapters", json=body)
    found = reply.json()["error"]
    assert reply.status_code == 400 and found["message"].startswith(message), found
    assert found["param"] == param


@pytest.mark.parametrize(("method", "path"), [("GET", "/tools"), ("POST", "/tools"), ("GET", "/cors-proxy?url=x")])
def test_what_is_never_built(url: str, method: str, path: str) -> None:
    reply = httpx.request(method, url + path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "feature_disabled")
    assert httpx.get(url + "/props").json()["cors_proxy_enabled"] is False


@pytest.mark.parametrize("path", ["/chat/completions/input_tokens", "/responses/input_tokens"])
def test_counts_without_v1(url: str, path: str) -> None:
    body = {"model": BODY["model"], "messages": BODY["messages"], "input": "hello"}
    del body["input" if "chat" in path else "messages"]
    reply = httpx.post(url + path, json=body).json()
    assert reply["object"] == "response.input_tokens" and reply["input_tokens"] > 0


def test_predictions(url: str) -> None:
    instances = [
        {"@requestFormat": "chatCompletions", **BODY, "stream": True},
        {"@requestFormat": "/tokenize", "content": "ab"},
        {"@requestFormat": "chatCompletions", "model": BODY["model"]},
    ]
    reply = httpx.post(url + "/v9/ask", json={"instances": instances})
    whole, tokens, wrong = reply.json()["predictions"]
    assert whole["object"] == "chat.completion" and whole["choices"][0]["message"]["content"]
    assert tokens == {"tokens": [97, 98]} and wrong["error"]["param"] == "messages"


@pytest.mark.parametrize(
    ("instances", "param"),
    [
        ([], "instances"),
        ([{"messages": []}], "instances[0].@requestFormat"),
        ([{"@requestFormat": "nonsense"}], "instances[0].@requestFormat"),
        ([{"@requestFormat": "/admin/suspend"}], "instances[0].@requestFormat"),
        ([{"@requestFormat": "/v9/ask", "instances": []}], "instances[0].@requestFormat"),
        ([{"@requestFormat": "tokenize"}] * 129, "instances"),
        ([{"@requestFormat": "generateStream", "inputs": "a"}], "instances[0].@requestFormat"),
    ],
)
def test_predictions_that_are_refused(url: str, instances: list[Any], param: str) -> None:
    reply = httpx.post(url + "/v9/ask", json={"instances": instances})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_predictions_are_finished_in_a_drain(url: str) -> None:
    gate = ScriptGate(asyncio.Event())

    def gated() -> ScriptedEngine:
        engine = ScriptedEngine(ByteText().vocabulary)
        engine.always(gate, *text_ids("ok"))
        return engine

    with live_server(gated, ByteText, settings=SETTINGS) as live, ThreadPoolExecutor(1) as pool:
        instances = [{"@requestFormat": "completions", "model": "m", "prompt": "a", "max_tokens": 2}] * 18
        whole = pool.submit(httpx.post, live.url + "/v9/ask", json={"instances": instances}, timeout=20)
        until(lambda: len(live.engine._rows) == 16, 10)  # two have yet to begin
        live.services.draining = True
        assert httpx.post(live.url + "/v9/ask", json={"instances": instances}).status_code == 503
        ended = asyncio.run_coroutine_threadsafe(live.services.predictions.ended(), live.loop)
        assert not ended.done()
        live.on_loop(gate.event.set)
        assert [one["choices"][0]["text"] for one in whole.result(20).json()["predictions"]] == ["ok"] * 18
        ended.result(10)


def test_where_predictions_are_asked_for(url: str) -> None:
    assert httpx.get(url + "/alive").status_code == 200
    assert httpx.post(url + "/predict", json={"instances": []}).status_code == 404
    with live_server(scripted, ByteText) as plain:
        assert httpx.post(plain.url + "/predict", json={"instances": []}).status_code == 404
        assert httpx.get(plain.url + "/alive").status_code == 404


@pytest.mark.parametrize(
    ("knob", "route"),
    [
        ("server.health_route", "/v1/models"),
        ("server.health_route", "/models"),
        ("server.health_route", "/completion"),
        ("server.health_route", "alive"),
        ("server.predict_route", "/health"),
        ("server.predict_route", "/chat/completions"),
        ("server.predict_route", "/a/{b}"),
        ("server.predict_route", "/:a"),
        ("server.predict_route", "/"),
    ],
)
def test_routes_that_can_not_be(knob: str, route: str) -> None:
    with pytest.raises(ConfigError, match=f"{knob} "):
        build_services(Config.of({knob: route}), [])


@pytest.mark.parametrize("health", ["/health", "/v1/health", "/v1/endpoints/1/deployedModels/2"])
def test_routes_as_clouds_choose_them(health: str) -> None:
    predict = "/v1/endpoints/1/deployedModels/2:predict"
    with live_server(
        scripted, ByteText, settings={"server.health_route": health, "server.predict_route": predict}
    ) as live:
        assert httpx.get(live.url + health).status_code == 200
        instances = [{"@requestFormat": "tokenize", "content": "a"}]
        assert httpx.post(live.url + predict, json={"instances": instances}).json() == {
            "predictions": [{"tokens": [97]}]
        }
        assert httpx.post(live.url + predict.replace("predict", "other"), json={}).status_code == 404


def test_requests_inside_are_their_owners(url: str) -> None:
    with live_server(scripted, ByteText, settings={**SETTINGS, "server.api_key": ("k",)}) as live:
        body = {"instances": [{"@requestFormat": "chatCompletions", **BODY}]}
        assert httpx.post(live.url + "/v9/ask", json=body).status_code == 401
        reply = httpx.post(live.url + "/v9/ask", json=body, headers={"authorization": "Bearer k"})
        assert reply.json()["predictions"][0]["object"] == "chat.completion"
        assert httpx.post(live.url + CHAT, json=BODY).status_code == 401
