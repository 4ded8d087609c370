"""What the API process spends on a streamed token, above what the same bytes cost a bare server on the same transport.

Processor time of this process: the clients run in another one. Each is measured with short and long streams, and the
difference is what counts, so what a request costs as such is in none. The scripted engine plays on the same loop; what
it spends by itself is measured, too, and taken off. A token comes every few milliseconds, as from an engine: those that
come at once would be one event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import uvicorn
import uvloop
from imp_server.api.model_text_side import ModelTextSide
from imp_server.core import GenerateRequest, OutputPlan, SamplingParams, pack_ids
from imp_server.engine.client.script import Action, Wait
from imp_server.engine.client.scripted import ScriptedEngine

from tests.api.live_server import LiveServer, live_server
from tests.toy import byte_model

N_STREAMS = 64
SHORT, LONG = 16, 80
"""Tokens of a stream."""
STEP_S = 0.004
HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    "connection: close\r\ncontent-length: %d\r\n\r\n"
)
BODY = '{"model":"m","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hi"}]}'
CLIENT = """
import socket, sys
url, n_streams, head, body = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
host, port = url.rsplit("/", 1)[1].split(":")
for line in sys.stdin:
    asked = body % int(line)
    request = (head % len(asked) + asked).encode()
    streams = [socket.create_connection((host, int(port))) for _ in range(n_streams)]
    for stream in streams:
        stream.sendall(request)
    size = 0
    for stream in streams:
        while data := stream.recv(1 << 16):
            size += len(data)
        stream.close()
    print(size, flush=True)
"""


class Cost(NamedTuple):
    """Microseconds of processor time per token."""

    served: float
    transport: float
    engine: float

    @property
    def api(self) -> float:
        return self.served - self.transport - self.engine


class Clients:
    """Owner of the process that reads all streams at once, and of nothing else."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-c", CLIENT, url, str(N_STREAMS), HEAD, BODY]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read_all(self, n_tokens: int) -> tuple[float, int]:
        """Seconds of this process's processor time, and the bytes that came, per stream."""
        assert self._process.stdin is not None and self._process.stdout is not None
        began = time.process_time()
        self._process.stdin.write(f"{n_tokens}\n")
        self._process.stdin.flush()
        n_bytes = int(self._process.stdout.readline())
        return time.process_time() - began, n_bytes // N_STREAMS

    def close(self) -> None:
        self._process.communicate(timeout=20)


@contextlib.contextmanager
def bare_server(chunk: bytes) -> Iterator[str]:
    """uvicorn alone, with the same protocol and loop: as often the same bytes as a request asks for."""

    async def app(_scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        n_chunks = json.loads((await receive())["body"])["max_tokens"]
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(n_chunks):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(STEP_S)
        await send({"type": "http.response.body", "body": b""})

    sock = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", log_level="error", lifespan="off"))
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve([sock])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


def play(request: GenerateRequest, _choice: int) -> list[Action]:
    return [action for _ in range(request.plan.max_tokens) for action in (ord("a"), Wait(STEP_S))]


@contextlib.contextmanager
def scripted_server() -> Iterator[LiveServer]:
    model = ModelTextSide(byte_model())

    def engine() -> ScriptedEngine:
        made = ScriptedEngine(model.vocabulary, n_rows=N_STREAMS)
        made.answer_with(play)
        return made

    with live_server(engine, lambda: model, check_replies=False) as live:
        yield live


async def _drained(engine: ScriptedEngine, n_tokens: int) -> None:
    """The same plays, read by nobody's protocol."""

    async def one() -> None:
        plan = OutputPlan(max_tokens=n_tokens, end_ids=(256,))
        request = GenerateRequest(engine.new_key(), pack_ids([104, 105]), plan, SamplingParams())
        async for _ in await engine.submit(request):
            pass

    await asyncio.gather(*(one() for _ in range(N_STREAMS)))


def _per_token(spent: Callable[[int], float]) -> float:
    """Microseconds by the difference of long and short streams."""
    seconds = {n_tokens: spent(n_tokens) for n_tokens in (LONG, SHORT)}
    return 1e6 * (seconds[LONG] - seconds[SHORT]) / (N_STREAMS * (LONG - SHORT))


@contextlib.contextmanager
def rig() -> Iterator[Callable[[], Cost]]:
    """A function that measures all three once, in turn."""
    with scripted_server() as live, contextlib.closing(Clients(live.url)) as clients:
        sizes = [clients.read_all(n_tokens)[1] for n_tokens in (LONG, SHORT)]
        n_bytes = (sizes[0] - sizes[1]) // (LONG - SHORT)
        assert n_bytes > 150, "not every token was an event of its own"

        def by_engine(n_tokens: int) -> float:
            began = time.process_time()
            live.wait(_drained(live.engine, n_tokens))
            return time.process_time() - began

        with bare_server(b"x" * (n_bytes - 6)) as url, contextlib.closing(Clients(url)) as bare:  # 6: a chunk's frame
            bare.read_all(LONG)

            def once() -> Cost:
                return Cost(
                    _per_token(lambda n: clients.read_all(n)[0]),
                    _per_token(lambda n: bare.read_all(n)[0]),
                    _per_token(by_engine),
                )

            yield once
