"""Unusual but legal requests through the official SDKs, replies validated against their types, whole and streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest
from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, anthropic_sdk, openai_sdk, prompt_of, toy_server
from tests.live.unusual import chat, messages, responses
from tests.live.unusual.pieces import USER, Ask, Json

COUNTED = ("messages", "tools", "system", "tool_choice", "thinking", "output_config", "cache_control")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        yield live


@pytest.fixture(scope="module")
def gpt(server: LiveServer) -> openai.OpenAI:
    return openai_sdk(server, timeout=20)


@pytest.fixture(scope="module")
def claude(server: LiveServer) -> anthropic.Anthropic:
    return anthropic_sdk(server, timeout=20)


def judged(server: LiveServer, ask: Ask, send: Callable[[], Any]) -> Any:
    """The reply; None where the request is rightly refused."""
    server.engine.always(text_ids(ask.text))
    if ask.status != 200:
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as refused:
            send()
        assert isinstance(refused.value, openai.APIStatusError | anthropic.APIStatusError)
        assert refused.value.status_code == ask.status, refused.value
        return None
    reply = send()
    assert ask.shows in prompt_of(server)
    return reply


def ignored(raw: Any, ask: Ask) -> Any:
    assert raw.headers.get("x-imp-ignored-fields", "") == ask.ignored
    return raw.parse()


@pytest.mark.parametrize("ask", chat.ASKS, ids=lambda ask: ask.name)
def test_chat(server: LiveServer, gpt: openai.OpenAI, ask: Ask) -> None:
    body: Json = {"model": "toy", "messages": [USER], **ask.body}
    create = gpt.chat.completions
    reply = judged(server, ask, lambda: ignored(create.with_raw_response.create(**body), ask))
    chunks = judged(server, ask, lambda: list(create.create(stream=True, **body)))
    if reply is None:
        return
    for choice in reply.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.delta.content or "" for part in parts) == (choice.message.content or "")
        assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
        names = [call.function.name for call in choice.message.tool_calls or ()]
        deltas = [call for part in parts for call in part.delta.tool_calls or ()]
        assert [call.function.name for call in deltas if call.id] == names


@pytest.mark.parametrize("ask", messages.ASKS, ids=lambda ask: ask.name)
def test_messages(server: LiveServer, claude: anthropic.Anthropic, ask: Ask) -> None:
    body: Json = {"model": "toy", "max_tokens": 99, "messages": [USER], **ask.body}
    counted = {"model": "toy", **{name: value for name, value in body.items() if name in COUNTED}}
    reply = judged(server, ask, lambda: ignored(claude.messages.with_raw_response.create(**body), ask))
    whole = judged(server, ask, lambda: _streamed_message(claude, body))
    count = judged(server, ask._replace(shows=""), lambda: claude.messages.count_tokens(**counted))
    if reply is None:
        return
    assert _shape(reply) == _shape(whole)
    used = reply.usage
    n_cached = (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
    assert count.input_tokens == used.input_tokens + n_cached


def _streamed_message(claude: anthropic.Anthropic, body: Json) -> Any:
    with claude.messages.stream(**body) as stream:
        return stream.get_final_message()


def _shape(message: Any) -> Any:
    """Without ids and signatures."""
    blocks = [block.model_dump(exclude={"id", "signature", "parsed_output"}) for block in message.content]
    return message.stop_reason, message.stop_sequence, blocks


@pytest.mark.parametrize("ask", responses.ASKS, ids=lambda ask: ask.name)
def test_responses(server: LiveServer, gpt: openai.OpenAI, ask: Ask) -> None:
    body: Json = {"model": "toy", **ask.body}
    reply = judged(server, ask, lambda: ignored(gpt.responses.with_raw_response.create(**body), ask))
    whole = judged(server, ask, lambda: _streamed_response(gpt, body))
    if reply is None:
        return
    assert (reply.status, reply.output_text) == (whole.status, whole.output_text)
    assert [item.type for item in reply.output] == [item.type for item in whole.output]


def _streamed_response(gpt: openai.OpenAI, body: Json) -> Any:
    with gpt.responses.stream(**body) as stream:
        return stream.get_final_response()
