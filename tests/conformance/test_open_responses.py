"""The checks of the Open Responses suite against our own HTTP server, with a model that calls when it may."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from imp_server.core import GenerateRequest
from imp_server.dialects.openai_responses import resource as resource
from imp_server.engine.client.scripted import text_ids

from tests.api.live_server import LiveServer
from tests.live.served_model import served
from tests.live.toy_server import MODEL, TOOLS_CHATML, call_text, toy_server

SCRIPT = Path(__file__).resolve().parents[2] / "conformance" / "open_responses.py"


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    spec = importlib.util.spec_from_file_location("open_responses", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def written(request: GenerateRequest, _choice: int) -> tuple[Any, ...]:
    """A model that calls the tool where the prompt shows one."""
    prompt = bytes(i for i in memoryview(request.ids).cast("i") if i < 256)
    text = call_text("get_weather", location="Bern") if b"get_weather" in prompt else "Very well."
    return (text_ids(text),)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        live.engine.answer_with(written)
        yield live


def found(suite: ModuleType, server: LiveServer) -> dict[str, str]:
    target = suite.Target(f"{server.url}/v1", "none", MODEL)
    outcomes: dict[str, str] = asyncio.run(suite.outcomes(target))
    return outcomes


def test_all_but_the_image_hold(suite: ModuleType, server: LiveServer) -> None:
    outcomes = found(suite, server)
    assert len(outcomes) == 17
    image = outcomes.pop("image-input")
    assert "vision_unavailable" in image, "no model reads images yet"
    assert {name: why for name, why in outcomes.items() if why} == {}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_documented_command_line_holds_15(suite: ModuleType, smollm2_path: Path) -> None:
    """Greedy and with a light penalty the answers are the same each time, and none of them runs to its limit."""
    with served(smollm2_path, "--temperature", "0", "--repetition-penalty", "1.05") as server:
        outcomes = asyncio.run(suite.outcomes(suite.Target(f"{server.url}/v1", "none", "m")))
    assert {name for name, why in outcomes.items() if why} == {"image-input", "tool-calling"}


def test_the_checks_see_what_is_wrong(suite: ModuleType, server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that once cost five of them: a resource without its temperature."""
    monkeypatch.setattr(resource, "_IN_FORCE", ("top_p", "presence_penalty", "frequency_penalty"))
    server.services.check_replies = False
    outcomes = found(suite, server)
    server.services.check_replies = True
    failed = {name for name, why in outcomes.items() if "temperature" in why}
    assert failed >= {"basic-response", "streaming-response", "websocket-response", "multi-turn", "tool-calling"}


@pytest.fixture(scope="module")
def resource_sent(server: LiveServer) -> dict[str, Any]:
    """One that the server really sent."""
    reply = httpx.post(f"{server.url}/v1/responses", json={"model": MODEL, "input": "Hi.", "store": False})
    sent: dict[str, Any] = reply.raise_for_status().json()
    assert sent["status"] == "completed"
    return sent


CUT_OFF = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"}


def outcome(suite: ModuleType, check: str, monkeypatch: pytest.MonkeyPatch, reply: httpx.Response) -> tuple[str, Any]:
    """What `check` says of `reply`, and the request that it made."""
    asked = []

    async def post(_target: Any, body: Any, path: str = "/responses") -> httpx.Response:
        asked.append(body)
        return reply

    monkeypatch.setattr(suite, "_post", post)
    _, why = asyncio.run(suite._outcome(suite.Target("http://nowhere/v1", "none", MODEL), getattr(suite, check)))
    return why, asked[0]


@pytest.mark.parametrize(
    ("check", "change", "why"),
    [
        ("basic_response", {}, ""),
        ("basic_response", CUT_OFF, "incomplete"),
        ("basic_response", {"output": []}, "no output"),
        ("tool_calling", {}, "function_call"),
        ("tool_calling", {"output": [CALL]}, ""),
        ("tool_calling", {"output": [CALL]} | CUT_OFF, ""),
    ],
)
def test_a_status_of_completed_is_due_where_the_suite_wants_it(
    suite: ModuleType,
    resource_sent: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    change: dict[str, Any],
    why: str,
) -> None:
    found_why, _ = outcome(suite, check, monkeypatch, httpx.Response(200, json=resource_sent | change))
    assert why in found_why
    assert bool(found_why) is bool(why)


def test_a_body_that_is_not_called_json_fails(
    suite: ModuleType, resource_sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = httpx.Response(200, json=resource_sent, headers={"content-type": "text/plain"})
    assert "content type" in outcome(suite, "basic_response", monkeypatch, reply)[0]


@pytest.mark.parametrize(
    ("frame", "passes"), [("data: {}\n\n", True), ("data: {}\n", False), ("data: {}\r\n\r\n", False)]
)
def test_an_event_ends_with_an_empty_line(
    suite: ModuleType, resource_sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch, frame: str, passes: bool
) -> None:
    event = {"type": "response.completed", "sequence_number": 0, "response": resource_sent | {"output": []}}
    reply = httpx.Response(200, text=frame.replace("{}", json.dumps(event)))
    assert (outcome(suite, "streaming_response", monkeypatch, reply)[0] == "") is passes


def test_requests_have_the_shape_of_the_suites(suite: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(check: str) -> Any:
        return outcome(suite, check, monkeypatch, httpx.Response(500))[1]["input"]

    assert [item["role"] for item in asked("assistant_phase")] == ["assistant", "assistant", "user"]
    assert [item["role"] for item in asked("compact_response")] == ["user", "assistant"]
    said = [item["content"] for item in asked("websocket_compact_new_chain")]
    assert [[part["type"] for part in parts] for parts in said] == [["input_text"], ["output_text"], ["input_text"]]
    assert set(said[1][0]) == {"type", "text"}


class Turns:
    """A connection on which the responses given are answered one after the other."""

    def __init__(self, responses: list[dict[str, Any]]) -> None:
        self.events = [{"type": "response.completed", "sequence_number": 0, "response": one} for one in responses]

    async def __call__(self, *_: Any, **__: Any) -> Turns:
        return self

    async def send(self, _text: str) -> None: ...

    async def recv(self) -> str:
        return json.dumps(self.events.pop(0))

    async def close(self) -> None: ...


@pytest.mark.parametrize(("statuses", "passes"), [(({}, {}), True), ((CUT_OFF, {}), True), (({}, CUT_OFF), False)])
def test_only_the_turn_under_test_must_be_completed(
    suite: ModuleType,
    resource_sent: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    statuses: tuple[dict[str, Any], ...],
    passes: bool,
) -> None:
    monkeypatch.setattr(suite, "connect", Turns([resource_sent | change for change in statuses]))
    target = suite.Target("http://nowhere/v1", "none", MODEL)
    _, why = asyncio.run(suite._outcome(target, suite.websocket_continuation))
    assert (why == "") is passes, why


def test_the_error_that_evicts_may_be_in_no_published_shape(
    suite: ModuleType, resource_sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns([resource_sent])
    error = {"code": "invalid_history", "message": "no such call"}
    missing = {"code": "previous_response_not_found", "message": "gone"}
    turns.events += [{"type": "error", "error": error}, {"type": "error", "status": 404, "error": missing}]
    monkeypatch.setattr(suite, "connect", turns)
    target = suite.Target("http://nowhere/v1", "none", MODEL)
    assert asyncio.run(suite._outcome(target, suite.websocket_failed_continuation_evicts_cache))[1] == ""
