"""Native completion bodies -> PromptRequests, and events -> native items."""

from __future__ import annotations

import json
from math import log
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from imp_server.core import (
    Accepted,
    Finish,
    InvalidRequest,
    LogprobEntry,
    Logprobs,
    OutputEvent,
    Progress,
    PromptRequest,
    ResponseFormat,
    TextDelta,
    Timings,
    Usage,
)
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.llamacpp.fields import BANNED, bias_of, prompts_of
from imp_server.dialects.llamacpp.reply import LlamaCompletionFold, LlamaCompletionStream
from imp_server.dialects.llamacpp.request import prompt_requests
from imp_server.dialects.timings import timings_body

from tests.dialects.contract_check import check_frames, check_reply, checked
from tests.dialects.event_lists import event_lists

CREATE = "llamacpp.completion"


def parsed(**body: Any) -> PromptRequest:
    content = checked(CREATE, {"prompt": "hi"} | body)
    return prompt_requests(content, {})[0]


def context(*prompts: str, **body: Any) -> ReplyContext:
    ctx = ReplyContext(id="cmpl-1", model="toy", created=0, request_id="r", body={"prompt": "hi"} | body)
    ctx.extra["prompts"] = list(prompts or ("hi",))
    return ctx


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a", [("a",)]),
        ([1, 2], [(1, 2)]),
        (["a", 1, "b"], [("a", 1, "b")]),
        (["a", "b"], [("a",), ("b",)]),
        ([[1, 2], "b", ["c", 3]], [(1, 2), ("b",), ("c", 3)]),
    ],
)
def test_prompts(value: Any, found: Any) -> None:
    assert prompts_of(checked(CREATE, {"prompt": value})["prompt"]) == found


@pytest.mark.parametrize("value", ["", [], {}, 5, None, [-1], [[]], [["a"]], [1.5], [True], [1, None]])
def test_prompts_that_are_none(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        checked(CREATE, {"prompt": value})


def test_sampler_names() -> None:
    asked = {
        "repeat_penalty": 1.3,
        "temperature": 0.5,
        "top_k": 5,
        "min_p": 0.2,
        "typical_p": 0.9,
        "presence_penalty": 1,
    }
    everything = parsed(**asked).sampling
    assert (
        everything.asked.get("repetition_penalty"),
        everything.asked.get("temperature"),
        everything.asked.get("top_k"),
    ) == (1.3, 0.5, 5)
    some = parsed(**asked, samplers=["top_k", "typical_p"]).sampling
    assert some == parsed(**asked, samplers="ky").sampling
    assert (
        some.asked.get("top_k"),
        some.asked.get("typical_p"),
        some.asked.get("min_p"),
        some.asked.get("temperature"),
    ) == (5, 0.9, 0.0, 1.0)
    assert (some.asked.get("repetition_penalty"), some.asked.get("presence_penalty"), some.asked.get("top_p")) == (
        1.0,
        0.0,
        1.0,
    )
    assert parsed().sampling == parsed(samplers=None).sampling


def test_the_rarer_samplers() -> None:
    asked = {
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "dynatemp_range": 1,
        "dynatemp_exponent": 2,
        "top_n_sigma": 3,
    }
    found = parsed(**asked).sampling
    assert {name: found.asked[name] for name in asked} == asked
    only = parsed(**asked, samplers="x").sampling
    assert (
        only.asked.get("xtc_probability"),
        only.asked.get("dynatemp_range"),
        only.asked.get("top_n_sigma"),
        only.asked.get("temperature"),
    ) == (0.5, 0.0, 0.0, 1.0)
    assert parsed(**asked, samplers=["top_n_sigma", "temperature"]).sampling.asked.get("xtc_probability") == 0.0
    assert parsed(top_n_sigma=-1).sampling.asked.get("top_n_sigma") == 0.0


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, None),
        ({"n_predict": -1}, None),
        ({"n_predict": 0}, 0),
        ({"max_tokens": 7}, 7),
        ({"n_predict": 3, "max_tokens": 7}, 3),
        ({"max_completion_tokens": 2, "max_tokens": 7}, 2),
    ],
)
def test_n_predict(body: dict[str, Any], found: int | None) -> None:
    assert parsed(**body).output.max_tokens == found


def test_limits_of_time_and_indentation() -> None:
    asked = parsed(t_max_predict_ms=250, n_indent=4, n_keep=-1, n_discard=10)
    assert (asked.options.predict_s, asked.output.min_indent) == (0.25, 4)
    for off in ({}, {"t_max_predict_ms": 0}, {"t_max_predict_ms": -1, "n_indent": 0}, {"n_keep": 7}):
        assert (parsed(**off).options.predict_s, parsed(**off).output.min_indent) == (None, 0)


