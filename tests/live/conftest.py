"""`pytest tests/live --url URL [--key KEY] [--model NAME]` runs what fits any server against that one, nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from tests.dead_ends import assert_none_at
from tests.real_model import smollm2


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("live")
    group.addoption("--url", help="base URL of a running server, without /v1")
    group.addoption("--key", default="k", help="its API key")
    group.addoption("--model", help="model to ask for; the first one listed if absent")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The kit's cases run here against other servers only: tests/conformance has our own."""
    return True if collection_path.name == "test_conformance.py" and not config.getoption("--url", None) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--url", None):
        return
    fits = [item for item in items if "any_server" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=[item for item in items if item not in fits])
    items[:] = fits


@dataclass(frozen=True)
class AnyServer:
    """A server of which only the contracts are known. `ours`: started here, with the default model."""

    url: str
    key: str
    model: str
    ours: bool

    def openai(self, *, strict: bool = True) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.key,
            max_retries=0,
            timeout=120,
            _strict_response_validation=strict and self.ours,
        )

    def post(self, path: str, **body: object) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.key}", "anthropic-version": "2023-06-01"}
        return httpx.post(self.url + path, json={"model": self.model} | body, headers=headers, timeout=120)


@pytest.fixture(scope="session")
def any_server(pytestconfig: pytest.Config) -> Iterator[AnyServer]:
    url = pytestconfig.getoption("--url", None)
    if url:
        url, key = url.rstrip("/").removesuffix("/v1"), pytestconfig.getoption("--key")
        listed = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=30).json()
        yield AnyServer(url, key, pytestconfig.getoption("--model") or listed["data"][0]["id"], False)
        return
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", "--port", "0", "--model", str(smollm2())]
    process = subprocess.Popen([*command, "--log-level", "debug"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("Server listening on ")), "")
        assert line, "the server didn't start"
        url = line.split()[-1]
        yield AnyServer(url, "k", httpx.get(f"{url}/v1/models").json()["data"][0]["id"], True)
        assert_none_at(url)
    finally:
        process.terminate()
        process.wait(20)
