"""Every field that llama.cpp takes on a generating route: known to the contract, refused, or named as ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from imp_server.engine.client.scripted import Emit, Prefilled, Wait, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server
from tests.toy import CHATML

Json = dict[str, Any]
HEADER = "x-imp-ignored-fields"
COMPLETIONS, CHAT, NATIVE = "/v1/completions", "/v1/chat/completions", "/completion"
ROUTES: dict[str, Json] = {
    COMPLETIONS: {"model": "toy", "prompt": "hi"},
    CHAT: {"model": "toy", "messages": [{"role": "user", "content": "hi"}]},
    NATIVE: {"prompt": "hi"},
}

TAKEN: Json = {
    "n_predict": -1, "max_completion_tokens": 4, "max_tokens": 4, "n_cmpl": 1, "n": 1, "stream": False,
    "stream_options": {"include_usage": False}, "cache_prompt": True, "n_cache_reuse": 8, "id_slot": 0,
    "return_tokens": False, "return_progress": True, "timings_per_token": True, "sse_ping_interval": 5, "n_keep": 3,
    "n_discard": 2, "n_indent": 0, "t_max_predict_ms": 60_000, "stop": ["."], "ignore_eos": False, "verbose": True,
    "logit_bias": [[104, 0.5], ["hi", False]], "n_probs": 0, "logprobs": None, "post_sampling_probs": False, "lora": [],
    "echo": False, "message_delimiters": [{"role": "user", "delimiter": "x"}], "temperature": 0.8, "top_k": 40,
    "top_p": 0.95, "min_p": 0.05, "top_n_sigma": -1, "typical_p": 1, "xtc_probability": 0, "xtc_threshold": 0.1,
    "dynatemp_range": 0, "dynatemp_exponent": 1, "repeat_last_n": 64, "repeat_penalty": 1.0, "presence_penalty": 0,
    "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["\n", ":", '"', "*"], "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1,
    "adaptive_target": -1, "adaptive_decay": 0.9, "seed": -1, "min_keep": 0, "backend_sampling": False,
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    "json_schema": {"type": "string"}, "grammar": "", "grammar_lazy": False, "grammar_triggers": [],
    "preserved_tokens": [],
}  # fmt: skip
"""llama.cpp's fields with their defaults, or other values that every route here takes."""
ELSEWHERE: Json = {"response_fields": ["content"], "speculative.n_max": 3}
"""What llama.cpp takes and doesn't look at on OpenAI's routes."""
REFUSED: Json = {
    "min_keep": 2, "adaptive_target": 0.4, "grammar_lazy": True, "grammar_triggers": [{"type": 0, "value": "x"}],
    "preserved_tokens": ["<x>"], "lora": [{"id": 0}], "samplers": "q", "n_keep": "a", "n_predict": -2,
    "logit_bias": [["hi"]],
}  # fmt: skip
REFUSED_BY_OPENAIS: Json = {"post_sampling_probs": True, "return_tokens": True}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(CHATML) as live:
        yield live


def ask(server: LiveServer, route: str, body: Json, text: str = '"ok"') -> httpx.Response:
    server.engine.play(text_ids(text))
    return httpx.post(server.url + route, json=ROUTES[route] | body, timeout=10)


