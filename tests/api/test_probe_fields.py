"""What clients of llama.cpp's and TGI's own servers read of the probes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.live_server import LiveServer
from tests.live.toy_server import anthropic_sdk, openai_sdk, toy_server
from tests.toy import CHATML

CONTEXT = 4096


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(CHATML, context_length=CONTEXT) as live:
        yield live


def got(server: LiveServer, path: str) -> Any:
    reply = httpx.get(server.url + path, timeout=10)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_lists_of_models(server: LiveServer) -> None:
    listed = got(server, "/v1/models")
    assert got(server, "/models") == listed
    [model] = listed["data"]
    assert (model["id"], model["aliases"], model["tags"]) == ("toy", [], [])
    assert listed["models"] == [{"name": "toy", "model": "toy", "capabilities": ["completion", "embedding"]}]
    assert {"n_ctx", "n_ctx_train", "n_vocab", "n_embd", "n_params", "size", "ftype"} <= model["meta"].keys()
    assert [m.id for m in openai_sdk(server).models.list()] == ["toy"]
    assert [m.id for m in anthropic_sdk(server).models.list()] == ["toy"]


def test_all_probes_tell_the_same_context(server: LiveServer) -> None:
    [model], props, [slot, *_] = got(server, "/v1/models")["data"], got(server, "/props"), got(server, "/slots")
    told = [model["max_model_len"], model["meta"]["n_ctx"], props["n_ctx"], slot["n_ctx"]]
    told += [props["default_generation_settings"]["n_ctx"], got(server, "/info")["max_total_tokens"]]
    assert told == [CONTEXT] * 6 and got(server, "/info")["max_input_tokens"] < CONTEXT


def test_props(server: LiveServer) -> None:
    props = got(server, "/props")
    params = props["default_generation_settings"]["params"]
    assert {
        "n_predict",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "stop",
        "max_tokens",
        "stream",
    } <= params.keys()
    assert props["build_info"].startswith("b") and props["is_sleeping"] is False
    assert props["total_slots"] == len(got(server, "/slots"))


def test_metrics_tell_when_the_process_started(server: LiveServer) -> None:
    reply = httpx.get(f"{server.url}/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert int(reply.headers["process-start-time-unix"]) > 1_600_000_000
    for name in ("prompt_tokens_total", "tokens_predicted_total", "n_decode_total", "requests_processing"):
        assert f"\nllamacpp:{name} " in reply.text
