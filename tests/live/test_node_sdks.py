"""The official Node SDKs, fetched with npm, against a live server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from imp_server.core import GenerateRequest
from imp_server.engine.scripted import Action, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, call_text, toy_server

NODE, NPM = shutil.which("node"), shutil.which("npm")
CHECK = Path(__file__).parent / "node" / "check.mjs"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (NODE and NPM), reason="Node and npm aren't installed"),
]


def answer(request: GenerateRequest, _choice: int) -> tuple[Action, ...]:
    has_tools = b"weather" in bytes(i for i in memoryview(request.ids).cast("i") if i < 256)
    return (text_ids(call_text("weather", city="Köln") if has_tools else "Hello wörld"),)


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with toy_server(TOOLS_CHATML) as live:
        live.engine.answer_with(answer)
        yield live


@pytest.mark.timeout(300)
def test_node_sdks(server: LiveServer, tmp_path: Path) -> None:
    major = int(subprocess.check_output([str(NODE), "--version"], text=True)[1:].split(".")[0])
    packages = ["openai@7" if major >= 22 else "openai@6", "@anthropic-ai/sdk@1"]
    install = [str(NPM), "install", "--no-audit", "--no-fund", "--loglevel=error", *packages]
    installed = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert installed.returncode == 0, installed.stderr
    shutil.copy(CHECK, tmp_path)
    run = [str(NODE), "check.mjs", server.url]
    ran = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "node sdks ok" in ran.stdout