@pytest.mark.parametrize("route", ROUTES)
def test_every_field_is_known(server: LiveServer, route: str) -> None:
    reply = ask(server, route, TAKEN)
    assert reply.status_code == 200, reply.text
    assert HEADER not in reply.headers, reply.headers[HEADER]


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_fields_of_other_routes_are_named(server: LiveServer, route: str) -> None:
    assert ask(server, route, ELSEWHERE).headers[HEADER] == ", ".join(f"/{name}" for name in ELSEWHERE)


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_BY_OPENAIS])
@pytest.mark.parametrize("route", ROUTES)
def test_what_is_not_offered_is_refused(server: LiveServer, route: str, name: str) -> None:
    if route == NATIVE and name in REFUSED_BY_OPENAIS:
        assert ask(server, route, {name: True}).status_code == 200
        return
    reply = httpx.post(server.url + route, json=ROUTES[route] | {name: (REFUSED | REFUSED_BY_OPENAIS)[name]})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"].partition("[")[0] == name and f'"{name}' in error["message"]


def test_every_field_is_in_the_page() -> None:
    page = Path(__file__).parents[2].joinpath("docs/llamacpp.md").read_text()
    fields = {name for names in re.findall(r"`([^`]+)`", page) for name in re.split(r"[, ]+", names)}
    families = tuple(name.removesuffix("*") for name in fields if name.endswith("*"))
    missing = [name for name in TAKEN if name not in fields and not name.startswith(families)]
    assert missing == []


ALPHABET = "abcdefghijklmnopqrstuvwxyz"
"""Its end makes 27 tokens."""


def completion(server: LiveServer, text: str = ALPHABET, **fields: Any) -> Json:
    reply = ask(server, COMPLETIONS, fields, text)
    assert reply.status_code == 200, reply.text
    found: Json = reply.json()
    return found


@pytest.mark.parametrize(
    ("limits", "n_tokens"),
    [
        ({}, 16),
        ({"n_predict": 3}, 3),
        ({"n_predict": -1}, 27),
        ({"n_predict": 3, "max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"n_predict": 0}, 0),
    ],
)
def test_limits_of_a_completion(server: LiveServer, limits: Json, n_tokens: int) -> None:
    assert completion(server, **limits)["usage"]["completion_tokens"] == n_tokens


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        (["a", 66, "c"], ["aBc"]),
        ({"prompt_string": "xyz"}, ["xyz"]),
        ([{"prompt_string": "xyz", "multimodal_data": []}, "b", [67, "d"]], ["xyz", "b", "Cd"]),
        ([[65, 66], [67]], ["AB", "C"]),
    ],
)
def test_prompts_in_both_servers_forms(server: LiveServer, prompt: Any, read: list[str]) -> None:
    for _ in read[1:]:
        server.engine.play(text_ids("!"))
    found = completion(server, "!", prompt=prompt, echo=True)
    assert [choice["text"] for choice in found["choices"]] == [f"{text}!" for text in read]


def test_a_prompt_with_media_is_refused(server: LiveServer) -> None:
    prompt = {"prompt_string": "x <__media__>", "multimodal_data": ["aGk="]}
    reply = httpx.post(server.url + COMPLETIONS, json={"model": "toy", "prompt": prompt})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "vision_unavailable")


