"""Whatever a model writes of a tool call, its server answers in time, and others of its clients meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest
from hypothesis import strategies as st
from imp_server.api.model_text_side import ModelTextSide
from imp_server.engine.client.scripted import ScriptedEngine

from tests.api.live_server import LiveServer, live_server
from tests.faults.hostile_requests import drawn
from tests.text.tools.spelled import FORMATS, ids_of
from tests.text.tools.test_hostile_output import BEGINNINGS, pieces
from tests.text.tools.test_triggers import model_of

TOOL = {"type": "function", "function": {"name": "first", "parameters": {"type": "object", "properties": {"s": {}}}}}
MOST_S, MOST_OTHERS_S = 15.0, 3.0
"""On a busy machine."""


def chat(live: LiveServer, **more: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 30_000, **more}
    return httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=60)


def check(form: str, n: int, n_times: int) -> None:
    """`n` drawn outputs, and each beginning of a call that goes on for `n_times` letters."""
    model = model_of(form, "none", False)
    words = [b"".join(found) for found in drawn(1, n, st.lists(pieces(model, form), max_size=14))]
    words += [
        f"<tool_call>{begun}".encode(errors="surrogateescape") + b"[{" * (n_times // 2)
        for begun in BEGINNINGS.get(form, [""])
    ]

    def engine() -> ScriptedEngine:
        return ScriptedEngine(model.vocabulary, context_length=200_000)

    with live_server(engine, lambda: ModelTextSide(model), check_replies=False) as live:
        for text in words:
            live.on_loop(live.engine.play, ids_of(model, text))
            took: list[float] = []
            sent = threading.Thread(target=_answered, args=(live, took))
            sent.start()
            began = time.monotonic()
            assert httpx.get(f"{live.url}/health", timeout=10).status_code == 200
            assert time.monotonic() - began < MOST_OTHERS_S
            sent.join()
            assert took and took[0] < MOST_S, (form, text[:100])


def _answered(live: LiveServer, took: list[float]) -> None:
    began = time.monotonic()
    assert chat(live, tools=[TOOL]).status_code == 200
    took.append(time.monotonic() - began)


@pytest.mark.parametrize("form", ["hermes", "qwen_xml"])
def test_hostile_calls_are_answered(form: str) -> None:
    check(form, 6, 2000)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", FORMATS)
def test_many_hostile_calls_are_answered(form: str) -> None:
    check(form, 100, 20_000)
