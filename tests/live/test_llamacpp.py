"""llama.cpp's native routes and TGI's probes on a live server."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.engine.client.scripted import PlayedVectors, ScriptGate, text_ids

from tests.api.live_server import LiveServer, live_server
from tests.live.toy_server import TOOLS_CHATML, prompt_of, toy_server


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        yield live


def post(server: LiveServer, path: str = "/completion", **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=20)


def get(server: LiveServer, path: str) -> Any:
    return httpx.get(server.url + path).json()


def test_completion(server: LiveServer) -> None:
    server.engine.play(text_ids("Hello wörld"))
    body = post(server, prompt="Once", n_probs=1).json()
    assert body["content"] == "Hello wörld" and prompt_of(server) == "Once"
    assert body["stop_type"] == "eos" and body["tokens_evaluated"] == 4 and body["model"] == "toy"
    data = bytes(b for entry in body["completion_probabilities"] for b in entry["bytes"])
    assert data.decode() == "Hello wörld"


def test_both_names_and_mixed_prompts(server: LiveServer) -> None:
    body = post(server, "/completions", prompt=["Gr", 0xC3, 0xBC, "n"], n_predict=0).json()
    assert body["prompt"] == prompt_of(server) == "Grün" and body["stop_type"] == "limit"
    assert post(server, prompt="<|im_start|>user").json() and prompt_of(server) == "<|im_start|>user"
    assert server.engine.requests_seen[-1].ids[:4] == (257).to_bytes(4, "little")


def test_several_prompts(server: LiveServer) -> None:
    server.engine.play(text_ids("one"))
    server.engine.play(text_ids("two"))
    assert [item["content"] for item in post(server, prompt=["a", "b"]).json()] == ["one", "two"]


def test_stream_has_no_sentinel_and_ends_with_stop(server: LiveServer) -> None:
    server.engine.play(text_ids("one two"))
    text = post(server, prompt="a", stream=True, stop=["two"]).text
    items = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
    assert "".join(item["content"] for item in items) == "one "
    assert items[-1]["stop_type"] == "word" and items[-1]["stopping_word"] == "two" and "[DONE]" not in text


def test_a_line_that_is_not_indented_enough_ends_the_completion(server: LiveServer) -> None:
    for stream in (False, True):
        server.engine.play(text_ids("def f():\n  a\n b\n"))
        text = post(server, prompt="a", n_indent=2, n_probs=1, t_max_predict_ms=250_000, stream=stream).text
        items = [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line]
        assert "".join(item["content"] for item in items) == "def f():\n  a\n "
        assert (items[-1]["stop"], items[-1]["stop_type"], items[-1]["has_new_line"]) == (True, "limit", True)
        entries = [entry for item in items for entry in item["completion_probabilities"]]
        assert b"".join(bytes(entry["bytes"]) for entry in entries) == b"def f():\n  a\n "
    assert server.engine.requests_seen[-1].options.predict_s == 250.0


def test_logit_bias_of_a_text_is_that_of_its_tokens(server: LiveServer) -> None:
    assert post(server, prompt="a", logit_bias=[["xy", 2], [5, False]]).status_code == 200
    assert dict(server.engine.requests_seen[-1].sampling.logit_bias) == {ord("x"): 2.0, ord("y"): 2.0, 5: -1e6}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"prompt": [999999]}, 400, "unknown_token"),
        ({"prompt": "a", "id_slot": 999}, 400, "unknown_slot"),
        ({"prompt": "a", "model": "gone"}, 404, "model_not_found"),
        ({"prompt": "x" * 40000}, 400, "context_length_exceeded"),
        ({"prompt": "a", "temperature": "hot"}, 400, "invalid_type"),
        ({}, 400, "missing_required_parameter"),
    ],
)
def test_refusals(server: LiveServer, body: dict[str, Any], status: int, code: str) -> None:
    response = post(server, **body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_apply_template_and_token_count_agree_with_a_chat(server: LiveServer) -> None:
    chat = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
    prompt = post(server, "/apply-template", messages=chat["messages"]).json()["prompt"]
    counted = post(server, "/v1/chat/completions/input_tokens", **chat).json()
    usage = post(server, "/v1/chat/completions", **chat).json()["usage"]
    assert prompt == prompt_of(server)
    assert counted == {"object": "response.input_tokens", "input_tokens": usage["prompt_tokens"]}


def test_all_probes_agree_on_the_context_length(server: LiveServer) -> None:
    (model,) = get(server, "/v1/models")["data"]
    props, info = get(server, "/props"), get(server, "/info")
    assert model["max_model_len"] == model["meta"]["n_ctx_train"] == 32768
    assert props["n_ctx"] == props["default_generation_settings"]["n_ctx"] == info["max_total_tokens"] == 32768
    assert {slot["n_ctx"] for slot in get(server, "/slots")} == {32768}
    assert info["max_input_tokens"] == 32767 and info["model_id"] == props["model_alias"] == model["id"]
    assert len(get(server, "/slots")) == props["total_slots"]
    assert props["chat_template"] == TOOLS_CHATML and props["default_generation_settings"]["params"]["top_k"] >= 0


def test_slots_show_what_runs_and_fail_when_all_are_busy(server: LiveServer) -> None:
    n_slots = len(get(server, "/slots"))
    assert not any(slot["is_processing"] for slot in get(server, "/slots?fail_on_no_slot=1"))
    gate = server.on_loop(asyncio.Event)
    before = len(server.engine.requests_seen)
    for _ in range(n_slots):
        server.engine.play(ScriptGate(gate))
    threads = [threading.Thread(target=post, args=(server,), kwargs={"prompt": "a"}) for _ in range(n_slots)]
    for thread in threads:
        thread.start()
    while sum(slot["is_processing"] for slot in get(server, "/slots")) < n_slots:
        threads[0].join(0.01)
    refused = httpx.get(f"{server.url}/slots?fail_on_no_slot=1")
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "unavailable"
    assert len(server.engine.requests_seen) == before + n_slots
    server.on_loop(gate.set)
    for thread in threads:
        thread.join(10)


def test_metrics_are_prometheus_text(server: LiveServer) -> None:
    response = httpx.get(f"{server.url}/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    assert float(lines["imp_uptime_seconds"]) > 0 and lines['imp_model_loaded{model="toy"}'] == "1"
    assert "imp_responses_store_entries" in lines and lines["imp_grammar_dead_ends_total"] == "0"


def test_a_scrape_changes_nothing_for_the_next_one(server: LiveServer) -> None:
    assert post(server, prompt="swordfish", n_predict=1).status_code == 200
    first, second = (httpx.get(f"{server.url}/metrics").text.splitlines() for _ in range(2))
    assert [line for line in first if "uptime" not in line] == [line for line in second if "uptime" not in line]


def test_ping_is_empty_and_says_no_without_a_model(server: LiveServer) -> None:
    pong = httpx.get(f"{server.url}/ping")
    assert (pong.status_code, pong.content) == (200, b"")
    with live_server(None) as bare:
        refused = httpx.get(f"{bare.url}/ping")
        assert refused.status_code == 503 and set(refused.json()) == {"error", "error_type"}
        assert get(bare, "/props")["n_ctx"] == get(bare, "/info")["max_total_tokens"] == 0
        assert get(bare, "/slots") == [] and httpx.get(f"{bare.url}/metrics").status_code == 200


def test_tgi_errors_have_its_shape(server: LiveServer) -> None:
    wrong = httpx.post(f"{server.url}/info")
    assert wrong.status_code == 405 and set(wrong.json()) == {"error", "error_type"}


def test_tgi_generate(server: LiveServer) -> None:
    server.engine.play(text_ids("one two"))
    body = post(server, "/generate", inputs="a", parameters={"details": True, "max_new_tokens": 3}).json()
    assert body["generated_text"] == "one" and body["details"]["finish_reason"] == "length"
    assert [token["id"] for token in body["details"]["tokens"]] == [*b"one"]
    server.engine.play(text_ids("one"))
    text = post(server, "/generate_stream", inputs="a").text
    sent = [json.loads(line[5:]) for line in text.split("\n") if line.startswith("data:")]
    assert "".join(event["token"]["text"] for event in sent) == sent[-1]["generated_text"] == "one"
    refused = post(server, "/generate", inputs="x" * 40000)
    assert refused.status_code == 422 and refused.json()["error_type"] == "validation"


def test_native_embeddings_are_those_of_the_openai_route(server: LiveServer) -> None:
    vector = struct.pack("<3f", 3.0, 0.0, -4.0)
    for _ in range(7):
        server.engine.play(PlayedVectors((vector,)))
    openai = post(server, "/v1/embeddings", model="toy", input=["hello", "hi"]).json()
    for path, body in (("/embedding", {"content": ["hello", "hi"]}), ("/embeddings", {"input": ["hello", "hi"]})):
        native = post(server, path, **body).json()
        assert [entry["index"] for entry in native] == [0, 1]
        assert [entry["embedding"][0] for entry in native] == [entry["embedding"] for entry in openai["data"]]
    raw = post(server, "/embedding", content="hello", embd_normalize=-1).json()[0]["embedding"][0]
    unit = openai["data"][0]["embedding"]
    assert raw == [3.0, 0.0, -4.0] and unit == pytest.approx([0.6, 0.0, -0.8])
    for nothing in ({"text": "hello"}, {"content": None}, {"content": None, "input": None}):
        assert post(server, "/embedding", **nothing).status_code == 400


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/embeddings", "input"), ("/embedding", "content"), ("/embeddings", "input")]
)
def test_a_text_too_long_to_embed_is_refused_and_not_cut(server: LiveServer, path: str, field: str) -> None:
    refused = post(server, path, **{"model": "toy", field: ["short", "x" * 40_000]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(("path", "field"), [("/embedding", "content"), ("/embeddings", "input")])
def test_a_model_that_makes_no_embeddings_says_so(path: str, field: str) -> None:
    with toy_server(tasks=("generate",)) as live:
        refused = post(live, path, **{field: "hello"})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (400, "embeddings_unsupported", "model")


def test_the_servers_own_norm_yields_to_the_requests() -> None:
    with toy_server(settings={"server.embd_normalize": -1}) as live:
        for _ in range(3):
            live.engine.play(PlayedVectors((struct.pack("<3f", 3.0, 0.0, -4.0),)))
        assert post(live, "/embedding", content="hello").json()[0]["embedding"][0] == [3.0, 0.0, -4.0]
        openai = post(live, "/v1/embeddings", model="toy", input="hello").json()
        assert openai["data"][0]["embedding"] == [3.0, 0.0, -4.0]
        unit = post(live, "/embedding", content="hello", embd_normalize=2).json()[0]["embedding"][0]
        assert unit == pytest.approx([0.6, 0.0, -0.8])


def test_props_tell_the_template_and_the_settings_in_force(server: LiveServer) -> None:
    props = get(server, "/props")
    assert (props["endpoint_slots"], props["endpoint_props"], props["endpoint_metrics"]) == (True, False, True)
    assert (props["bos_token"], props["eos_token"]) == ("", "<|im_end|>")
    caps = props["chat_template_caps"]
    assert caps["supports_tools"] and caps["supports_tool_calls"] and caps["supports_system_role"]
    params = props["default_generation_settings"]["params"]
    assert (params["seed"], params["n_predict"], params["stream"]) == (-1, -1, False)
    server.engine.play(text_ids("x"))
    used = post(server, prompt="a").json()["generation_settings"]
    assert used["seed"] >= 0 and {**used, "seed": -1} == params
    assert httpx.post(f"{server.url}/props", json={}).status_code == 501
