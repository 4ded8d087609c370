"""A live server with a scripted engine that answers 'Hello wörld', shared by a module's tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from imp_server.engine.client.scripted import ScriptedEngine, text_ids

from tests.api.byte_text import ByteText
from tests.api.live_server import LiveServer, live_server


def scripted() -> ScriptedEngine:
    engine = ScriptedEngine(ByteText().vocabulary)
    engine.always(text_ids("Hello wörld"))
    return engine


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(scripted, ByteText) as live:
        yield live


@pytest.fixture(scope="module")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client
