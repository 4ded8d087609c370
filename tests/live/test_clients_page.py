"""What docs/clients.md and the README tell readers to type works as it stands there."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.served_model import served
from tests.real_model import smollm2

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "clients.md").read_text()
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PYTHON = BLOCK.findall(PAGE)
CURL = re.findall(r"(?:^    curl .*\n(?:      .*\n)*)", PAGE, re.MULTILINE)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(smollm2(), "--max-tokens", "1000") as server:  # a small model may ramble
        yield server.url


def here(text: str, url: str) -> str:
    return text.replace("http://127.0.0.1:8080", url).replace('"smollm2"', '"m"')


def packages(program: str) -> list[str]:
    return re.findall(r"(?m)^from (\w+)", program)


def test_there_is_something_to_try() -> None:
    assert len(PYTHON) == 6 and len(CURL) == 7


@pytest.mark.parametrize("program", [*PYTHON, *BLOCK.findall(README)], ids=lambda program: packages(program)[0])
def test_python(program: str, url: str) -> None:
    for package in packages(program):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} isn't installed")
    ran = subprocess.run([sys.executable, "-c", here(program, url)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and ran.stdout.strip(), ran.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl isn't installed")
@pytest.mark.parametrize("command", CURL, ids=lambda command: command.split()[1].partition("8080")[2])
def test_curl(command: str, url: str) -> None:
    ran = subprocess.run(
        ["bash", "-c", here(command.strip().replace("curl ", "curl --fail-with-body -sS "), url)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0 and ran.stdout.startswith("{"), ran.stdout + ran.stderr
