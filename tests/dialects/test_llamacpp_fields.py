"""llama.cpp's fields in raw completions and chats: honoured, refused, or taken because they change nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from imp_server.api.driver import silence_s
from imp_server.config import Config
from imp_server.core import (
    Accepted,
    ChatRequest,
    Finish,
    InvalidRequest,
    LogprobEntry,
    Logprobs,
    OutputEvent,
    Progress,
    PromptRequest,
    SamplingParams,
    TextDelta,
    Usage,
    VisionUnavailable,
)
from imp_server.dialects.base import AcceptedPrompts, ReplyContext
from imp_server.dialects.llamacpp.fields import prompts_of
from imp_server.dialects.llamacpp.reply import LlamaCompletionFold, LlamaCompletionStream
from imp_server.dialects.llamacpp.request import prompt_requests
from imp_server.dialects.llamacpp.settings import settings_body
from imp_server.dialects.openai_chat.reply import ChatStream
from imp_server.dialects.openai_chat.request import chat_request

from tests.dialects.contract_check import check_frames, check_reply, checked
from tests.toy import OPEN_THINKING_CHATML, byte_model

NATIVE, CHAT = "llamacpp.completion", "openai_chat.create_chat_completion"
USER = [{"role": "user", "content": "hi"}]


def native(**body: Any) -> PromptRequest:
    return prompt_requests(checked(NATIVE, {"prompt": "hi"} | body), {})[0]


def chat(**body: Any) -> ChatRequest:
    return chat_request(checked(CHAT, {"model": "m", "messages": USER} | body))


@pytest.mark.parametrize("parse", [native, chat])
@pytest.mark.parametrize(
    "body",
    [
        {"min_keep": 2},
        {"adaptive_target": 0.5},
        {"adaptive_decay": 1},
        {"grammar_lazy": True},
        {"grammar_triggers": [{"type": 0, "value": "x"}]},
        {"preserved_tokens": ["<x>"]},
        {"dry_multiplier": 0.8, "dry_sequence_breakers": [""]},
        {"dry_sequence_breakers": "x"},
        {"samplers": "q"},
        {"t_max_predict_ms": -2},
        {"n_keep": 1.5},
        {"sse_ping_interval": -2},
        {"timings_per_token": 1},
        {"n_cache_reuse": -1},
    ],
)
def test_what_would_change_the_answer_is_refused(parse: Any, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(**body)
    assert str(refused.value.param).partition("[")[0] in body


@pytest.mark.parametrize(
    "body",
    [
        {"n_probs": 2},
        {"post_sampling_probs": True},
        {"return_tokens": True},
        {"n_indent": 1},
        {"echo": True},
    ],
)
def test_what_only_raw_completions_have_is_refused_in_chats(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat(**body)
    assert refused.value.param in body


@pytest.mark.parametrize("parse", [native, chat])
def test_what_is_kept_of_a_full_context(parse: Any) -> None:
    assert (parse(n_keep=-1, n_discard=5).options.n_keep, parse(n_discard=5).options.n_discard) == (-1, 5)
    assert (parse().options.n_keep, parse().options.n_discard) == (None, 0)


@pytest.mark.parametrize("parse", [native, chat])
def test_what_changes_nothing_is_taken(parse: Any) -> None:
    plain = parse()
    assert (
        parse(
            min_keep=1,
            adaptive_target=-1,
            adaptive_decay=0.9,
            grammar_lazy=False,
            grammar_triggers=[],
            preserved_tokens=[],
            backend_sampling=True,
            n_cache_reuse=256,
            message_delimiters=[{"role": "user", "delimiter": "x"}],
            verbose=True,
            t_max_predict_ms=-1,
            sse_ping_interval=1,
            return_progress=True,
        )
        == plain
    )
    assert (
        parse(samplers="k", dry_multiplier=0.8, dry_sequence_breakers=["x"]).sampling.asked.get("dry_multiplier") == 0.0
    )


@pytest.mark.parametrize("parse", [native, chat])
def test_breakers_of_repetitions_arrive(parse: Any) -> None:
    assert parse(dry_multiplier=0.8).sampling.asked.get("dry_sequence_breakers") is None
    assert parse(dry_sequence_breakers=None).sampling.asked.get("dry_sequence_breakers") is None
    for breakers in ([], ["\n", ":"]):
        assert parse(dry_multiplier=0.8, dry_sequence_breakers=breakers).sampling.asked.get(
            "dry_sequence_breakers"
        ) == tuple(breakers)


def test_chats_know_the_names_of_samplers_and_limits() -> None:
    asked = {"repeat_penalty": 1.3, "top_k": 5, "min_p": 0.2, "temperature": 0.5, "samplers": ["top_k", "penalties"]}
    found = chat(**asked).sampling
    assert found == native(**asked).sampling
    assert (
        found.asked.get("repetition_penalty"),
        found.asked.get("top_k"),
        found.asked.get("min_p"),
        found.asked.get("temperature"),
    ) == (1.3, 5, 0.0, 1.0)
    assert [chat(n_predict=n).output.max_tokens for n in (0, 7, -1)] == [0, 7, None]
    assert chat(n_predict=7, max_tokens=3).output.max_tokens == 3
    assert [chat(t_max_predict_ms=ms).options.predict_s for ms in (250, 1, 0)] == [0.25, 0.001, None]
    assert (
        chat(stream=True, timings_per_token=True).options.logprobs,
        chat(timings_per_token=True).options.logprobs,
    ) == (0, None)


@pytest.mark.parametrize(
    ("asked", "streamed", "kept"),
    [("none", False, True), ("deepseek", True, False), ("auto", False, False), (None, False, False),
     ("deepseek-legacy", False, False), ("deepseek-legacy", True, True)],
)  # fmt: skip
@pytest.mark.parametrize("by_request", [True, False])
def test_reasoning_format(asked: str | None, streamed: bool, kept: bool, by_request: bool) -> None:
    own = asked if asked not in (None, "auto") and not by_request else "deepseek"
    model = byte_model(OPEN_THINKING_CHATML, config=Config.of({"reasoning.format": own}))
    wanted = chat(stream=streamed, **({"reasoning_format": asked} if by_request else {}))
    plan = model.prepare_chat(wanted, 1).request.plan
    assert {s.keep_markers for s in plan.segments if s.kind == "think"} == {kept}


def test_a_prompt_with_media_is_text_unless_there_are_some() -> None:
    text = {"prompt_string": "hi", "multimodal_data": []}
    assert prompts_of(checked(NATIVE, {"prompt": text})["prompt"]) == [("hi",)]
    assert prompts_of(checked(NATIVE, {"prompt": [text, "b", [1]]})["prompt"]) == [("hi",), ("b",), (1,)]
    with pytest.raises(VisionUnavailable):
        native(prompt={"prompt_string": "hi <__media__>", "multimodal_data": ["aGk="]})


def test_silence() -> None:
    found = [silence_s(body, 15) for body in ({}, {"sse_ping_interval": 0}, {"sse_ping_interval": 3})]
    assert found == [15, 15, 3] and silence_s({"sse_ping_interval": -1}, 15) == 0


class Seconds:
    """A clock that stands between two looks of the test."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def context(clock: Seconds, **body: Any) -> ReplyContext:
    content = {"prompt": "hi", "stream": True} | body
    ctx = ReplyContext(id="chatcmpl-1", model="m", created=0, request_id="r", body=content, clock=clock)
    ctx.extra |= {"prompts": ["hi"], "context_length": 32}
    ctx.accepted = AcceptedPrompts(sampling=(SamplingParams(seed=77, temperature=0.5),))
    return ctx


