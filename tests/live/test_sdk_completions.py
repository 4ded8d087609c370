"""Completions and embeddings on a live server with the official SDK."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from imp_server.engine.client.scripted import PlayedVectors, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import openai_sdk, prompt_of, toy_server


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server() as live:
        yield live


@pytest.fixture
def sdk(server: LiveServer) -> openai.OpenAI:
    return openai_sdk(server)


def test_complete(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids(" a time"))
    reply = sdk.completions.create(model="toy", prompt="Once upon", max_tokens=20)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == (" a time", "stop")
    assert prompt_of(server) == "Once upon"
    assert reply.usage and reply.usage.prompt_tokens == 9


def test_special_tokens_and_ids_in_prompts(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play(text_ids("x"))
    sdk.completions.create(model="toy", prompt="<|im_start|>user\n")
    assert prompt_of(server) == "<|im_start|>user\n"
    assert len(server.engine.requests_seen[-1].ids) == 4 * 6
    server.engine.play(text_ids("x"))
    reply = sdk.completions.create(model="toy", prompt=[104, 105], echo=True)
    assert reply.choices[0].text == "hix"


def test_a_batch_with_choices(server: LiveServer, sdk: openai.OpenAI) -> None:
    server.engine.play_choices([text_ids("a0")], [text_ids("a1")])
    server.engine.play_choices([text_ids("b0")], [text_ids("b1")])
    reply = sdk.completions.create(model="toy", prompt=["A", "B"], n=2)
    assert [(c.index, c.text) for c in reply.choices] == [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")]
    assert reply.usage and reply.usage.prompt_tokens == 2


def test_stream(server: LiveServer) -> None:
    # The SDK's type has no null finish_reason, which OpenAI itself sends: no strict validation here.
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
    server.engine.play_choices([text_ids("one")])
    server.engine.play_choices([text_ids("two")])
    options: Any = {"include_usage": True}
    stream = sdk.completions.create(model="toy", prompt=["1", "2"], stream=True, echo=True, stream_options=options)
    texts = ["", ""]
    reasons: list[str | None] = [None, None]
    last: Any = None
    for chunk in stream:
        last = chunk
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == ["1one", "2two"] and reasons == ["stop", "stop"]
    assert last.usage.completion_tokens == 8


def test_scoring_as_evaluation_harnesses_do(server: LiveServer, sdk: openai.OpenAI) -> None:
    for max_tokens in (0, 1):
        server.engine.play(text_ids("!"))
        raw = httpx.post(
            f"{server.url}/v1/completions",
            json={"model": "toy", "prompt": [[104, 105]], "echo": True, "logprobs": 1, "max_tokens": max_tokens},
        ).json()
        logprobs = raw["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["h", "i", "!"][: 2 + max_tokens]
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["text_offset"] == [0, 1, 2][: 2 + max_tokens]
        assert raw["choices"][0]["finish_reason"] == "length"


def test_suffix_needs_a_model_for_it(server: LiveServer, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.completions.create(model="toy", prompt="a", suffix="c")
    assert caught.value.code == "fim_not_supported" and caught.value.param == "suffix"
    with toy_server(
        make_model=lambda template, **options: byte_model_with_gap(template, **options), settings=None
    ) as live:
        live.engine.play(text_ids("b"))
        reply = openai_sdk(live).completions.create(model="toy", prompt="a<fim_suffix>", suffix="c")
        assert reply.choices[0].text == "b"
        ids = list(memoryview(live.engine.requests_seen[-1].ids).cast("i"))
        assert ids == [258, *b"a<fim_suffix>", 259, *b"c", 260]


def byte_model_with_gap(template: str, **options: Any) -> Any:
    from tests.toy import byte_model

    control = ("<|im_end|>", "<|im_start|>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    return byte_model(template, control=control, **options)


def test_embeddings(server: LiveServer) -> None:
    # Strict validation refuses the base64 that the SDK itself asks for.
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
    vector = struct.pack("<8f", *range(1, 9))
    for encoding in ({}, {"encoding_format": "float"}):
        server.engine.play(PlayedVectors((vector,)))
        server.engine.play(PlayedVectors((vector,)))
        options: Any = encoding  # without one the SDK asks for base64 and decodes it
        reply = sdk.embeddings.create(model="toy", input=["hello", "hi"], **options)
        assert [entry.index for entry in reply.data] == [0, 1]
        assert sum(x * x for x in reply.data[0].embedding) == pytest.approx(1.0)
        assert len(reply.data[0].embedding) == 8
        assert reply.usage.prompt_tokens == reply.usage.total_tokens == 7
    server.engine.play(PlayedVectors((vector,)))
    assert len(sdk.embeddings.create(model="toy", input=[1, 2, 3]).data) == 1
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.embeddings.create(model="toy", input="x", dimensions=9)
    assert caught.value.code == "dimensions_unsupported"


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": ""}, {"prompt": []}, {"prompt": [""]}, {"prompt": [[]]}, {"prompt": 3}, {"prompt": ["a", 1.5]}],
)
def test_prompts_that_are_none(server: LiveServer, body: Any) -> None:
    reply = httpx.post(f"{server.url}/v1/completions", json={"model": "toy", **body})
    assert reply.status_code == 400
    assert (reply.json()["error"]["param"] or "").startswith("prompt")
