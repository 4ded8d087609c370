"""Completions: prompts in four forms, echo, legacy logprobs with offsets, batches, best_of, stream == fold."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.generations import Generations
from imp_server.api.model_text_side import ModelTextSide
from imp_server.core import InvalidRequest, LogprobEntry, OutputEvent, PromptLogprobs
from imp_server.dialects.base import AcceptedPrompts, ReplyContext, SseFrame
from imp_server.dialects.llamacpp.fields import prompts_of
from imp_server.dialects.openai_completions.handlers import completion_requests
from imp_server.dialects.openai_completions.reply import (
    CompletionFold,
    CompletionStream,
    LegacyLogprobs,
    prompt_logprobs_body,
)
from imp_server.engine.client.scripted import Emit, ScriptedEngine, text_ids

from tests.toy import byte_model

TEXT = ModelTextSide(byte_model())


def parse(**fields: Any) -> Any:
    return completion_requests({"model": "m", "prompt": "hi", **fields})


async def play(body: dict[str, Any], plays: list[list[Any]]) -> tuple[list[OutputEvent], ReplyContext]:
    """`plays`: one per choice, the choices of each prompt in turn."""
    engine = ScriptedEngine(TEXT.vocabulary)
    await engine.start()
    requests = completion_requests(body)
    per_prompt = requests[0].options.n
    for i in range(len(requests)):
        engine.play_choices(*plays[i * per_prompt : (i + 1) * per_prompt])
    prompts = [TEXT.prepare_prompt(request) for request in requests]
    running = Generations(engine, prompts)
    await running.accept(DisconnectWatch(None))
    found = [event async for batch in running.events() for event in batch]
    await engine.stop()
    context = ReplyContext("cmpl-1", "m", 7, "req_1", body, len(requests) * per_prompt, {"per_prompt": per_prompt})
    context.accepted = AcceptedPrompts(prompt_texts=tuple(p.prompt_text for p in prompts))
    return found, context


def folded(found: list[OutputEvent], context: ReplyContext) -> dict[str, Any]:
    fold = CompletionFold(context)
    for event in found:
        fold.feed(event)
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fold.body()))
    return body


def streamed(found: list[OutputEvent], context: ReplyContext) -> dict[str, Any]:
    stream = CompletionStream(context)
    frames: list[SseFrame] = stream.open()
    for event in found:
        frames += stream.feed(event)
    frames += stream.close()
    assert frames.pop().data == b"[DONE]"
    chunks = [json.loads(frame.data) for frame in frames]
    last = chunks.pop()
    usage, timings = last["usage"], last["timings"]
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        assert chunk["usage"] is None and "timings" not in chunk
        [part] = chunk["choices"]
        choice = choices.setdefault(part["index"], {"text": "", "index": part["index"], "logprobs": None})
        assert choice.get("finish_reason") is None
        choice["text"] += part["text"]
        choice["finish_reason"] = part["finish_reason"]
        if part["logprobs"] is not None:
            arrays = choice["logprobs"] = choice["logprobs"] or {name: [] for name in part["logprobs"]}
            for name, values in part["logprobs"].items():
                arrays[name] += values
    head = {key: value for key, value in chunks[0].items() if key not in ("choices", "usage")}
    return {**head, "choices": [choices[i] for i in sorted(choices)], "usage": usage, "timings": timings}


OUTPUTS = ["plain", "Grüße 👋", "before STOP after", "", "STO"]


@settings(max_examples=100, deadline=None)
@given(
    prompts=st.lists(st.sampled_from(["hi", "Köln 👋", "a"]), min_size=1, max_size=3),
    outputs=st.lists(st.sampled_from(OUTPUTS), min_size=6, max_size=6),
    places=st.sets(st.integers(1, 20)),
    n=st.integers(1, 2),
    echo=st.booleans(),
    logprobs=st.sampled_from([None, 0, 2]),
    max_tokens=st.sampled_from([0, 3, 40]),
)
def test_the_stream_equals_the_fold_for_every_cut(
    prompts: list[str],
    outputs: list[str],
    places: set[int],
    n: int,
    echo: bool,
    logprobs: int | None,
    max_tokens: int,
) -> None:
    body: dict[str, Any] = {"model": "m", "prompt": prompts, "n": n, "echo": echo, "stop": "STOP"}
    body |= {"max_tokens": max_tokens, "stream_options": {"include_usage": True}}
    if logprobs is not None:
        body["logprobs"] = logprobs
    plays = [[Emit(part) for part in cut(text_ids(text), places)] for text in outputs]
    found, context = asyncio.run(play(body, plays))
    whole, parts = folded(found, context), streamed(found, context)
    assert [c["index"] for c in whole["choices"]] == list(range(len(prompts) * n))
    for choice in whole["choices"]:
        text = outputs[choice["index"]].encode()[:max_tokens].decode(errors="ignore").partition("STOP")[0]
        prefix = prompts[choice["index"] // n] if echo else ""
        assert choice["text"] == prefix + text
        if logprobs is not None:
            check_logprobs(choice, prefix)
            if not choice["logprobs"]["tokens"]:
                choice["logprobs"] = None
        else:
            assert choice["logprobs"] is None
    assert parts == whole


def cut(ids: tuple[int, ...], places: set[int]) -> list[tuple[int, ...]]:
    edges = [0, *sorted(p for p in places if p < len(ids)), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(edges) if a < b]


def check_logprobs(choice: dict[str, Any], prefix: str) -> None:
    arrays = choice["logprobs"]
    assert len({len(values) for values in arrays.values()}) == 1
    offsets = arrays["text_offset"]
    assert offsets == sorted(offsets)
    assert all(0 <= offset <= len(choice["text"]) for offset in offsets)
    if prefix:
        assert offsets[0] == 0
        assert arrays["token_logprobs"][0] is None and arrays["top_logprobs"][0] is None
        assert None not in arrays["token_logprobs"][1:]


def test_prompt_forms() -> None:
    assert prompts_of("a") == [("a",)]
    assert prompts_of(["a", "b"]) == [("a",), ("b",)]
    assert prompts_of([1, 2.0]) == [(1, 2)]
    assert prompts_of([[1], [2, 3]]) == [(1,), (2, 3)]


def test_limits() -> None:
    [request] = parse()
    assert (
        request.output.max_tokens,
        request.options.n,
        request.options.logprobs,
        request.options.prompt_logprobs,
    ) == (16, 1, None, None)
    [request] = parse(max_tokens=0, logprobs=True, echo=True)
    assert (request.output.max_tokens, request.options.logprobs, request.options.prompt_logprobs) == (0, 1, 1)
    [request] = parse(echo=True, logprobs=2, prompt_logprobs=5)
    assert request.options.prompt_logprobs == 5
    [request] = parse(best_of=3)
    assert (request.options.n, request.options.logprobs) == (3, 0)


@pytest.mark.parametrize(
    "fields", [{"n": 2, "best_of": 1}, {"best_of": 2, "stream": True}, {"prompt_logprobs": 0, "stream": True}]
)
def test_fields_that_dont_go_together(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.code == "unsupported_value"


def test_best_of_gives_the_most_likely() -> None:
    from imp_server.core import TokenLogprob

    plays: list[list[Any]] = [
        [Emit(text_ids(text), [TokenLogprob(i, value) for i in text_ids(text)])]
        for text, value in (("worst", -3.0), ("best", -0.5), ("good", -1.0))
    ]
    body = {"model": "m", "prompt": "hi", "n": 2, "best_of": 3}
    found, context = asyncio.run(play(body, plays))
    reply = folded(found, context)
    assert [(c["index"], c["text"], c["logprobs"]) for c in reply["choices"]] == [(0, "best", None), (1, "good", None)]
    assert reply["usage"]["completion_tokens"] == len("worstbestgood") + 3


def test_prompt_logprobs_have_vllms_shape() -> None:
    entry = LogprobEntry(7, b"x", -2.0, ((5, b"y", -0.1), (6, b"z", -1.0)), rank=9)
    event = PromptLogprobs(0, 1, b"a", (entry,))
    first, second = prompt_logprobs_body(event, 1)
    assert first is None
    assert second == {
        "5": {"logprob": -0.1, "rank": 1, "decoded_token": "y"},
        "7": {"logprob": -2.0, "rank": 9, "decoded_token": "x"},
    }
    assert prompt_logprobs_body(event, 0)[1] == {"7": {"logprob": -2.0, "rank": 9, "decoded_token": "x"}}


def test_echo_and_prompt_logprobs_agree() -> None:
    body = {"model": "m", "prompt": "hi", "echo": True, "logprobs": 1, "prompt_logprobs": 1, "max_tokens": 0}
    found, context = asyncio.run(play(body, [[]]))
    [choice] = folded(found, context)["choices"]
    assert choice["text"] == "hi"
    assert choice["logprobs"]["token_logprobs"][0] is None
    for row, value in zip(choice["prompt_logprobs"][1:], choice["logprobs"]["token_logprobs"][1:], strict=True):
        assert next(iter(row.values()))["logprob"] == value


def test_offsets_count_characters_across_token_borders() -> None:
    arrays = LegacyLogprobs()
    for data in (b"a", "é".encode()[:1], "é".encode()[1:], "👋".encode(), b"b"):
        arrays.add(LogprobEntry(0, data, -1.0))
    taken = arrays.take()
    assert taken["text_offset"] == [0, 1, 1, 2, 3]
    assert taken["tokens"][1:3] == ["bytes:\\xc3", "bytes:\\xa9"]
    arrays.add(LogprobEntry(0, b"\\xc3", -1.0, ((1, b"\xc3", -2.0),)))
    assert arrays.take()["top_logprobs"] == [{"\\xc3": -1.0, "bytes:\\xc3": -2.0}], "the text and the byte differ"


def test_a_batch_larger_than_the_engine_runs_in_a_window() -> None:
    async def run() -> tuple[dict[str, Any], int]:
        engine = ScriptedEngine(TEXT.vocabulary, n_rows=2, max_queue=2)
        await engine.start()
        engine.answer_with(lambda request, _c: [text_ids(str(len(request.ids) // 4))])
        body = {"model": "m", "prompt": ["x" * (1 + i % 7) for i in range(40)]}
        prompts = [TEXT.prepare_prompt(request) for request in completion_requests(body)]
        running = Generations(engine, prompts)
        await running.accept(DisconnectWatch(None))
        seen = len(engine.requests_seen)
        found = [event async for batch in running.events() for event in batch]
        extra = {"per_prompt": 1}
        return folded(found, ReplyContext("cmpl-1", "m", 7, "r", body, 40, extra)), seen

    reply, seen = asyncio.run(run())
    assert seen == 2
    assert [c["text"] for c in reply["choices"]] == [str(1 + i % 7) for i in range(40)]
