"""Responses, Messages and native completions through the real text side: no cut of the tokens changes an answer."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imp_server.api.disconnect import DisconnectWatch
from imp_server.api.generations import Generations
from imp_server.api.model_text_side import ModelTextSide
from imp_server.core import OutputEvent
from imp_server.dialects.anthropic import messages as anthropic_messages
from imp_server.dialects.base import ReplyContext, SseFrame
from imp_server.dialects.llamacpp import reply as llamacpp_reply
from imp_server.dialects.llamacpp.request import prompt_requests
from imp_server.dialects.openai_responses import handlers as openai_responses
from imp_server.dialects.tgi import handlers as tgi
from imp_server.dialects.tgi import reply as tgi_reply
from imp_server.engine.client.scripted import Emit, ScriptedEngine
from imp_server.vocab.table import Vocabulary

from tests.dialects.contract_check import check_frames, check_reply
from tests.dialects.message_accumulator import accumulate
from tests.live.toy_server import TOOLS_CHATML, call_text
from tests.toy import byte_model

TEXT = ModelTextSide(byte_model(TOOLS_CHATML, context_length=8192))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
OUTPUTS = [
    "plain text",
    "Grüße 👋🏽 日本語",
    "<think>let me see…</think>42",
    "before STOP after",
    "STO",
    "",
    "Look: " + call_text("weather", city="Köln 🌦"),
    "<think>two</think>" + call_text("weather", city="a") + "\n" + call_text("weather"),
    '<tool_call>\n{"name": "weather", "arg',
]


class Case(NamedTuple):
    operation: str
    body: dict[str, Any]
    prepare: Callable[[dict[str, Any]], Any]
    fold: Callable[[ReplyContext], Any]
    stream: Callable[[ReplyContext], Any]


CASES = {
    "responses": Case(
        "openai_responses.create_response",
        {
            "model": "toy",
            "input": "hi",
            "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}],
            "reasoning": {"effort": "high"},
        },
        lambda body: TEXT.prepare_chat(openai_responses.parse(body)),
        openai_responses.ResponseFold,
        openai_responses.ResponseStream,
    ),
    "messages": Case(
        "anthropic_messages.create_message",
        {
            "model": "toy",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"name": "weather", "input_schema": SCHEMA}],
            "thinking": {"type": "adaptive"},
            "stop_sequences": ["STOP"],
        },
        lambda body: TEXT.prepare_chat(anthropic_messages.parse(body)),
        anthropic_messages.MessageFold,
        anthropic_messages.MessageStream,
    ),
    "native": Case(
        "llamacpp.completion",
        {"prompt": "hi", "stop": ["STOP"], "n_probs": 1, "return_tokens": True},
        lambda body: TEXT.prepare_prompt(prompt_requests(body, {})[0]),
        llamacpp_reply.LlamaCompletionFold,
        llamacpp_reply.LlamaCompletionStream,
    ),
    "generate": Case(
        "tgi.generate_stream",
        {"inputs": "hi", "parameters": {"stop": ["STOP"]}},
        lambda body: TEXT.prepare_prompt(tgi.prompt_request(body, told_by_token=True)),
        tgi_reply.GenerateFold,
        tgi_reply.GenerateStream,
    ),
}


async def play(prompt: Any, emits: list[Emit], vocabulary: Vocabulary = TEXT.vocabulary) -> list[OutputEvent]:
    engine = ScriptedEngine(vocabulary, context_length=8192)
    await engine.start()
    engine.play(*emits)
    running = Generations(engine, [prompt])
    await running.accept(DisconnectWatch(None))
    found = [event async for batch in running.events() for event in batch]
    await engine.stop()
    return found


def cut(data: Sequence[int], places: set[int]) -> list[Emit]:
    """`data`: ids; bytes are those of a byte vocabulary."""
    edges = [0, *sorted(p for p in places if 0 < p < len(data)), len(data)]
    return [Emit(data[a:b]) for a, b in itertools.pairwise(edges) if a < b]


def answers(case: Case, body: dict[str, Any], data: bytes, places: set[int]) -> tuple[Any, list[SseFrame]]:
    events = asyncio.run(play(case.prepare(body), cut(data, places)))
    context = ReplyContext("resp_1" if "input" in body else "msg_1", "toy", 7, "req_1", body)
    context.extra |= {"prompts": ["hi"], "completed_at": 8}
    fold, stream = case.fold(context), case.stream(context)
    frames: list[SseFrame] = stream.open()
    for event in events:
        fold.feed(event)
        frames += stream.feed(event)
    return fold.body(), frames + stream.close()


def timeless(body: Any) -> Any:
    """Without random ids and measured times."""
    text = re.sub(r"(call|toolu)_\w+", r"\1_x", json.dumps(body))
    return json.loads(re.sub(r'_(ms|second)": [\d.e+-]+', r'_\1": 0', text))


@pytest.mark.parametrize("name", list(CASES))
@settings(max_examples=50, deadline=None)
@given(
    output=st.sampled_from(OUTPUTS),
    places=st.sets(st.integers(1, 150), max_size=60),
    max_tokens=st.sampled_from([None, 1, 5, 12, 64]),
)
def test_the_stream_equals_the_fold_for_every_cut(
    name: str, output: str, places: set[int], max_tokens: int | None
) -> None:
    case = CASES[name]
    limit = {"responses": "max_output_tokens", "messages": "max_tokens", "native": "n_predict"}.get(name, "")
    body = case.body | ({limit: max_tokens} if max_tokens else {})
    if name == "generate" and max_tokens:
        body = body | {"parameters": {**case.body["parameters"], "max_new_tokens": max_tokens}}
    whole, _ = answers(case, body, output.encode(), set())
    folded, frames = answers(case, body, output.encode(), places)
    assert timeless(folded) == timeless(whole)
    check_reply(case.operation if name != "generate" else "tgi.generate", folded)
    check_frames(case.operation, frames)
    events = [json.loads(frame.data) for frame in frames if frame.data != b"[DONE]"]
    if name == "responses":
        assert events[-1]["response"] == folded
    elif name == "messages":
        assert accumulate(events) == folded["content"]
    elif name == "generate":
        assert [event["generated_text"] for event in events] == [None] * (len(events) - 1) + [folded["generated_text"]]
        assert [event["index"] for event in events] == list(range(1, len(events) + 1))
    else:
        assert "".join(event["content"] for event in events) == folded["content"]
    assert "\ufffd" not in json.dumps(folded, ensure_ascii=False)
