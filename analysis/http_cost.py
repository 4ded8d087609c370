"""What HTTP costs: one greedy stream from `imp serve` beside the same ids from an engine in this process.

    python analysis/http_cost.py MODEL [--threads 1] [--rounds 7] [--tokens 256] [--check]

Two engines on the same file, one at work at a time, in turn (who goes first changes with each round); drafts and the
prefix cache off, the end of text banned, so both sides compute the same tokens, and the texts must be equal. A rate is
all tokens over the time from asking to the last byte. --check: fail below 0.9.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from imp_server.config import Config
from imp_server.core import GenerateRequest, GenerationOptions, OutputPlan, SamplingParams, pack_ids, unpack_ids
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.models.opening import open_model
from imp_server.vocab.load import tokenizer_of

HERE = Path(__file__).resolve().parent
PROMPT = "The history of the lighthouse at the northern cape begins in the winter of 1823, when"
GOAL = 0.9
START_S = 120.0
_SERVE = "import sys; from imp_server.cli.main import main; sys.argv[0] = 'imp'; main()"


class Server:
    """Owner of the serving process and of one connection to it."""

    def __init__(self, model: str, threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        flags = ["--port", str(self._port), "--threads", str(threads), "--speculative-enabled", "off"]
        env = dict(os.environ, PYTHONPATH=str(HERE.parent / "imp"))
        command = [sys.executable, "-c", _SERVE, "serve", "--model", model, "--alias", "m", "--no-prefix-cache", *flags]
        self._process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._wait()
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port)

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise SystemExit(f"imp serve ended with {self._process.returncode}")
            try:
                probe = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
                probe.request("GET", "/ready")
                if probe.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise SystemExit("imp serve wasn't ready in time")

    def stream(self, n_tokens: int) -> tuple[float, str]:
        """Seconds to the last byte, and the text. Events are read as they come and parsed afterwards."""
        body = {"model": "m", "prompt": PROMPT, "max_tokens": n_tokens, "temperature": 0, "stream": True}
        began = time.perf_counter()
        self._connection.request(
            "POST", "/v1/completions", json.dumps(body | {"ignore_eos": True}), {"content-type": "application/json"}
        )
        response = self._connection.getresponse()
        lines = list(response)
        seconds = time.perf_counter() - began
        if response.status != 200:
            raise SystemExit(b"".join(lines).decode())
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        return seconds, "".join(choice["text"] for event in events for choice in event["choices"])

    def close(self) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.wait()


class Inline:
    """Owner of the engine in this process."""

    def __init__(self, model: str, threads: int) -> None:
        knobs = {"cpu.threads": threads, "speculative.enabled": "off", "prefix_cache.enabled": False}
        config = Config.of({"engine.backend": "cpu", **knobs})
        self._tokenizer = tokenizer_of(open_model(model).header)
        self._ids = list(self._tokenizer.encode(PROMPT))
        self.engine = InlineEngine(functools.partial(build_engine, model, "m", config.for_engine()))

    async def stream(self, n_tokens: int) -> tuple[float, str]:
        sampling = SamplingParams(temperature=0.0, banned_ids=tuple(self._tokenizer.vocabulary.end_ids))
        plan = OutputPlan(max_tokens=n_tokens)
        out: list[int] = []
        began = time.perf_counter()
        request = GenerateRequest(
            self.engine.new_key(), pack_ids(self._ids), plan, sampling, GenerationOptions(speculative=False)
        )
        async for delta in await self.engine.submit(request):
            out += unpack_ids(delta.ids)
        seconds = time.perf_counter() - began
        return seconds, b"".join(self._tokenizer.vocabulary.token_bytes[i] for i in out).decode(errors="replace")


async def compare(options: argparse.Namespace) -> list[tuple[float, float]]:
    """Tokens per second over HTTP and inline, per round."""
    server, inline = Server(options.model, options.threads), Inline(options.model, options.threads)
    await inline.engine.start()
    rates = []
    try:
        for number in range(options.rounds + 1):
            sides = {}
            for is_http in (number % 2 == 0, number % 2 == 1):
                sides[is_http] = server.stream(options.tokens) if is_http else await inline.stream(options.tokens)
            if sides[True][1] != sides[False][1]:
                raise SystemExit("the texts differ:\n" + sides[True][1] + "\n---\n" + sides[False][1])
            if number:  # the first turn of each warms caches and is not counted
                rates.append((options.tokens / sides[True][0], options.tokens / sides[False][0]))
    finally:
        await inline.engine.stop()
        server.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    rates = asyncio.run(compare(options))
    ratios = [over / inside for over, inside in rates]
    best = max(over for over, _ in rates) / max(inside for _, inside in rates)
    for name, values in (("HTTP", [r[0] for r in rates]), ("inline", [r[1] for r in rates])):
        print(f"{name:7} {statistics.median(values):7.1f} tokens/s ({min(values):.1f}-{max(values):.1f})")
    print(f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f}), of the best rounds {best:.3f}")
    if options.check and max(best, statistics.median(ratios)) < GOAL:
        raise SystemExit(f"below {GOAL}")


if __name__ == "__main__":
    main()
