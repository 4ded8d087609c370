"""TGI bodies -> PromptRequest, and events -> its replies."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.core import (
    Finish,
    InvalidRequest,
    LogprobEntry,
    Logprobs,
    OutputEvent,
    PromptLogprobs,
    PromptRequest,
    TextDelta,
    Usage,
)
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.tgi.handlers import prompt_request
from imp_server.dialects.tgi.reply import GenerateFold, GenerateStream

from tests.dialects.contract_check import check_frames, check_reply, checked
from tests.dialects.event_lists import event_lists


def parsed(**parameters: Any) -> PromptRequest:
    return prompt_request(checked("tgi.generate", {"inputs": "hi", "parameters": parameters}), told_by_token=False)


def context(**parameters: Any) -> ReplyContext:
    body = {"inputs": "in:", "parameters": parameters}
    return ReplyContext(id="cmpl-1", model="toy", created=0, request_id="r", body=body)


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({}, 0.0),
        ({"do_sample": False}, 0.0),
        ({"do_sample": True}, None),
        ({"temperature": 0.5}, 0.5),
        ({"top_p": 0.5}, None),
    ],
)
def test_greedy_unless_sampling_is_asked_for(parameters: dict[str, Any], temperature: float | None) -> None:
    assert parsed(**parameters).sampling.asked.get("temperature") == temperature


def test_parameters() -> None:
    request = parsed(max_new_tokens=7, stop=["a"], seed=3, details=True, repetition_penalty=1.2)
    assert (request.prompt, request.output.max_tokens, request.output.stop, request.options.logprobs) == (
        ("hi",),
        7,
        ("a",),
        0,
    )
    assert (request.sampling.asked.get("seed"), request.sampling.asked.get("repetition_penalty")) == (3, 1.2)
    assert parsed().output.max_tokens == parsed(max_new_tokens=None).output.max_tokens == 100
    assert parsed(top_n_tokens=4).options.logprobs == 4 and parsed().options.logprobs is None
    assert parsed(grammar={"type": "regex", "value": "a+"}).output.response_format.kind == "regex"
    assert parsed(grammar={"type": "json", "value": {"type": "object"}}).output.response_format.kind == "json_schema"


@pytest.mark.parametrize(
    "parameters", [{"best_of": 2}, {"watermark": True}, {"truncate": 5}, {"temperature": 0}, {"max_new_tokens": 0}]
)
def test_what_is_not_offered_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        parsed(**parameters)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12), st.sets(st.integers(1, 40)))
def test_the_texts_of_the_tokens_are_the_generated_text(text: str, places: set[int]) -> None:
    """However tokens cut the bytes of a character."""
    data = text.encode()
    edges = [0, *sorted(p for p in places if p < len(data)), len(data)]
    entries = tuple(LogprobEntry(i, data[a:b], -0.5) for i, (a, b) in enumerate(pairwise(edges)))
    fold, stream = GenerateFold(context(details=True)), GenerateStream(context())
    sent = []
    for event in (Logprobs(0, entries), TextDelta(0, text), Finish(0, "stop", Usage(3, len(entries)))):
        fold.feed(event)
        sent += stream.feed(event)
    streamed = [json.loads(frame.data) for frame in sent + stream.close()]
    assert "".join(e["token"]["text"] for e in streamed) == streamed[-1]["generated_text"] == text
    tokens = fold.body()["details"]["tokens"]
    assert "".join(token["text"] for token in tokens) == text and len(tokens) == len(entries)


def test_the_prompts_tokens_come_where_they_are_asked_for() -> None:
    euro = "€".encode()
    entries = (LogprobEntry(7, euro[:1], -1.5), LogprobEntry(8, euro[1:], -0.25))
    fold = GenerateFold(context(decoder_input_details=True))
    for event in (PromptLogprobs(0, 5, b"a", entries), TextDelta(0, "x"), Finish(0, "stop", Usage(3, 1))):
        fold.feed(event)
    check_reply("tgi.generate", fold.body())
    assert fold.body()["details"]["prefill"] == [
        {"id": 5, "text": "a", "logprob": None},
        {"id": 7, "text": "", "logprob": -1.5},
        {"id": 8, "text": "€", "logprob": -0.25},
    ]
    assert parsed(decoder_input_details=True).options.prompt_logprobs == 0 and parsed().options.prompt_logprobs is None


@settings(max_examples=40, deadline=None)
@given(event_lists(logprobs=True))
def test_the_stream_adds_up_to_the_fold(events: list[OutputEvent]) -> None:
    spoken = [e for e in events if isinstance(e, TextDelta | Logprobs | Finish)]
    wanted = {"details": True, "top_n_tokens": 2, "return_full_text": True}
    fold, stream = GenerateFold(context(**wanted)), GenerateStream(context(**wanted))
    frames = stream.open()
    for event in spoken:
        fold.feed(event)
        frames += stream.feed(event)
    frames += stream.close()
    check_frames("tgi.generate_stream", frames)
    check_reply("tgi.generate", fold.body())
    sent, whole = [json.loads(frame.data) for frame in frames], fold.body()
    assert [e["index"] for e in sent] == list(range(1, len(sent) + 1))
    assert [e["token"] for e in sent if not e["token"]["special"]] == whole["details"]["tokens"]
    assert [e["generated_text"] for e in sent] == [None] * (len(sent) - 1) + [whole["generated_text"]]
    assert sent[-1]["details"]["finish_reason"] == whole["details"]["finish_reason"]


def test_a_token_is_sent_at_once_unless_it_must_be_the_last() -> None:
    stream = GenerateStream(context(max_new_tokens=3))
    entry = LogprobEntry(97, b"a", -0.5)
    assert len(stream.feed(Logprobs(0, (entry,)))) == 1
    assert len(stream.feed(Logprobs(0, (entry, entry)))) == 1
    stream.feed(Finish(0, "length", Usage(3, 3)))
    (last,) = stream.close()
    assert json.loads(last.data)["token"]["id"] == 97 and json.loads(last.data)["index"] == 3


def test_an_answer_that_ends_by_itself_has_an_empty_last_event() -> None:
    stream = GenerateStream(context())
    stream.feed(Logprobs(0, (LogprobEntry(97, b"a", -0.5),)))
    stream.feed(TextDelta(0, "a"))
    stream.feed(Finish(0, "stop", Usage(3, 1)))
    (last,) = stream.close()
    told = json.loads(last.data)
    assert (
        told["token"]["special"] and told["generated_text"] == "a" and told["details"]["finish_reason"] == "eos_token"
    )
