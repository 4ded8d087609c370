"""The checks of the Open Responses suite against our own HTTP server, with a model that calls when it may."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from imp_server.core import GenerateRequest
from imp_server.dialects import openai_responses_resource as resource
from imp_server.engine.scripted import text_ids

from tests.api.live_server import LiveServer
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


def test_the_checks_see_what_is_wrong(suite: ModuleType, server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that once cost five of them: a resource without its temperature."""
    monkeypatch.setattr(resource, "_IN_FORCE", ("top_p", "presence_penalty", "frequency_penalty"))
    server.hub.check_replies = False
    outcomes = found(suite, server)
    server.hub.check_replies = True
    failed = {name for name, why in outcomes.items() if "temperature" in why}
    assert failed >= {"basic-response", "streaming-response", "websocket-response", "multi-turn", "tool-calling"}
