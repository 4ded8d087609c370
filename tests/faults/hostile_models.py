"""Models whose chat template or tokeniser is made to hurt, drawn by a number, and what their servers must do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from hypothesis import strategies as st

from tests.faults.hunting import Answer, wrong
from tests.faults.watched import at_once, taken
from tests.live.served_model import serving
from tests.live.test_transcripts import TOKENIZER, TOKENS
from tests.models.tiny_gguf import write_tiny_llama
from tests.models.tiny_hf import write_tiny_folder
from tests.text.hostile_templates import ALL, TOKENIZERS, hostile_templates, hostile_tokenizers

CONTEXT = 32_768
START_S, MOST_S, MOST_HEALTH_S = 60.0, 60.0, 2.0
"""Of an answer: each prompt has 5 s in a template and 10 s in a tokeniser, and they wait for each other."""
MOST_API_MIB, MOST_WORKER_MIB = 300, 1024 + 100
"""Beyond what an idle server takes; a tokeniser's process may have 1 GiB."""


class HostileModel(NamedTuple):
    template: str = ""
    tokenizer: str = ""
    """JSON; "" = a harmless one."""


def hostile_models() -> st.SearchStrategy[HostileModel]:
    templates = st.sampled_from(ALL) | hostile_templates()
    tokenizers = st.sampled_from(TOKENIZERS) | hostile_tokenizers()
    return st.one_of(
        st.builds(HostileModel, templates),
        st.builds(HostileModel, st.just(""), tokenizers.map(json.dumps)),
    )


def write(model: HostileModel, folder: Path) -> Path:
    """What `--model` takes."""
    if not model.tokenizer:
        path = folder / "tiny.gguf"
        return write_tiny_llama(path, vocab=len(TOKENS), context=CONTEXT, tokenizer=TOKENIZER, template=model.template)
    write_tiny_folder(folder, vocab_size=128, hidden_size=64, max_position_embeddings=CONTEXT)
    (folder / "tokenizer.json").write_text(model.tokenizer)
    return folder


def _requests() -> list[tuple[str, dict[str, Any]]]:
    def chat(*contents: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": content} for content in contents], "max_tokens": 2}

    return [
        ("/v1/chat/completions", chat("hi")),
        ("/v1/chat/completions", chat("x" * 20_000)),
        ("/v1/chat/completions", chat(*["x y"] * 300)),
        ("/v1/messages/count_tokens", chat("x" * 2000 + "z")),
        ("/v1/completions", {"prompt": "x" * 2000 + "z", "max_tokens": 2}),
        ("/tokenize", {"content": "x" * 20_000}),
    ]


@contextmanager
def _looking(url: str, late: list[str]) -> Iterator[None]:
    """Meanwhile /health answers in time."""
    over = threading.Event()

    def look() -> None:
        with httpx.Client(base_url=url, timeout=20) as http:
            while not over.wait(0.1):
                began = time.monotonic()
                try:
                    status = http.get("/health").status_code
                except httpx.HTTPError as error:
                    late.append(repr(error))
                    continue
                took_s = time.monotonic() - began
                if status != 200 or took_s > MOST_HEALTH_S:
                    late.append(f"/health {status} after {took_s:.1f} s")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def faults(model: HostileModel, folder: Path) -> list[str]:
    """What is wrong with a server of it; a model that it refuses to load is none."""
    path = write(model, folder)
    flags = ("--no-cpu-pack-cache", "--threads", "1", "--kv-cache-size-mib", "16")
    began = time.monotonic()
    try:
        with serving(path, *flags) as (url, pid):
            return _asked(url, pid)
    except AssertionError as refused:
        told = str(refused)
        took_s = time.monotonic() - began
        is_good = "Traceback" not in told and took_s < START_S
        return [] if is_good else [f"refused after {took_s:.0f} s: {told[-500:]}"]


def _asked(url: str, pid: int) -> list[str]:
    found: list[str] = []
    idle = taken(pid)
    wanted = _requests()

    def ask(i: int) -> None:
        path, body = wanted[i]
        asked = time.monotonic()
        with httpx.Client(base_url=url, timeout=MOST_S) as http:
            try:
                reply = http.post(path, json={"model": "m", **body})
            except httpx.HTTPError as error:
                found.append(f"{path}: {error!r}")
                return
        answer = Answer(reply.status_code, reply.text, time.monotonic() - asked, reply.headers.get("retry-after"))
        if what := wrong(answer):
            found.append(f"{path}: {what}")

    with _looking(url, found):
        at_once(len(wanted), ask)
        now = taken(pid)
    if now.api_mib - idle.api_mib > MOST_API_MIB:
        found.append(f"the API process holds {now.api_mib:.0f} MiB, {idle.api_mib:.0f} when idle")
    if now.worker_mib > MOST_WORKER_MIB:
        found.append(f"a worker holds {now.worker_mib:.0f} MiB")
    return found
