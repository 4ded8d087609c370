"""kill -9 of the engine process under a running server: clients get well-formed ends, and the server goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_gguf import write_tiny_llama

SETTINGS = ("engine.backend=reference", "engine.restart_backoff_s=0.05", "kv_cache.max_blocks=512")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """(base URL, pid of the server)."""
    model = write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", context=4096)
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", "--port", "0", "--model", str(model)]
    command += ["--chat-template", "chatml", *(part for s in SETTINGS for part in ("--set", s))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = next((text for text in process.stdout if text.startswith("Server listening on ")), "")
        assert line, "the server didn't start"
        yield line.split()[-1], process.pid
    finally:
        process.terminate()
        process.communicate(timeout=30)


def engine_pid(server_pid: int) -> int:
    children = Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split()
    return next(int(p) for p in children if b"imp_server.engine" in Path(f"/proc/{p}/cmdline").read_bytes())


def post(url: str, body: dict[str, Any]) -> Any:
    http = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return urllib.request.urlopen(http, timeout=60)


def chat(max_tokens: int, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Tell me everything."}
    return {"model": "tiny", "messages": [message], "temperature": 0, "max_tokens": max_tokens, **fields}


def wait_ready(url: str) -> None:
    end = time.monotonic() + 30
    while (status := ready_status(url)) != 200:
        assert status == 503 and time.monotonic() < end, "the server must say so until it is ready again"
        time.sleep(0.05)


def ready_status(url: str) -> int:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


class Stream(threading.Thread):
    """Reads one SSE stream to its end. The bias keeps the tiny model from ending early."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.lines: list[str] = []
        self.begun = threading.Event()
        self.closed_cleanly = False

    def run(self) -> None:
        body = chat(3000, stream=True, logit_bias={"256": -100})
        with post(f"{self.url}/v1/chat/completions", body) as reply:
            for raw in reply:
                line = raw.decode().rstrip()
                if line.startswith("data: "):
                    self.lines.append(line.removeprefix("data: "))
                    if '"content":"' in line and '"content":""' not in line:
                        self.begun.set()
        self.closed_cleanly = True


def test_streams_end_well_formed_and_the_server_goes_on(server: tuple[str, int]) -> None:
    url, pid = server
    with post(f"{url}/v1/chat/completions", chat(20)) as reply:
        before = json.load(reply)["choices"][0]["message"]["content"]
    for _round in range(2):
        streams = [Stream(url) for _ in range(4)]
        for stream in streams:
            stream.start()
        for stream in streams:
            assert stream.begun.wait(30)
        os.kill(engine_pid(pid), signal.SIGKILL)
        for stream in streams:
            stream.join(30)
            assert stream.closed_cleanly, "the connection must end as HTTP says, not be torn"
            events = [json.loads(line) for line in stream.lines if line != "[DONE]"]
            errors = [event["error"] for event in events if "error" in event]
            assert len(errors) == 1 and errors[0]["code"] == "engine_crashed" and errors[0]["message"]
            assert "error" in events[-1], "nothing may follow the error"
        wait_ready(url)
        with post(f"{url}/v1/chat/completions", chat(20)) as reply:
            assert json.load(reply)["choices"][0]["message"]["content"] == before


def test_a_json_request_that_has_not_begun_is_retried_unseen(server: tuple[str, int]) -> None:
    """Not streamed and killed while it runs: either the retry answers, or a 500 in the dialect's shape says why."""
    url, pid = server
    wait_ready(url)
    outcome: list[tuple[int, Any]] = []

    def ask() -> None:
        try:
            with post(f"{url}/v1/chat/completions", chat(600, logit_bias={"256": -100})) as reply:
                outcome.append((reply.status, json.load(reply)))
        except urllib.error.HTTPError as error:
            outcome.append((error.code, json.load(error) | {"retry_after": error.headers["retry-after"]}))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    os.kill(engine_pid(pid), signal.SIGKILL)
    thread.join(60)
    ((status, body),) = outcome
    if status == 200:
        assert body["usage"]["completion_tokens"] == 600
    else:
        assert status == 500 and body["error"]["code"] == "engine_crashed" and body["retry_after"] == "1"
    wait_ready(url)