def entries(n: int) -> Logprobs:
    return Logprobs(0, tuple(LogprobEntry(i, b"x", -1.0) for i in range(n)))


END = Finish(0, "length", Usage(prompt_tokens=20, completion_tokens=12, cached_tokens=8))
SCRIPT: list[OutputEvent] = [
    Accepted(0, 20, 8), Progress(0, 12, 20), Progress(0, 12, 20), entries(1), TextDelta(0, "x"), entries(3),
    TextDelta(0, "xxx"), END,
]  # fmt: skip


@pytest.mark.parametrize("dialect", ["native", "chat"])
def test_progress_and_timings_of_a_stream(dialect: str) -> None:
    clock = Seconds()
    ctx = context(clock, return_progress=True, timings_per_token=True)
    stream: Any = LlamaCompletionStream(ctx) if dialect == "native" else ChatStream(ctx)
    frames = stream.open()
    for event in SCRIPT:
        clock.now_s += 0.5
        frames += stream.feed(event)
    frames += stream.close()
    check_frames(NATIVE if dialect == "native" else CHAT, frames)
    items = [json.loads(frame.data) for frame in frames if frame.data != b"[DONE]"]
    told = [item["prompt_progress"] for item in items if "prompt_progress" in item]
    assert told == [
        {"total": 20, "cache": 8, "processed": 8, "time_ms": 500.0},
        {"total": 20, "cache": 8, "processed": 12, "time_ms": 1000.0},
        {"total": 20, "cache": 8, "processed": 20, "time_ms": 2500.0},
    ]
    beside = [item["timings"] for item in items if "prompt_progress" in item]
    assert [(t["prompt_n"], t["cache_n"], t["prompt_ms"]) for t in beside] == [
        (p["processed"] - p["cache"], p["cache"], p["time_ms"] if p["processed"] > 8 else 0.0) for p in told
    ]
    timings = [item["timings"] for item in items if "timings" in item and "prompt_progress" not in item][:-1]
    assert [(t["prompt_n"], t["cache_n"], t["prompt_ms"]) for t in timings] == [(12, 8, 2500.0)] * 2
    assert [(t["predicted_n"], t["predicted_ms"]) for t in timings] == [(1, 0.0), (4, 1000.0)]
    assert timings[1]["predicted_per_second"] == 3.0, "the first token belongs to the prompt's time"


