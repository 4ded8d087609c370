"""Ending the thinking of a live reply: on every dialect, by its id or the client's, with answers that are true."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from imp_server.engine.client.scripted import Emit, ScriptGate

from tests.api.live_server import LiveServer
from tests.live.toy_server import toy_server
from tests.toy import OPEN_THINKING_CHATML

USER = [{"role": "user", "content": "hi"}]
DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": USER}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "messages": ("/v1/messages", {"messages": USER, "max_tokens": 300, "thinking": {"type": "adaptive"}}),
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(OPEN_THINKING_CHATML, settings={"reasoning.think_budget": 1.0}) as live:
        yield live


def end_thinking(server: LiveServer, name: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/requests/{name}/end_thinking", timeout=10)


def control(server: LiveServer, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions/control", json=body, timeout=10)


class Reply:
    """A streamed reply whose model has thought `so far` and waits until `go_on`."""

    def __init__(self, server: LiveServer, dialect: str, thought: str = "so far", **fields: Any) -> None:
        self._server = server
        self._gate = server.on_loop(asyncio.Event)
        server.engine.play(Emit(thought.encode()), ScriptGate(self._gate), Emit(b"The answer."))
        path, body = DIALECTS[dialect]
        headers = {"x-request-id": fields.pop("x_request_id")} if "x_request_id" in fields else {}
        self._context = httpx.stream(
            "POST",
            server.url + path,
            json={"model": "toy", "stream": True, **body, **fields},
            headers=headers,
            timeout=10,
        )
        self._response = self._context.__enter__()
        assert self._response.status_code == 200, self._response.read()
        self._lines = self._response.iter_lines()
        self.text = ""
        while thought not in self.text:
            self.text += next(self._lines) + "\n"
        first = json.loads(next(line for line in self.text.split("\n") if line.startswith("data: "))[6:])
        self.id = first.get("id") or (first.get("response") or first.get("message"))["id"]

    def go_on(self) -> str:
        """All events until the end."""
        self._server.on_loop(self._gate.set)
        for line in self._lines:
            self.text += line + "\n"
        self._context.__exit__(None, None, None)
        return self.text


def spoken(text: str) -> tuple[str, str]:
    """(reasoning, answer) of a stream of any dialect."""
    reasoning = answer = ""
    for line in text.split("\n"):
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        kind, delta = event.get("type"), event.get("delta")
        if "choices" in event:
            delta = event["choices"][0]["delta"] if event["choices"] else {}
            reasoning += delta.get("reasoning_content") or ""
            answer += delta.get("content") or ""
        elif kind == "content_block_delta":
            reasoning += delta.get("thinking", "")
            answer += delta.get("text", "")
        elif kind == "response.reasoning_text.delta":
            reasoning += delta
        elif kind == "response.output_text.delta":
            answer += delta
    return reasoning, answer


@pytest.mark.parametrize("dialect", list(DIALECTS))
@pytest.mark.parametrize("by", ["reply", "client"])
def test_a_live_reply_of_any_dialect_goes_on_with_its_answer(server: LiveServer, dialect: str, by: str) -> None:
    reply = Reply(server, dialect, x_request_id="mine-7")
    name = reply.id if by == "reply" else "mine-7"
    ended = end_thinking(server, name)
    assert ended.json() == {"id": name, "object": "request.end_thinking", "status": "ending"}
    again = end_thinking(server, name)
    assert again.status_code == 200 and again.json()["status"] == "already_closed"
    assert spoken(reply.go_on()) == ("so far", "The answer.")
    gone = end_thinking(server, name)
    assert gone.status_code == 404
    assert (gone.json()["error"]["code"], gone.json()["error"]["param"]) == ("request_not_found", "id")


def test_the_control_route_tells_the_truth(server: LiveServer) -> None:
    reply = Reply(server, "chat")
    assert control(server, id=reply.id, action="reasoning_end").json() == {"success": True}
    assert control(server, id=reply.id, action="reasoning_end", model="toy").json()["success"] is False
    assert spoken(reply.go_on()) == ("so far", "The answer.")
    for name in (reply.id, "chatcmpl-nobody"):
        told = control(server, id=name, action="reasoning_end")
        assert told.status_code == 200 and told.json()["success"] is False and "no reply" in told.json()["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"action": "reasoning_end"},
        {"id": "", "action": "reasoning_end"},
        {"id": "x"},
        {"id": "x", "action": "stop"},
        {"id": 3, "action": "reasoning_end"},
    ],
)
def test_the_control_route_refuses_what_it_cannot_read(server: LiveServer, body: dict[str, Any]) -> None:
    refused = control(server, **body)
    assert refused.status_code == 400 and refused.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_a_client_may_forbid_it(server: LiveServer, dialect: str) -> None:
    reply = Reply(server, dialect, reasoning_control=False)
    told = control(server, id=reply.id, action="reasoning_end").json()
    assert told["success"] is False and "reasoning_control" in told["message"]
    refused = end_thinking(server, reply.id)
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "conflict"
    assert spoken(reply.go_on())[0] == "so farThe answer."


def test_of_two_with_the_same_name_the_newest_is_meant(server: LiveServer) -> None:
    older, newer = Reply(server, "chat", x_request_id="same"), Reply(server, "chat", x_request_id="same")
    assert end_thinking(server, "same").json()["status"] == "ending"
    assert spoken(newer.go_on())[1] == "The answer."
    assert end_thinking(server, "same").json()["status"] == "ending"
    assert spoken(older.go_on())[1] == "The answer."


def test_a_model_that_cannot_think_has_nothing_to_close() -> None:
    with toy_server() as plain:
        reply = Reply(plain, "chat")
        refused = end_thinking(plain, reply.id)
        assert refused.status_code == 409 and refused.json()["error"]["code"] == "no_reasoning_closer"
        told = control(plain, id=reply.id, action="reasoning_end").json()
        assert told["success"] is False and "tag" in told["message"]
        reply.go_on()