def test_a_session_pins_and_cache_prompt_does_not() -> None:
    asked = parsed(session_id="chat:1", cache_prompt=True).cache
    assert (asked.session_id, asked.pin_prompt) == ("chat:1", False)
    assert parsed().cache.session_id is None


def test_logit_bias_in_both_forms() -> None:
    assert bias_of([[5, 1.5], ["word", -2], [7, False]]) == [(5, 1.5), ("word", -2.0), (7, BANNED)]
    assert bias_of({"5": 1, "word": False}) == [(5, 1.0), ("word", BANNED)]
    assert bias_of(None) == []


def test_grammar_wins_over_the_schema() -> None:
    assert parsed(json_schema={}).output.response_format == ResponseFormat(
        "json_schema", schema={"type": "object"}, param="json_schema"
    )
    assert parsed(json_schema={}, grammar='root ::= "a"').output.response_format.kind == "grammar"
    assert parsed(grammar="").output.response_format == ResponseFormat()


def test_probabilities_and_tokens_ask_for_logprobs() -> None:
    assert [parsed(**body).options.logprobs for body in ({}, {"n_probs": 3}, {"return_tokens": True})] == [None, 3, 0]
    after = {"post_sampling_probs": True}
    assert parsed(n_probs=3, **after).options.logprobs_as_drawn and not parsed(n_probs=3).options.logprobs_as_drawn
    assert not parsed(return_tokens=True, **after).options.logprobs_as_drawn, "nothing is shown, so nothing is computed"


@pytest.mark.parametrize(
    "body",
    [
        {"xtc_probability": 1.5},
        {"dynatemp_range": -1},
        {"top_n_sigma": "x"},
        {"lora": [{"id": 0}]},
        {"samplers": ["magic"]},
        {"n_predict": -2},
        {"t_max_predict_ms": -2},
        {"n_indent": -1},
        {"n_keep": -2},
        {"n_discard": -1},
        {"mirostat": 3},
        {"logit_bias": [[1]]},
    ],
)
def test_what_is_not_offered_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        parsed(**body)


def test_several_completions_of_each_prompt() -> None:
    assert parsed(n_cmpl=3).options.n == 3 and parsed(n=2).options.n == 2 and parsed().options.n == 1
    ctx = context("a", "b", n_cmpl=2)
    fold, stream = LlamaCompletionFold(ctx), LlamaCompletionStream(ctx)
    frames = []
    for choice in (1, 0, 3, 2):
        for event in (Accepted(choice, 10, 0), TextDelta(choice, f"t{choice}"), Finish(choice, "stop", Usage())):
            fold.feed(event)
            frames += stream.feed(event)
    found = fold.body()
    assert [(b["index"], b["prompt"], b["content"]) for b in found] == [
        (0, "a", "t0"), (1, "a", "t1"), (2, "b", "t2"), (3, "b", "t3"),
    ]  # fmt: skip
    assert all(body["tokens_evaluated"] == 10 for body in found)
    ends = [json.loads(frame.data) for frame in frames if b'"stop":true' in frame.data]
    assert [end["index"] for end in ends] == [1, 0, 3, 2]


USAGE = Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=4)
DONE = Finish(0, "stop", USAGE, timings=Timings(1.0, 12.0, 20.0, 13.0))


def test_final_object() -> None:
    fold = LlamaCompletionFold(context(n_probs=1, return_tokens=True, id_slot=1))
    entry = LogprobEntry(72, b"H", -0.5, ((72, b"H", -0.5),))
    for event in (Accepted(0, 10, 4), Logprobs(0, (entry,)), TextDelta(0, "H\n"), DONE):
        fold.feed(event)
    body = fold.body()
    check_reply(CREATE, body)
    assert (body["content"], body["stop_type"], body["tokens"], body["id_slot"]) == ("H\n", "eos", [72], 1)
    assert body["completion_probabilities"][0]["top_logprobs"][0]["token"] == "H"
    assert body["has_new_line"] and body["tokens_cached"] == 4 and body["prompt"] == "hi"


def test_probabilities_after_sampling_have_names_of_their_own() -> None:
    ctx = context(n_probs=2, post_sampling_probs=True, stream=True)
    entry = LogprobEntry(72, b"H", log(0.25), ((73, b"I", log(0.75)), (72, b"H", log(0.25))))
    fold, stream, frames = LlamaCompletionFold(ctx), LlamaCompletionStream(ctx), []
    for event in (Accepted(0, 10, 4), Logprobs(0, (entry,)), TextDelta(0, "H"), DONE):
        fold.feed(event)
        frames += stream.feed(event)
    check_reply(CREATE, fold.body())
    check_frames(CREATE, frames)
    (whole,) = fold.body()["completion_probabilities"]
    (piece,) = json.loads(frames[0].data)["completion_probabilities"]
    assert whole == piece and "logprob" not in whole and "top_logprobs" not in whole
    assert whole["prob"] == pytest.approx(0.25)
    assert [(t["token"], round(t["prob"], 9)) for t in whole["top_probs"]] == [("I", 0.75), ("H", 0.25)]


