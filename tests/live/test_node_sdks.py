"""The official Node SDKs and the AI SDK, fetched with npm, against a live server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from imp_server.core import GenerateRequest
from imp_server.engine.client.scripted import Action, text_ids

from tests.api.live_server import LiveServer
from tests.live.toy_server import TOOLS_CHATML, call_text, toy_server

NODE, NPM = shutil.which("node"), shutil.which("npm")
CHECKS = Path(__file__).parent / "node"
AI_SDK = ["ai@6", "@ai-sdk/openai@3", "@ai-sdk/anthropic@3", "@ai-sdk/openai-compatible@2"]
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


def run_check(name: str, packages: list[str], url: str, folder: Path) -> str:
    install = [str(NPM), "install", "--no-audit", "--no-fund", "--loglevel=error", *packages]
    installed = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=240)
    assert installed.returncode == 0, installed.stderr
    shutil.copy(CHECKS / name, folder)
    ran = subprocess.run([str(NODE), name, url], cwd=folder, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.timeout(300)
def test_node_sdks(server: LiveServer, tmp_path: Path) -> None:
    major = int(subprocess.check_output([str(NODE), "--version"], text=True)[1:].split(".")[0])
    packages = ["openai@7" if major >= 22 else "openai@6", "@anthropic-ai/sdk@1"]
    assert "node sdks ok" in run_check("check.mjs", packages, server.url, tmp_path)


@pytest.mark.timeout(300)
def test_ai_sdk(server: LiveServer, tmp_path: Path) -> None:
    assert "ai sdk ok" in run_check("ai_sdk.mjs", AI_SDK, server.url, tmp_path)
