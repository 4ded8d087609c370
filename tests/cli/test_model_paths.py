"""Model files under any name: not UTF-8, in capitals, known by how they begin; and what show refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from imp_server.cli.main import run

from tests.models.tiny_gguf import write_tiny_llama

NAMES = {b"caf\xff.gguf": "caf\\xff", b"UP.GGUF": "UP", b"sha256-0123abcd": "sha256-0123abcd"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "home"))


def named(tiny: Path, folder: Path, name: bytes) -> Path:
    path = folder / os.fsdecode(name)
    shutil.copy(tiny, path)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_show(name: bytes, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = named(tiny, tmp_path, name)
    assert run(["show", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == NAMES[name] and shown["supported"]
    assert shown["path"].encode().decode() == f"{tmp_path}/" + os.fsencode(path.name).decode(
        "utf-8", "backslashreplace"
    )


@pytest.mark.parametrize("name", NAMES)
def test_pull(name: bytes, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", str(named(tiny, tmp_path, name)), "--as", "mine"]) == 0
    assert run(["show", "mine", "--json"]) == 0
    assert '"supported": true' in capsys.readouterr().out


def test_a_folder_says_what_it_holds(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        named(tiny, tmp_path, name)
    assert run(["show", str(tmp_path)]) == 6
    assert "it holds UP.GGUF, caf" in capsys.readouterr().out


def test_serve_a_name_that_is_no_utf8(tiny: Path, tmp_path: Path) -> None:
    path = named(tiny, tmp_path, b"caf\xff.gguf")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", str(path), "--port", str(port), "--no-warmup"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            shown = _models(port, server)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    assert shown["data"][0]["id"] == "caf\\xff"


def _models(port: int, server: subprocess.Popen[bytes]) -> dict[str, list[dict[str, str]]]:
    for _ in range(300):
        assert server.poll() is None, server.stderr and server.stderr.read()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2):
                break
        except OSError:
            time.sleep(0.1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as reply:
        listed: dict[str, list[dict[str, str]]] = json.load(reply)
        return listed


FAULTS = {
    "more tokens than rows": {"vocab": 257, "reshape": {"token_embd.weight": (200, 64), "output.weight": (200, 64)}},
    "a template with a fault": {"template": "{% for %}"},
    "an unknown pre-tokenizer": {"tokenizer": {"model": "gpt2", "pre": "klingon", "tokens": ["a"] * 288}},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_show_refuses_what_serve_refuses(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", **FAULTS[fault])  # type: ignore[arg-type]
    code = run(["show", str(path)])
    shown = " ".join(capsys.readouterr().out.split())
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", str(path), "--port", "0"]
    served = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert code == served.returncode in (5, 6) and served.stdout.count("Ready") == 0
    problem = " ".join(served.stderr.split()).partition("imp: ")[2].removeprefix("imp: ")
    assert problem.split(": ")[-1][:30] in shown, (problem, shown)
