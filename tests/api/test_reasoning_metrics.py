"""What is counted of thinking: answers that never began, and thinking that was ended on demand."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.api.test_end_thinking import DIALECTS, Reply, control
from tests.live.toy_server import toy_server
from tests.toy import OPEN_THINKING_CHATML

EXHAUSTED, ENDED = "imp_requests_reasoning_exhausted_total", "imp_think_end_requests_total"


def counts(server: LiveServer) -> tuple[int, int]:
    text = httpx.get(f"{server.url}/metrics", timeout=10).text
    found = [re.search(rf"^{name} (\d+)(\.0)?$", text, re.MULTILINE) for name in (EXHAUSTED, ENDED)]
    assert all(found), text
    return tuple(int(match.group(1)) for match in found if match)  # type: ignore[return-value]


def ask(server: LiveServer, dialect: str, text: str, **more: Any) -> str:
    server.engine.play(text_ids(text))
    path, body = DIALECTS[dialect]
    reply = httpx.post(server.url + path, json={"model": "toy", **body, **more}, timeout=10)
    assert reply.status_code == 200, reply.text
    return reply.text


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_an_answer_that_never_began_is_counted_once(dialect: str, streamed: bool) -> None:
    with toy_server(OPEN_THINKING_CHATML, settings={"reasoning.think_budget": 1.0}) as server:
        assert counts(server) == (0, 0)
        assert "reasoning_budget_exhausted" in ask(server, dialect, "never ends", stream=streamed)
        assert counts(server) == (1, 0)
        assert "reasoning_budget_exhausted" not in ask(server, dialect, "thought</think>said", stream=streamed)
        assert counts(server) == (1, 0)


def test_thinking_ended_on_demand_is_counted() -> None:
    with toy_server(OPEN_THINKING_CHATML, settings={"reasoning.think_budget": 1.0}) as server:
        reply = Reply(server, "chat")
        assert control(server, id="chatcmpl-unknown", action="reasoning_end").json()["success"] is False
        assert control(server, id=reply.id, action="reasoning_end").json() == {"success": True}
        reply.go_on()
        assert counts(server) == (0, 1)
