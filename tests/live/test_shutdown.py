"""SIGTERM: no new requests, running streams finish, exit code 0."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

SERVER = """
from imp_server.api.model_text_side import ModelTextSide
from imp_server.api.model_host import ModelHost
from imp_server.api.server import serve
from imp_server.config import Config
from imp_server.config.serving import LogSettings
from imp_server.engine.client.scripted import ScriptedEngine, Wait
from imp_server.logs import set_up_logging
from tests.toy import byte_model

model = ModelTextSide(byte_model())
engine = ScriptedEngine(model.vocabulary)
engine.always(*[action for _ in range(40) for action in (120, Wait(0.05))])
set_up_logging(LogSettings())
config = Config.of({"server.port": 0, "server.drain_timeout_s": DRAIN, "server.predict_route": "/predict"})
serve(config, [ModelHost("m", engine, lambda: model)], announce=lambda line: print(line, flush=True))
"""
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 100}


def start(drain_s: float) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER.replace("DRAIN", str(drain_s))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("Server listening on http://127.0.0.1:")
    return process, line.split()[-1]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_streams_finish(started: list[subprocess.Popen[str]], number: signal.Signals) -> None:
    process, url = start(30)
    started.append(process)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, timeout=20) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        process.send_signal(number)
        time.sleep(0.2)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/health", timeout=5)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"stop"' in rest[-2]
    assert process.wait(10) == 0


@pytest.mark.slow
def test_requests_inside_one_that_have_yet_to_begin_are_finished(started: list[subprocess.Popen[str]]) -> None:
    process, url = start(30)
    started.append(process)
    instances = [{"@requestFormat": "chatCompletions", **BODY, "max_tokens": 10}] * 20  # 16 run at once
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(httpx.post, url + "/predict", json={"instances": instances}, timeout=20)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        predictions = whole.result(20).json()["predictions"]
    assert [one.get("object") for one in predictions] == ["chat.completion"] * 20
    assert process.wait(10) == 0


def test_a_second_ctrl_c_ends_streams_with_their_error(started: list[subprocess.Popen[str]]) -> None:
    process, url = start(30)
    started.append(process)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, timeout=20) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "finishing 1 request, for at most 30 s" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = [line for line in lines if line]
    assert '"error":{' in rest[-1]
    assert process.wait(10) == 0
    assert "Traceback" not in process.stderr.read()


def test_a_stream_longer_than_the_drain_ends_with_an_error(started: list[subprocess.Popen[str]]) -> None:
    process, url = start(0.3)
    started.append(process)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, timeout=20) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        begin = time.perf_counter()
        rest = [line for line in lines if line]
    assert '"error":{' in rest[-1]
    assert "[DONE]" not in rest[-1]
    assert process.wait(10) == 0
    assert time.perf_counter() - begin < 5


def test_a_whole_reply_that_outlasts_the_drain_is_503_and_may_be_retried(started: list[subprocess.Popen[str]]) -> None:
    process, url = start(0.3)
    started.append(process)
    replies: list[httpx.Response] = []

    def ask() -> None:
        replies.append(httpx.post(f"{url}/v1/chat/completions", json=BODY | {"stream": False}, timeout=20))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    thread.join(20)
    (reply,) = replies
    assert reply.status_code == 503, reply.text
    assert reply.json()["error"]["code"] == "unavailable"
    assert int(reply.headers["retry-after"]) >= 1
    assert process.wait(10) == 0
