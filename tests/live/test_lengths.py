"""Where answers end: stop_token_ids, min_tokens, max_tokens -1, on the real engine with a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.config import Config
from imp_server.engine.client.process import ProcessEngine

from tests.api.live_server import LiveServer, live_server
from tests.models.tiny_gguf import write_tiny_llama

CONTEXT = 256


@pytest.fixture(scope="module", params=["cpu", "reference"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    model = write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", context=CONTEXT)
    settings = {"engine.backend": request.param, "model.chat_template": "chatml", "engine.warmup": False}
    config = Config.of(settings)
    with live_server(
        lambda: ProcessEngine(model, "tiny", config),
        lambda: ModelTextSide.load(model, config),
        model="tiny",
        settings=settings,
    ) as live:
        yield live


def complete(server: LiveServer, **fields: Any) -> Any:
    body = {"model": "tiny", "prompt": "abc", "temperature": 0, "max_tokens": 40, **fields}
    response = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def ids(server: LiveServer, **fields: Any) -> list[int]:
    body = {"model": "tiny", "prompt": "abc", "temperature": 0, "n_predict": 40, "n_probs": 1, **fields}
    response = httpx.post(server.url + "/completion", json=body, timeout=60)
    assert response.status_code == 200, response.text
    # The tiny model writes bytes at random: tokens of characters that are never whole aren't among them.
    return [entry["id"] for entry in response.json()["completion_probabilities"]]


def test_a_stop_token_ends_the_answer(server: LiveServer) -> None:
    free = ids(server, ignore_eos=True)
    wanted = free[7]
    first = free.index(wanted)
    cut = ids(server, ignore_eos=True, stop_token_ids=[wanted])
    assert cut == free[:first] and first > 0
    reply = complete(server, ignore_eos=True, stop_token_ids=[wanted])
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert first < reply["usage"]["completion_tokens"] < 40


@pytest.mark.parametrize("speculative", [True, False])
def test_no_token_ends_the_answer_too_early(server: LiveServer, speculative: bool) -> None:
    free = ids(server, ignore_eos=True)
    stops = sorted(set(free[:30]))
    reply = complete(server, min_tokens=12, stop_token_ids=stops, speculative=speculative)
    assert 12 <= reply["usage"]["completion_tokens"] <= 40
    held = ids(server, min_tokens=12, stop_token_ids=stops, speculative=speculative)
    assert held and not set(held[:8]) & set(stops)


def test_a_least_length_that_can_t_be_kept(server: LiveServer) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    response = httpx.post(server.url + "/v1/chat/completions", json={**chat, "min_tokens": 6}, timeout=60)
    assert response.status_code == 400 and response.json()["error"]["param"] == "min_tokens"
    assert "at most" in response.json()["error"]["message"]
    outside = httpx.post(server.url + "/v1/chat/completions", json={**chat, "stop_token_ids": [99_999]}, timeout=60)
    assert (outside.status_code, outside.json()["error"]["code"]) == (400, "unknown_token")


@pytest.mark.parametrize("speculative", [True, False])
def test_a_constrained_answer_goes_on_where_its_grammar_lets_it(server: LiveServer, speculative: bool) -> None:
    def n_tokens(regex: str, **fields: Any) -> tuple[int, str]:
        fields |= {"structured_outputs": {"regex": regex}, "speculative": speculative, "temperature": 0}
        reply = complete(server, max_tokens=30, **fields)
        return reply["usage"]["completion_tokens"], reply["choices"][0]["text"]

    least, text = n_tokens("[ab]*", min_tokens=9)
    assert least >= 9 and set(text) <= {"a", "b"}
    assert n_tokens("ab|abab", min_tokens=20)[1] in ("ab", "abab"), "the grammar's end wins"


def test_no_limit_is_what_the_context_holds(server: LiveServer) -> None:
    reply = complete(server, max_tokens=-1, ignore_eos=True)
    assert reply["usage"]["total_tokens"] == CONTEXT and reply["choices"][0]["finish_reason"] == "length"
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": -1, "ignore_eos": True}
    reply = httpx.post(server.url + "/v1/chat/completions", json=chat, timeout=60).json()
    assert reply["usage"]["total_tokens"] == CONTEXT
    zero = httpx.post(server.url + "/v1/chat/completions", json={**chat, "max_tokens": 0}, timeout=60)
    assert zero.status_code == 400 and "max_tokens" in zero.json()["error"]["message"]


def test_many_tools_are_taken(server: LiveServer) -> None:
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}} for i in range(300)]
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "tools": tools}
    reply = httpx.post(server.url + "/v1/chat/completions", json={**chat, "tool_choice": "none"}, timeout=60)
    assert reply.status_code in (200, 400) and "at most" not in reply.text
    for path in ("/v1/chat/completions", "/apply-template"):
        many = httpx.post(server.url + path, json={**chat, "tools": tools * 4}, timeout=60)
        assert many.status_code == 400 and "1024" in many.text
