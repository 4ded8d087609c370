"""Whole replies of a dialect from what the model writes: contract, text side, scripted engine, both transports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from imp_server.api.model_text_side import ModelTextSide
from imp_server.core import ChatRequest
from imp_server.dialects.anthropic import messages as anthropic_messages
from imp_server.dialects.base import ReplyContext
from imp_server.dialects.openai_chat.reply import ChatFold, ChatStream
from imp_server.dialects.openai_chat.request import chat_request
from imp_server.dialects.openai_responses import handlers as openai_responses

from tests.dialects.chat_accumulator import accumulate as accumulate_chat
from tests.dialects.contract_check import check_frames, check_reply, checked
from tests.dialects.message_accumulator import accumulate as accumulate_blocks
from tests.dialects.test_every_cut import cut, play

USER = [{"role": "user", "content": "hi"}]


class Dialect(NamedTuple):
    operation: str
    prefix: str
    limit: str
    body: dict[str, Any]
    parse: Callable[[dict[str, Any]], ChatRequest]
    fold: Callable[[ReplyContext], Any]
    stream: Callable[[ReplyContext], Any]
    stops: str | None = None
    """Its field for stop strings."""


DIALECTS = {
    "chat": Dialect("openai_chat.create_chat_completion", "chatcmpl-", "max_tokens", {"messages": USER}, chat_request,
                    ChatFold, ChatStream, "stop"),
    "responses": Dialect("openai_responses.create_response", "resp_", "max_output_tokens", {"input": "hi"},
                         openai_responses.parse, openai_responses.ResponseFold, openai_responses.ResponseStream),
    "messages": Dialect("anthropic_messages.create_message", "msg_", "max_tokens", {"messages": USER},
                        anthropic_messages.parse, anthropic_messages.MessageFold, anthropic_messages.MessageStream,
                        "stop_sequences"),
}  # fmt: skip


def run(name: str, side: ModelTextSide, body: dict[str, Any], data: Sequence[int], places: set[int]) -> dict[str, Any]:
    """The folded reply to ids (or the bytes of a byte model), after the stream has been seen to say the same."""
    dialect = DIALECTS[name]
    body = checked(dialect.operation, body)
    events = asyncio.run(play(side.prepare_chat(dialect.parse(body)), cut(data, places), side.vocabulary))
    context = ReplyContext(f"{dialect.prefix}1", "toy", 7, "req_1", body)
    context.extra["completed_at"] = 8
    fold, stream = dialect.fold(context), dialect.stream(context)
    frames = stream.open()
    for event in events:
        fold.feed(event)
        frames += stream.feed(event)
    frames += stream.close()
    reply: dict[str, Any] = json.loads(json.dumps(fold.body()))
    check_reply(dialect.operation, reply)
    check_frames(dialect.operation, frames)
    if name == "chat":
        streamed = accumulate_chat(frames)["choices"][0]["message"]
        assert streamed == reply["choices"][0]["message"]
    else:
        sent = [json.loads(frame.data) for frame in frames if frame.data != b"[DONE]"]
        if name == "messages":
            assert accumulate_blocks(sent) == reply["content"]
        else:
            assert sent[-1]["response"] == reply
    return reply