@pytest.mark.parametrize("stream_of", [LlamaCompletionStream, ChatStream])
def test_nothing_is_told_unasked(stream_of: Any) -> None:
    stream = stream_of(context(Seconds()))
    frames = [frame for event in SCRIPT[:-1] for frame in stream.feed(event)]
    assert len(frames) == 2 and not any(b"timings" in f.data or b"prompt_progress" in f.data for f in frames)


def test_the_last_item_tells_what_was_in_force_and_that_the_context_was_full() -> None:
    fold = LlamaCompletionFold(context(Seconds(), n_predict=40, stop="END", n_keep=4))
    for event in SCRIPT:
        fold.feed(event)
    body = fold.body()
    check_reply(NATIVE, body)
    found = body["generation_settings"]
    assert (found["seed"], found["temperature"], found["repeat_penalty"]) == (77, 0.5, 1.0)
    assert (found["n_predict"], found["stop"], found["stream"], found["n_keep"]) == (40, ["END"], True, 4)
    assert body["truncated"] is True
    assert found["samplers"] == list(_ALL) and found["logit_bias"] == [] and found["speculative.types"] == "auto"
    assert set(found) >= _ELSE_IN_FORCE
    shorter = LlamaCompletionFold(context(Seconds()))
    for event in (Accepted(0, 19, 0), END):
        shorter.feed(event)
    assert shorter.body()["truncated"] is False


_ALL = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
_ELSE_IN_FORCE = {
    "grammar_lazy", "grammar_triggers", "preserved_tokens", "chat_format", "reasoning_format", "reasoning_in_content",
    "generation_prompt", "lora", "backend_sampling", "adaptive_target", "adaptive_decay",
}  # fmt: skip


def test_biases_in_force_name_the_ends_that_are_ignored() -> None:
    sampling = SamplingParams(logit_bias=((5, 1.5), (6, -1e6)), banned_ids=(2, 9))
    found = settings_body(sampling, {"ignore_eos": True, "samplers": "tk"})
    assert found["logit_bias"] == [
        {"token": 5, "bias": 1.5},
        {"token": 6, "bias": None},
        {"token": 2, "bias": None},
        {"token": 9, "bias": None},
    ]
    assert found["samplers"] == ["top_k", "temperature"] and found["ignore_eos"] is True


def test_a_streams_items_list_their_tokens_unasked() -> None:
    stream = LlamaCompletionStream(context(Seconds()))
    items = [json.loads(frame.data) for event in SCRIPT for frame in stream.feed(event)]
    n_tokens = sum(len(event.entries) for event in SCRIPT if isinstance(event, Logprobs))
    assert n_tokens and sum(len(item["tokens"]) for item in items) == n_tokens


def test_a_message_is_either_continued_or_begun() -> None:
    body = {"model": "toy", "messages": [{"role": "assistant", "content": "a"}], "continue_final_message": True}
    assert chat_request(body).continue_final_message
    with pytest.raises(InvalidRequest) as caught:
        chat_request(body | {"add_generation_prompt": True})
    assert caught.value.param == "add_generation_prompt"
