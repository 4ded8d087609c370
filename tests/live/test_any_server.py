"""What every server of these dialects must do, whatever its model says: deterministic, on any model.

By default against our own server with the default model, debug level, so that it checks its own replies;
with --url against another.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.live.conftest import AnyServer

COUNT: Any = [{"role": "user", "content": "Count from 1 to 20, digits only, separated by spaces."}]


@pytest.fixture(scope="module")
def probe(any_server: AnyServer) -> str:
    """What the model says at temperature 0: later requests take their stop strings from it."""
    sdk = any_server.openai()
    reply = sdk.chat.completions.create(model=any_server.model, messages=COUNT, temperature=0, max_tokens=16)
    text = reply.choices[0].message.content
    assert text
    return text


def stream_text(any_server: AnyServer, **options: Any) -> tuple[str, str | None]:
    sdk = any_server.openai()
    stream = sdk.chat.completions.create(model=any_server.model, messages=COUNT, temperature=0, stream=True, **options)
    text, reason, roles = "", None, 0
    for chunk in stream:
        if chunk.choices:
            choice = chunk.choices[0]
            assert reason is None, "a delta after the finish reason"
            text += choice.delta.content or ""
            roles += choice.delta.role is not None
            reason = choice.finish_reason
    assert roles == 1
    return text, reason


def test_the_stream_says_the_same(any_server: AnyServer, probe: str) -> None:
    assert stream_text(any_server, max_tokens=16)[0] == probe


@pytest.mark.parametrize("n_tokens", [1, 2, 5])
def test_max_tokens(any_server: AnyServer, probe: str, n_tokens: int) -> None:
    sdk = any_server.openai()
    reply = sdk.chat.completions.create(
        model=any_server.model, messages=COUNT, temperature=0, max_completion_tokens=n_tokens
    )
    assert reply.usage and reply.usage.completion_tokens <= n_tokens
    assert reply.choices[0].finish_reason == "length"
    text = reply.choices[0].message.content or ""
    assert probe.startswith(text) and "\ufffd" not in text
    assert stream_text(any_server, max_completion_tokens=n_tokens) == (text, "length")


def test_stop_strings_across_token_borders(any_server: AnyServer, probe: str) -> None:
    middle = len(probe) // 2
    stop = probe[middle : middle + 3]
    expected = probe.partition(stop)[0]
    sdk = any_server.openai()
    reply = sdk.chat.completions.create(
        model=any_server.model, messages=COUNT, temperature=0, max_tokens=16, stop=[stop]
    )
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (expected, "stop")
    assert stream_text(any_server, max_tokens=16, stop=[stop]) == (expected, "stop")


def test_a_stop_string_that_never_comes(any_server: AnyServer, probe: str) -> None:
    assert stream_text(any_server, max_tokens=16, stop=[probe[-2:] + "never"])[0] == probe


def test_several_choices(any_server: AnyServer) -> None:
    sdk = any_server.openai()
    stream = sdk.chat.completions.create(model=any_server.model, messages=COUNT, n=2, max_tokens=4, stream=True)
    choices = [choice for chunk in stream for choice in chunk.choices]
    assert choices[0].index == 0
    assert {choice.index for choice in choices if choice.finish_reason} == {0, 1}


def test_logprobs_spell_the_text(any_server: AnyServer) -> None:
    sdk = any_server.openai()
    reply = sdk.chat.completions.create(
        model=any_server.model, messages=COUNT, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs and logprobs.content
    assert b"".join(bytes(e.bytes or []) for e in logprobs.content).decode() == reply.choices[0].message.content
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-6)
        assert len(entry.top_logprobs) == 3


def test_a_seed_repeats(any_server: AnyServer) -> None:
    sdk = any_server.openai()
    texts = {
        sdk.chat.completions.create(model=any_server.model, messages=COUNT, temperature=1.5, seed=7, max_tokens=8)
        .choices[0]
        .message.content
        for _ in range(2)
    }
    assert len(texts) == 1


def test_the_answer_is_accepted_as_history(any_server: AnyServer) -> None:
    sdk = any_server.openai()
    first = sdk.chat.completions.create(model=any_server.model, messages=COUNT, max_tokens=8)
    history = [*COUNT, first.choices[0].message.model_dump(), {"role": "user", "content": "Go on."}]
    again = sdk.chat.completions.create(model=any_server.model, messages=history, max_tokens=4)
    assert again.usage and first.usage and again.usage.prompt_tokens > first.usage.prompt_tokens


def test_errors_have_their_shape(any_server: AnyServer) -> None:
    sdk = any_server.openai()
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="no-such-model", messages=COUNT)
    assert missing.value.code == "model_not_found"
    broken: dict[str, Any]
    for broken in ({"messages": []}, {"messages": "x"}, {"messages": COUNT, "temperature": "hot"}):
        reply = any_server.post("/v1/chat/completions", **broken)
        assert reply.status_code == 400
        assert set(reply.json()["error"]) >= {"message", "type", "param", "code"}


def test_completions(any_server: AnyServer) -> None:
    sdk = any_server.openai()
    whole = sdk.completions.create(model=any_server.model, prompt="1 2 3 4", max_tokens=6, temperature=0)
    parts = any_server.openai(strict=False).completions.create(
        model=any_server.model, prompt="1 2 3 4", max_tokens=6, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in parts if chunk.choices) == whole.choices[0].text
    scored = any_server.post("/v1/completions", prompt="1 2 3 4", max_tokens=0, echo=True, logprobs=1)
    [choice] = scored.json()["choices"]
    assert choice["text"] == "1 2 3 4"
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert all(value <= 0 for value in choice["logprobs"]["token_logprobs"][1:])


def test_responses(any_server: AnyServer) -> None:
    sdk = any_server.openai()
    options: Any = {"model": any_server.model, "input": "Count to ten.", "max_output_tokens": 8, "temperature": 0}
    whole = sdk.responses.create(**options)
    last: Any = list(sdk.responses.create(**options, stream=True))[-1]
    assert last.type == f"response.{whole.status}"
    assert last.response.output_text == whole.output_text


def test_messages(any_server: AnyServer) -> None:
    fields: Any = {"messages": COUNT, "max_tokens": 8}
    whole = any_server.post("/v1/messages", **fields).json()
    assert whole["type"] == "message" and whole["content"][0]["type"] == "text"
    streamed = any_server.post("/v1/messages", **fields, stream=True).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    counted = any_server.post("/v1/messages/count_tokens", messages=COUNT).json()["input_tokens"]
    usage = whole["usage"]
    cached = usage.get("cache_read_input_tokens", 0) + usage.get("cache_creation_input_tokens", 0)
    assert counted == usage["input_tokens"] + cached


def test_embeddings_are_unit_vectors_in_order(any_server: AnyServer) -> None:
    sdk = any_server.openai(strict=False)
    both = sdk.embeddings.create(model=any_server.model, input=["hello", "world"])
    one = sdk.embeddings.create(model=any_server.model, input="world", encoding_format="float")
    assert both.data[1].embedding == pytest.approx(one.data[0].embedding, abs=1e-5)
    assert sum(x * x for x in both.data[0].embedding) == pytest.approx(1, abs=1e-3)
