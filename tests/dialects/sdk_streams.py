"""Reads frames with the official SDKs, as if they came over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import anthropic
import httpx2
import openai
from imp_server.core import OutputEvent
from imp_server.dialects.base import ReplyContext, SseFrame, Stream


def context(prefix: str, body: dict[str, Any]) -> ReplyContext:
    return ReplyContext(id=f"{prefix}_imp0123", model="toy", created=1_800_000_000, request_id="req-1", body=body)


def frames_of(stream: Stream, events: Iterable[OutputEvent]) -> list[SseFrame]:
    frames = stream.open()
    for event in events:
        frames += stream.feed(event)
    return frames + stream.close()


def wire(frames: Iterable[SseFrame]) -> bytes:
    named = ((f"event: {frame.event}\n" if frame.event else "").encode() + b"data: " + frame.data for frame in frames)
    return b"".join(frame + b"\n\n" for frame in named)


def _transport(frames: Iterable[SseFrame]) -> httpx2.Client:
    body = wire(frames)
    headers = {"content-type": "text/event-stream"}
    return httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, content=body, headers=headers)))


def openai_client(frames: Iterable[SseFrame], *, strict: bool = True) -> openai.OpenAI:
    return openai.OpenAI(
        api_key="k", base_url="http://test/v1", http_client=_transport(frames), _strict_response_validation=strict
    )


def anthropic_client(frames: Iterable[SseFrame]) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        api_key="k", base_url="http://test", http_client=_transport(frames), _strict_response_validation=True
    )