def test_n_probs_is_another_name_of_logprobs(server: LiveServer) -> None:
    found = [
        completion(server, n_probs=2)["choices"][0]["logprobs"],
        completion(server, logprobs=2)["choices"][0]["logprobs"],
    ]
    assert found[0] == found[1] and len(found[0]["tokens"]) == 16
    assert completion(server, n_probs=0)["choices"][0]["logprobs"] is None
    assert completion(server, n_probs=2, logprobs=False)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_n_cmpl_is_another_name_of_n(server: LiveServer, route: str) -> None:
    server.engine.play_choices(text_ids("a"), text_ids("b"))
    reply = httpx.post(server.url + route, json=ROUTES[route] | {"n_cmpl": 2, "n": 1}, timeout=10)
    assert [choice["index"] for choice in reply.json()["choices"]] == [0, 1]


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_biases_as_pairs(server: LiveServer, route: str) -> None:
    assert ask(server, route, {"logit_bias": [[5, -2], ["hi", 1.5], ["z", False]]}).status_code == 200
    bias = dict(server.engine.requests_seen[-1].sampling.logit_bias)
    assert bias == {5: -2.0, ord("h"): 1.5, ord("i"): 1.5, ord("z"): -1e6}
    reply = httpx.post(server.url + route, json=ROUTES[route] | {"logit_bias": [[900_000, 1]]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unknown_token")


def test_biases_as_pairs_change_no_count(server: LiveServer) -> None:
    body = ROUTES[CHAT] | {"logit_bias": [["hi", 1]]}
    reply = httpx.post(f"{server.url}{CHAT}/input_tokens", json=body)
    assert reply.status_code == 200 and reply.json()["input_tokens"] > 0


def test_indents_and_samplers_reach_the_engine(server: LiveServer) -> None:
    completion(server, n_indent=2, t_max_predict_ms=250, repeat_penalty=1.5, samplers="kpe", top_k=7, min_p=0.3)
    request = server.engine.requests_seen[-1]
    found = request.sampling
    assert (request.plan.min_indent, request.options.predict_s) == (2, 0.25)
    assert (found.repetition_penalty, found.top_k, found.min_p, found.temperature) == (1.5, 7, 0.0, 1.0)


def test_progress_and_timings_in_a_stream_of_completions(server: LiveServer) -> None:
    asked = {"stream": True, "return_progress": True, "timings_per_token": True, "sse_ping_interval": -1}
    plain = {"stream": True}
    server.engine.play(Prefilled(2, 0), Emit(text_ids("ab")), Emit(text_ids("c")))
    reply = httpx.post(server.url + COMPLETIONS, json=ROUTES[COMPLETIONS] | asked, timeout=10)
    chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert told[-1]["processed"] == told[-1]["total"] == 2
    written = [chunk for chunk in chunks if "timings" in chunk and "prompt_progress" not in chunk]
    counts = [chunk["timings"]["predicted_n"] for chunk in written]
    # what comes while the socket isn't drained is one piece
    assert counts in ([2, 3, 4], [3, 4]) and all(chunk["choices"][0]["logprobs"] is None for chunk in chunks)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"
    server.engine.play(Emit(text_ids("ab")), Emit(text_ids("c")))
    reply = httpx.post(server.url + COMPLETIONS, json=ROUTES[COMPLETIONS] | plain, timeout=10)
    assert reply.text.count("prompt_progress") == 0 and reply.text.count("timings") == 1


def test_progress_and_timings_of_a_response(server: LiveServer) -> None:
    """Progress comes on response.in_progress, again and again; every delta carries timings; logprobs stay hidden."""
    body = {"model": "toy", "input": "hi", "stream": True}
    asked = {"return_progress": True, "timings_per_token": True}

    def events(more: Json) -> list[Json]:
        server.engine.play(Prefilled(2, 0), Prefilled(9, 0), Emit(text_ids("ab")), Wait(0.02), Emit(text_ids("c")))
        reply = httpx.post(server.url + "/v1/responses", json=body | more, timeout=10)
        assert reply.status_code == 200, reply.text
        return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]

    found = events(asked)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    told = [event for event in found if "prompt_progress" in event]
    assert told and {event["type"] for event in told} == {"response.in_progress"}
    done = [event["prompt_progress"]["processed"] for event in told]
    assert done == sorted(set(done)) and told[-1]["prompt_progress"]["total"] == done[-1]
    assert all(event["timings"]["cache_n"] == 0 and event["response"]["status"] == "in_progress" for event in told)
    first_text = next(i for i, event in enumerate(found) if event["type"].endswith(".delta"))
    assert found.index(told[-1]) < first_text
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert [event["timings"]["predicted_n"] for event in deltas] == [2, 3]
    assert all(event["logprobs"] == [] for event in deltas)
    assert "".join(event["delta"] for event in deltas) == "abc"

    plain = events({})
    assert not any("prompt_progress" in event or "timings" in event for event in plain)
    assert [event["type"] for event in plain][:2] == ["response.created", "response.in_progress"]
    assert len([event for event in plain if event["type"] == "response.in_progress"]) == 1


@pytest.mark.parametrize(("asked", "status"), [(True, 200), ("content", 200), ("reasoning_content", 400)])
def test_continuing_the_last_message(server: LiveServer, asked: Any, status: int) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
    body = {"messages": messages, "continue_final_message": asked, "add_generation_prompt": False}
    assert ask(server, CHAT, body).status_code == status