@pytest.mark.parametrize(
    ("finish", "kind", "word"),
    [
        (Finish(0, "stop", USAGE, "END"), "word", "END"),
        (Finish(0, "length", USAGE), "limit", ""),
        (Finish(0, "cancelled", USAGE), "none", ""),
    ],
)
def test_stop_type(finish: Finish, kind: str, word: str) -> None:
    fold = LlamaCompletionFold(context())
    fold.feed(finish)
    assert (fold.body()["stop_type"], fold.body()["stopping_word"]) == (kind, word)


def test_timings_are_finite_and_leave_the_first_token_out() -> None:
    body = timings_body(USAGE, DONE.timings)
    assert (body["prompt_n"], body["cache_n"], body["predicted_per_second"]) == (6, 4, 100.0)
    one = timings_body(Usage(prompt_tokens=4, completion_tokens=1, cached_tokens=4), Timings())
    assert one["predicted_per_second"] == one["prompt_per_second"] == one["predicted_per_token_ms"] == 0.0


def test_response_fields_choose_and_take_out() -> None:
    fold = LlamaCompletionFold(context(response_fields=["content", "timings/prompt_n", "nothing"], n_predict=3))
    fold.feed(TextDelta(0, "x"))
    fold.feed(DONE)
    assert fold.body() == {"content": "x", "timings/prompt_n": 6}


def test_several_prompts_are_an_array_and_a_mixed_stream() -> None:
    events: list[OutputEvent] = [TextDelta(1, "b"), TextDelta(0, "a"), DONE, Finish(1, "length", USAGE)]
    fold, stream = LlamaCompletionFold(context("p", "q")), LlamaCompletionStream(context("p", "q"))
    frames = stream.open()
    for event in events:
        fold.feed(event)
        frames += stream.feed(event)
    frames += stream.close()
    check_frames(CREATE, frames)
    check_reply(CREATE, fold.body())
    assert [(one["content"], one["prompt"]) for one in fold.body()] == [("a", "p"), ("b", "q")]
    items = [json.loads(frame.data) for frame in frames]
    assert [(i["index"], i["content"], i["stop"]) for i in items] == [
        (1, "b", False), (0, "a", False), (0, "", True), (1, "", True),
    ]  # fmt: skip


def test_progress_only_when_asked_for() -> None:
    for asked in (False, True):
        stream = LlamaCompletionStream(context(return_progress=asked))
        stream.feed(Accepted(0, 10, 4))
        frames = stream.feed(Progress(0, 6, 10))
        check_frames(CREATE, frames)
        assert bool(frames) == asked


@settings(max_examples=40, deadline=None)
@given(event_lists(logprobs=True))
def test_the_stream_adds_up_to_the_fold(events: list[OutputEvent]) -> None:
    spoken = [e for e in events if isinstance(e, Accepted | Progress | TextDelta | Logprobs | Finish)]
    body = {"n_probs": 2, "return_tokens": True}
    fold, stream = LlamaCompletionFold(context(**body)), LlamaCompletionStream(context(**body))
    frames = stream.open()
    for event in spoken:
        fold.feed(event)
        frames += stream.feed(event)
    frames += stream.close()
    check_frames(CREATE, frames)
    items, whole = [json.loads(frame.data) for frame in frames], json.loads(msgspec.json.encode(fold.body()))
    check_reply(CREATE, whole)
    assert "".join(item["content"] for item in items) == whole["content"]
    for name in ("tokens", "completion_probabilities"):
        assert [entry for item in items for entry in item[name]] == whole[name]
    assert (
        items[-1] | {"content": whole["content"]} | {n: whole[n] for n in ("tokens", "completion_probabilities")}
        == whole
    )


def test_a_stream_counts_tokens_not_pieces_of_text() -> None:
    assert parsed(stream=True).options.logprobs == 0
    assert parsed().options.logprobs is None
    stream = LlamaCompletionStream(context(stream=True))
    stream.feed(Logprobs(0, tuple(LogprobEntry(i, b"x", -1.0) for i in range(3))))
    (frame,) = stream.feed(TextDelta(0, "xxx"))
    assert json.loads(frame.data)["tokens_predicted"] == 3
