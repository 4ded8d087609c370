"""message_start waits for the prompt's turn, since it says what the cache gave; for a second at most."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.core import EngineFaulted
from imp_server.engine.client.scripted import Emit, Fail, Prefilled, ScriptedEngine, ScriptGate, Wait, text_ids

from tests.api.byte_text import ByteText
from tests.api.live_server import LiveServer, live_server

BODY = {"model": "m", "max_tokens": 16, "stream": True, "messages": [{"role": "user", "content": "hi"}]}


def new_engine(**options: Any) -> ScriptedEngine:
    return ScriptedEngine(ByteText().vocabulary, **options)


@pytest.fixture
def live() -> Iterator[LiveServer]:
    with live_server(lambda: new_engine(n_rows=1), ByteText) as server:
        yield server


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


def usage(event: dict[str, Any]) -> tuple[int, int]:
    counts = event["message"]["usage"] if event["type"] == "message_start" else event["usage"]
    return counts["input_tokens"], counts["cache_read_input_tokens"]


def test_it_has_the_counts_of_the_row_that_starts(live: LiveServer) -> None:
    computed = live.on_loop(asyncio.Event)
    live.engine.play(Wait(0.2), Prefilled(2, 2), ScriptGate(computed), text_ids("x"))
    with httpx.stream("POST", live.url + "/v1/messages", json=BODY, timeout=5) as response:
        found = events(response)
        start = next(found)
        assert start["type"] == "message_start" and usage(start)[1] == 2
        live.on_loop(computed.set)
        end = next(event for event in found if event["type"] == "message_delta")
        assert usage(end) == usage(start), "the end says nothing else"


def test_a_row_that_waits_longer_is_told_what_was_known_at_first(live: LiveServer) -> None:
    ahead = live.on_loop(asyncio.Event)
    live.engine.play(ScriptGate(ahead), text_ids("first"))
    live.engine.play(Prefilled(2, 2), text_ids("x"))
    url = live.url + "/v1/messages"
    began = time.monotonic()
    with httpx.stream("POST", url, json=BODY, timeout=5), httpx.stream("POST", url, json=BODY, timeout=5) as second:
        found = events(second)
        start = next(found)
        assert 1.0 < time.monotonic() - began < 5, "a second each, not for as long as the queue lasts"
        assert start["type"] == "message_start" and usage(start)[1] == 0
        live.on_loop(ahead.set)
        rest = list(found)
        assert [event["type"] for event in rest].count("message_start") == 0
        end = next(event for event in rest if event["type"] == "message_delta")
        assert usage(end)[1] == 2 and sum(usage(end)) == sum(usage(start)), "cumulative, and true"


@pytest.mark.parametrize("actions", [[Emit([120])], [Fail(EngineFaulted("one step failed"))], []])
def test_whatever_comes_first_opens(live: LiveServer, actions: list[Any]) -> None:
    live.engine.play(*actions)
    with httpx.stream("POST", live.url + "/v1/messages", json=BODY, timeout=5) as response:
        kinds = [event["type"] for event in events(response)]
    assert kinds[0] == "message_start" and kinds.count("message_start") == 1
    assert kinds[-1] == ("error" if actions and isinstance(actions[0], Fail) else "message_stop")
