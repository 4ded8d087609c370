"""SIGTERM: the server has ended two seconds behind its drain, whatever hangs meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.tiny_gguf import write_tiny_llama

DRAIN_S = 0.5
SLACK_S = 0.5
"""For the kernel, and a busy machine."""
START = """
import os, signal, threading, time
from imp_server.api.model_text_side import ModelTextSide
from imp_server.api.model_host import ModelHost
from imp_server.api.server import serve
from imp_server.config import Config
from imp_server.engine.client.process import ProcessEngine
from imp_server.engine.client.scripted import ScriptedEngine, Wait
from tests.toy import byte_model

model = ModelTextSide(byte_model())
engine = ScriptedEngine(model.vocabulary)
engine.always(*[action for _ in range(400) for action in (120, Wait(0.05))])
load = lambda: model
settings = {"server.port": 0, "server.drain_timeout_s": DRAIN, "responses.store_path": ":memory:"}
def say(line): print(line, flush=True)
def stuck(*_): say("stuck"); time.sleep(60)
"""
SERVE = 'serve(Config.of(settings), [ModelHost("m", engine, load)], announce=say)\n'

CASES = {
    "a stream that goes on": "",
    "a stuck thread": "ModelTextSide.begin_chat = stuck\n",
    "a stuck store": """
settings["responses.store_path"] = "HOME/r.sqlite"
from imp_server.api.responses_store import ResponsesStore
ResponsesStore.put = stuck
ResponsesStore.close = stuck
""",
    "a model that loads": 'load = stuck\nthreading.Timer(1.5, say, ["loading"]).start()\n',
    "workers that don't end": "from imp_server.workers.client import Workers\nWorkers.close = stuck\n",
    "a stopped engine": """
engine = ProcessEngine("MODEL", "m", Config.of(settings | {"engine.backend": "reference"}))
from imp_server.api.model_text_side import ModelTextSide
load = lambda: ModelTextSide.load("MODEL", Config())
""",
}


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and its address as the banner tells it ("" while it loads)."""
    name: str = request.param
    code = START + CASES[name] + SERVE
    if "MODEL" in code:
        code = code.replace("MODEL", str(write_tiny_llama(tmp_path / "tiny.gguf", context=2048)))
    code = code.replace("HOME", str(tmp_path)).replace("DRAIN", str(DRAIN_S))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        while "listening" not in line and "loading" not in line:
            assert line, process.stderr.read() if process.stderr else ""
            line = process.stdout.readline()
        yield process, line.split("://")[-1].strip() if "://" in line else ""
    finally:
        process.kill()
        process.wait(10)


def ask(address: str, path: str, body: str, *, whole: bool = True) -> socket.socket:
    """An open connection that has sent a request, or all of it but its last byte."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), 5)
    head = ("host: localhost", "content-type: application/json", f"content-length: {len(body)}", "", "")
    text = "\r\n".join((f"POST {path} HTTP/1.1", *head)) + (body if whole else body[:-1])
    connection.sendall(text.encode())
    return connection


CHAT = '{"model": "m", "stream": true, "max_tokens": 400, "messages": [{"role": "user", "content": "hi"}]}'
RESPONSE = '{"model": "m", "max_output_tokens": 2, "input": "hi"}'


def ends_in_time(process: subprocess.Popen[str]) -> None:
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert time.monotonic() - begun < DRAIN_S + 2 + SLACK_S


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


@pytest.mark.parametrize("server", ["a stream that goes on"], indirect=True)
def test_half_open_clients_and_a_stream(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    host, _, port = address.rpartition(":")
    silent = socket.create_connection((host, int(port)), 5)
    half_head = socket.create_connection((host, int(port)), 5)
    half_head.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: loc")
    half_body = ask(address, "/v1/chat/completions", CHAT, whole=False)
    streaming = ask(address, "/v1/chat/completions", CHAT)
    assert streaming.recv(100)
    unread = ask(address, "/v1/chat/completions", CHAT)
    ends_in_time(process)
    streaming.settimeout(5)
    text = b"".join(iter(lambda: streaming.recv(1 << 16), b"")).decode()
    assert '"error":{' in text and "[DONE]" not in text
    for each in (silent, half_head, half_body, streaming, unread):
        each.close()


@pytest.mark.parametrize("server", ["a stuck thread", "a stuck store"], indirect=True)
def test_stuck_threads(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    asked = [ask(address, "/v1/chat/completions", CHAT) for _ in range(3)]
    asked.append(ask(address, "/v1/responses", RESPONSE))
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    ends_in_time(process)
    for each in asked:
        each.close()


@pytest.mark.parametrize("server", ["a model that loads", "workers that don't end"], indirect=True)
def test_loading_and_workers(server: tuple[subprocess.Popen[str], str]) -> None:
    ends_in_time(server[0])


@pytest.mark.parametrize("server", ["a stopped engine"], indirect=True)
def test_a_stopped_engine_goes_with_the_server(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    asked = ask(address, "/v1/chat/completions", CHAT)
    assert asked.recv(100)
    engines = [
        pid for pid in children(process.pid) if b"imp_server.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(engines) == 1
    for pid in engines:
        os.kill(pid, signal.SIGSTOP)
    ends_in_time(process)
    time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in engines)
    asked.close()
