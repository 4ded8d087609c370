"""`imp serve` in a process of its own on a small model, as clients see it: requests, usage by dialect, metrics."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.dead_ends import assert_none_at
from tests.live.test_transcripts import TEMPLATE, TOKENIZER, TOKENS
from tests.models.tiny_gguf import write_tiny_llama

Json = dict[str, Any]
CONTEXT = 1024


def write_model(folder: Path) -> Path:
    """Random weights over printable characters and pairs of letters, with a chat template."""
    return write_tiny_llama(
        folder / "tiny.gguf", vocab=len(TOKENS), context=CONTEXT, tokenizer=TOKENIZER, template=TEMPLATE
    )


class Reuse(NamedTuple):
    """Prompt tokens of a reply by what became of them."""

    cached: int
    written: int
    prompt: int


class Served:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=110, limits=httpx.Limits(max_connections=32))

    def post(self, path: str, body: Json | None = None, *, status: int = 200) -> Json:
        reply = self._http.post(path, json={"model": "m"} | (body or {}))
        assert reply.status_code == status, reply.text
        found: Json = reply.json()
        return found

    def raw(self, path: str, body: Json) -> str:
        reply = self._http.post(path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.text

    def metrics(self) -> dict[str, float]:
        """By name, with labels."""
        text = self._http.get("/metrics").text
        return {name: float(value) for name, value in re.findall(r"(?m)^([a-z][^ ]*) (\S+)$", text)}

    def close(self) -> None:
        self._http.close()


def serving(model: Path | str, *options: str) -> contextlib.AbstractContextManager[tuple[str, int]]:
    """As `serving_with`, of one model, called m."""
    return serving_with("--model", str(model), "--alias", "m", *options)


@contextlib.contextmanager
def serving_with(*options: str) -> Iterator[tuple[str, int]]:
    """(base URL, process id) of a server that is ended with SIGTERM, as an operator would."""
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", "--port", "0"]
    command += ["--set", "responses.store_path=:memory:", *options]
    with tempfile.TemporaryFile("w+") as log:  # a pipe that nobody reads would fill up
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith("Server listening on ")), "")
            log.seek(0)
            assert line, log.read()
            yield line.split()[-1], process.pid
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def served(model: Path, *options: str) -> Iterator[Served]:
    """What no test needs between runs isn't kept."""
    with serving(model, "--no-cpu-pack-cache", *options) as (url, _):
        server = Served(url)
        try:
            yield server
            assert_none_at(server.url)
        finally:
            server.close()


def reuse(body: Json) -> Reuse:
    """Of a reply of any dialect."""
    if "timings" in body and "usage" not in body:
        timings = body["timings"]
        return Reuse(timings["cache_n"], timings["prompt_n"], timings["cache_n"] + timings["prompt_n"])
    usage = body["usage"]
    if "cache_read_input_tokens" in usage:
        read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        return Reuse(read, written, usage["input_tokens"] + read + written)
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    n_prompt = usage["prompt_tokens"] if "prompt_tokens" in usage else usage["input_tokens"]
    return Reuse(details["cached_tokens"], details.get("cache_write_tokens", 0), n_prompt)


def flood(server: Served, seeds: Sequence[int], n_tokens: int) -> None:
    """Prompts that nobody else sends."""
    for seed in seeds:
        ids = [(seed * 131 + i * i * 7 + i) % 300 for i in range(n_tokens)]
        server.post("/completion", {"prompt": ids, "n_predict": 1})
