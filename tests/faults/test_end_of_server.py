"""SIGTERM and kill -9 of a whole server that has streams and responses which nobody is connected to."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api import raw_http
from tests.models.tiny_gguf import write_tiny_llama

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
LONG = {"model": "tiny", "ignore_eos": True}


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`imp serve` in a process of its own; (base URL, process)."""
    model = folder / "tiny.gguf"
    if not model.exists():
        write_tiny_llama(model, context=4096)
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", "--port", "0", "--model", str(model)]
    command += ["--chat-template", "chatml", "--drain-seconds", "1", "--set", "engine.backend=reference"]
    command += ["--set", "kv_cache.max_blocks=512", "--set", f"responses.store_path={folder / 'r.sqlite'}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = next((text for text in process.stdout if text.startswith("Server listening on ")), "")
        assert line, "the server didn't start"
        yield line.split()[-1], process
    finally:
        process.kill()
        process.communicate(timeout=30)


def leave_behind(url: str, name: str) -> None:
    body = {**LONG, "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 4000}
    with raw_http.connect(url, 30) as sock:
        sock.sendall(raw_http.posted(body, f"x-conversation-id: {name}"))
        assert sock.recv(12) == b"HTTP/1.1 200"


def in_background(url: str) -> str:
    body = {**LONG, "input": "x", "background": True, "max_output_tokens": 4000}
    reply = httpx.post(f"{url}/v1/responses", json=body, timeout=30)
    assert reply.json()["status"] == "queued"
    name: str = reply.json()["id"]
    return name


def found(url: str, name: str) -> Any:
    return httpx.get(f"{url}/v1/responses/{name}", timeout=30).json()


def test_sigterm_ends_them_in_time_and_says_why(tmp_path: Path) -> None:
    with served(tmp_path) as (url, process):
        for i in range(3):
            leave_behind(url, f"s{i}")
        name = in_background(url)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0 and time.monotonic() - began < 10
    with served(tmp_path) as (url, _):
        failed = found(url, name)
        assert failed["status"] == "failed" and failed["error"]["message"]
        assert httpx.get(f"{url}/v1/stream/s0", timeout=30).status_code == 404


def test_kill_9_leaves_no_response_unfinished(tmp_path: Path) -> None:
    with served(tmp_path) as (url, process):
        names = [in_background(url) for _ in range(3)]
        process.kill()
        process.wait(30)
    with served(tmp_path) as (url, _):
        for name in names:
            failed = found(url, name)
            assert failed["status"] == "failed"
            assert failed["error"]["message"] == "the server ended before the response was done"
        assert in_background(url)
