"""The golden prompts through every way in give the same ids and text: inline, process, HTTP, streamed HTTP."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from imp_server.config import Config
from imp_server.core import OutputPlan
from imp_server.engine.build import build_engine
from imp_server.engine.client.base import EngineClient
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.client.process import ProcessEngine
from imp_server.vocab.load import tokenizer_of
from imp_server.weights.header import read_header

from tests.backends.golden import Golden, golden_cases, golden_document
from tests.engine.tiny_engine import ask, request
from tests.real_model import smollm2

N_NEW = 16
SHORT = [c for c in golden_cases() if len(c.prompt_ids) < 100]
LONG = [c for c in golden_cases() if len(c.prompt_ids) >= 100]


async def _answers(engine: EngineClient, cases: list[Golden], n_new: int = N_NEW) -> list[list[int]]:
    plan = OutputPlan(end_ids=tuple(golden_document()["end_ids"]), max_tokens=n_new)
    await engine.start()
    try:
        waiting = (ask(engine, request(engine, case.prompt_ids, plan=plan)) for case in cases)
        return [answer.ids for (answer,) in await asyncio.gather(*waiting)]
    finally:
        await engine.stop()


def _inline(cases: list[Golden], backend: str = "auto", n_new: int = N_NEW) -> list[list[int]]:
    config = Config.of({"engine.backend": backend})
    build = functools.partial(build_engine, str(smollm2()), "smollm2", config.for_engine())
    return asyncio.run(_answers(InlineEngine(build), cases, n_new))


@pytest.fixture(scope="module")
def inline_ids() -> list[list[int]]:
    return _inline(SHORT)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    command = [sys.executable, "-m", "imp_server.cli.main", "serve", "--port", "0", "--model", str(smollm2())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = next((text for text in process.stdout if text.startswith("Server listening on ")), "")
        assert line, process.stderr.read() if process.stderr else ""
        yield line.split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _text(ids: list[int]) -> str:
    """Whole characters: bytes that form none aren't sent, nor is one that max_tokens cut in half."""
    vocabulary = tokenizer_of(read_header(smollm2())).vocabulary
    data = b"".join(vocabulary.plain_bytes(i) for i in ids if not vocabulary.is_special(i))
    return data.decode(errors="ignore")


def _post(url: str, body: dict[str, Any]) -> bytes:
    http = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(http, timeout=100) as reply:
        data: bytes = reply.read()
        return data


def _events(data: bytes) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in data.decode().splitlines() if line.startswith("data: {"))
    return [json.loads(line) for line in lines]


def _over_http(url: str, case: Golden, *, stream: bool) -> str:
    """Chats by /v1/chat/completions, raw prompts by /completion, which takes ids."""
    if case.messages is not None:
        model = json.loads(urllib.request.urlopen(f"{url}/v1/models", timeout=30).read())["data"][0]["id"]
        body = {"model": model, "messages": case.messages, "temperature": 0, "max_tokens": N_NEW, "stream": stream}
        data = _post(f"{url}/v1/chat/completions", body)
        if not stream:
            return str(json.loads(data)["choices"][0]["message"]["content"])
        return "".join(c["delta"].get("content") or "" for e in _events(data) for c in e["choices"])
    body = {"prompt": case.prompt_ids, "temperature": 0, "n_predict": N_NEW, "stream": stream}
    data = _post(f"{url}/completion", body)
    return "".join(e["content"] for e in _events(data)) if stream else str(json.loads(data)["content"])


def test_the_process_gives_the_same_ids(inline_ids: list[list[int]]) -> None:
    engine = ProcessEngine(smollm2(), "smollm2", Config())
    assert asyncio.run(_answers(engine, SHORT)) == inline_ids


def _same_over_http(url: str, inline_ids: list[list[int]], wanted: Sequence[int], *, stream: bool) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(functools.partial(_over_http, url, stream=stream), (SHORT[i] for i in wanted)))
    for i, text in zip(wanted, texts, strict=True):
        assert text == _text(inline_ids[i]), SHORT[i].name


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_http_gives_the_same_text(server: str, inline_ids: list[list[int]], stream: bool) -> None:
    """Each prompt one way, every fourth both ways."""
    wanted = [i for i in range(len(SHORT)) if i % 2 == stream or i % 4 == 0]
    _same_over_http(server, inline_ids, wanted, stream=stream)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_http_gives_the_same_text_for_all(server: str, inline_ids: list[list[int]], stream: bool) -> None:
    _same_over_http(server, inline_ids, range(len(SHORT)), stream=stream)


@pytest.mark.slow
def test_the_long_prompt_everywhere(server: str) -> None:
    (ids,) = _inline(LONG)
    assert asyncio.run(_answers(ProcessEngine(smollm2(), "smollm2", Config()), LONG)) == [ids]
    for stream in (False, True):
        assert _over_http(server, LONG[0], stream=stream) == _text(ids)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_reference_engine_repeats_the_golden_ids() -> None:
    """Free-running: up to the first position that is a toss-up the ids can't differ."""
    n_new = max(len(case.ids) for case in golden_cases())
    for case, ids in zip(golden_cases(), _inline(list(golden_cases()), "reference", n_new), strict=True):
        assert ids[: case.n_sure] == case.ids[: case.n_sure], case.name
