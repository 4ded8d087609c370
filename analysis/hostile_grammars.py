"""What others lose while clients send grammars made to hurt.

    python analysis/hostile_grammars.py MODEL [--threads 1] [--clients 8] [--streams 2] [--seconds 8] [--rounds 5]

One server. In every phase `--streams` clients write free text without a pause, and `--clients` others send chats under
schemas that nobody has sent before, each as soon as its last one is answered: nobody, ordinary schemas and hostile ones
in turn. Counted are the events of the free streams, one a token. What hostile grammars cost beyond a share of the batch
is the last ratio.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
PROMPT = "The history of the lighthouse at the northern cape begins in the winter of 1823, when"
START_S = 120.0
_SERVE = "import sys; from imp_server.cli.main import main; sys.argv[0] = 'imp'; main()"


def ordinary(rng: random.Random) -> dict[str, Any]:
    words = {"type": "array", "items": {"type": "string"}}
    parts = {f"name{rng.randrange(10**6)}": {"type": "string"}, "size": {"type": "integer"}, "words": words}
    return {"ordinary": {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}}


def hostile(rng: random.Random) -> dict[str, Any]:
    """Each costs a check, masks, or both; a name of its own keeps it out of every memo."""
    own = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6))
    letters = rng.sample("abcdefghijklmnopqrstuvwxyz", 12)
    between = [f"{own[:2]}{a}.{{{i}}}{b}" for i, (a, b) in enumerate(pairwise(letters))]
    return {
        "patterns at once": {"type": "string", "allOf": [{"pattern": p} for p in between[:9]]},
        "one of patterns": {"oneOf": [{"type": "string", "pattern": p} for p in between[:8]]},
        "names by patterns": {
            "type": "object",
            "patternProperties": {p: {"minLength": i} for i, p in enumerate(between)},
            "additionalProperties": False,
            "minProperties": 3,
        },
        "one of objects": {
            "oneOf": [
                {"type": "object", "properties": {f"{own}{j}": {"minimum": i + j} for j in range(5)}} for i in range(5)
            ]
        },
        "negations": {
            "type": "object",
            "properties": {f"{own}{i}": {"type": "integer"} for i in range(6)},
            "additionalProperties": False,
            "allOf": [{"not": {"properties": {f"{own}{i}": {"minimum": i + j} for i in range(6)}}} for j in range(4)],
        },
        "contains": {
            "type": "array",
            "items": {"type": "integer", "minimum": rng.randrange(10**6)},
            "allOf": [{"contains": {"multipleOf": k}, "minContains": 2} for k in (2, 3, 5)],
        },
        "lookarounds": {"type": "string", "pattern": f"^(?:(?=.*{own[0]}.{{7}}{own[1]}){own[2]}?.)*{own}$"},
        "unique": {"type": "array", "uniqueItems": True, "minItems": 40, "items": {"pattern": f"^[{own}]{{2,9}}$"}},
    }


class Server:
    """Owner of the serving process."""

    def __init__(self, model: str, threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        flags = ["--port", str(self.port), "--threads", str(threads), "--speculative-enabled", "off"]
        env = dict(os.environ, PYTHONPATH=str(HERE.parent / "imp"))
        command = [sys.executable, "-c", _SERVE, "serve", "--model", model, "--alias", "m", *flags]
        self._process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit("imp serve didn't get ready")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            probe = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            probe.request("GET", "/ready")
            return probe.getresponse().status == 200
        except OSError:
            return False

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


Made = Callable[[random.Random], dict[str, Any]]


class Phase:
    """Owner of the clients of one phase and of their connections."""

    def __init__(self, port: int, n_streams: int, n_clients: int, made: Made, seed: int) -> None:
        self._port = port
        self.n_tokens = 0
        self.answers = Counter[str]()
        self._is_over = False
        self._open: set[http.client.HTTPConnection] = set()
        asks: list[Callable[[], None]] = [self._stream] * n_streams
        asks += [partial(self._send, made, 1000 * seed + i) for i in range(n_clients)]
        self._threads = [threading.Thread(target=self._until_over, args=(ask,)) for ask in asks]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Hang up whatever is still being answered."""
        self._is_over = True
        for connection in list(self._open):
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _until_over(self, ask: Callable[[], None]) -> None:
        while not self._is_over:
            try:
                ask()
            except (OSError, http.client.HTTPException):
                if not self._is_over:
                    raise

    @contextmanager
    def _answer(self, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        connection.request("POST", path, json.dumps({"model": "m", **body}), {"content-type": "application/json"})
        self._open.add(connection)
        try:
            yield connection.getresponse()
        finally:
            self._open.discard(connection)
            connection.close()

    def _stream(self) -> None:
        body = {"prompt": PROMPT, "max_tokens": 400, "temperature": 0.8, "stream": True, "ignore_eos": True}
        with self._answer("/v1/completions", body) as response:
            for line in response:
                self.n_tokens += line.startswith(b"data: {")

    def _send(self, made: Made, seed: int) -> None:
        rng = random.Random(f"{seed} {sum(self.answers.values())}")
        name, schema = rng.choice(list(made(rng).items()))
        body = {
            "messages": [{"role": "user", "content": "Write."}],
            "max_tokens": 60,
            "temperature": 1.0,
            "response_format": {"type": "json_schema", "json_schema": {"name": "made", "schema": schema}},
        }
        with self._answer("/v1/chat/completions", body) as response:
            response.read()
            self.answers[f"{response.status} {name}"] += 1


def measured(server: Server, options: argparse.Namespace, n_clients: int, made: Made, seed: int) -> Result:
    phase = Phase(server.port, options.streams, n_clients, made, seed)
    time.sleep(2)
    begun, n_begun = time.perf_counter(), phase.n_tokens
    time.sleep(options.seconds)
    rate = (phase.n_tokens - n_begun) / (time.perf_counter() - begun)
    phase.end()
    return Result(rate, phase.answers)


class Result(NamedTuple):
    rate: float
    """Tokens/s of the free streams."""
    answers: Counter[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    server = Server(options.model, options.threads)
    rates: list[tuple[float, ...]] = []
    answers = Counter[str]()
    try:
        measured(server, options, 0, ordinary, 0)
        for seed in range(options.rounds):
            phases = [(0, ordinary), (options.clients, ordinary), (options.clients, hostile)]
            results = [measured(server, options, n, made, seed) for n, made in phases]
            answers += results[2].answers
            rates.append(tuple(result.rate for result in results))
            shown = "nobody {:.1f}, ordinary {:.1f}, hostile {:.1f}".format(*rates[-1])
            print(f"tokens/s beside {shown}", flush=True)
    finally:
        server.close()
    alone, beside = (statistics.median(r[2] / r[i] for r in rates) for i in (0, 1))
    print(f"hostile / nobody {alone:.3f}, hostile / ordinary {beside:.3f}; answers: {dict(sorted(answers.items()))}")


if __name__ == "__main__":
    main()
