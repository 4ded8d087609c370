"""The code of docs/tutorials.md, run as it stands against a server of the default model."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.live.conftest import AnyServer
from tests.live.served_model import serving_with

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials.md").read_text("utf-8")
BLOCKS = re.findall(r"(?ms)^## ([^\n]+)$|^```(python|sh|ini)\n(.*?)^```$", PAGE)
ADDRESS = "http://127.0.0.1:8080"


def blocks(language: str) -> list[tuple[str, str]]:
    """(the tutorial, its code)"""
    title, found = "", []
    for heading, kind, code in BLOCKS:
        title = heading or title
        if kind == language:
            found.append((title, code))
    return found


def here(code: str, server: AnyServer) -> str:
    return code.replace(ADDRESS, server.url).replace('"model": "smollm2"', f'"model": "{server.model}"')


def test_there_are_five() -> None:
    assert [heading for heading, _, _ in BLOCKS if heading] == [
        "A first chat", "A code agent", "Structured data out of text", "A gate in CI", "Many models",
    ]  # fmt: skip
    assert len(blocks("python")) == 3 and len(blocks("sh")) == 2 and len(blocks("ini")) == 1


@pytest.mark.parametrize(("title", "code"), blocks("python"), ids=[title for title, _ in blocks("python")])
def test_python(any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, repo_root: Path, title: str, code: str) -> None:
    monkeypatch.chdir(repo_root)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(here(code, any_server), f"{title} in tutorials.md", "exec"), {})
    assert said.getvalue().strip()


@pytest.mark.parametrize(("title", "code"), blocks("sh"), ids=[title for title, _ in blocks("sh")])
def test_commands(any_server: AnyServer, tmp_path: Path, title: str, code: str) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    own = bin_folder / "imp"
    own.write_text(f'#!/bin/sh\nexec {sys.executable} -m imp_server.cli.main "$@"\n')
    own.chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    command = ["bash", "-e", "-c", here(code, any_server)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if code.startswith("curl"):
        assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_the_preset_of_many_models(tmp_path: Path) -> None:
    ((_, preset),) = blocks("ini")
    path = tmp_path / "models.ini"
    path.write_text(preset)
    with serving_with("--models-preset", str(path), "--models-max", "2") as (url, _):
        listed = {entry["id"] for entry in httpx.get(f"{url}/v1/models").json()["data"]}
        assert {"small", "careful"} <= listed
