"""What is fuzzed: each target takes bytes and may end in a refusal of ours alone, within a second or two.

A target is a context manager, for what it sets up once; inside, a function of the bytes.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from imp_server.core import ImpError, InvalidModel, TextDelta
from imp_server.grammar.check import check_schema
from imp_server.text.template import ChatTemplate
from imp_server.vocab.from_json import tokenizer_of_json
from imp_server.vocab.load import tokenizer_of
from imp_server.weights.header import read_header
from safetensors.numpy import save

from tests.contracts.test_documents import answer
from tests.live.toy_server import MODEL, TOOLS_CHATML, toy_server
from tests.models.tiny_gguf import write_tiny_llama
from tests.text.tools.own_way import own_way
from tests.text.tools.spelled import FORMATS, chat, events_of
from tests.text.tools.test_hostile_output import TOOLS
from tests.text.tools.test_triggers import model_of
from tests.toy import CHATML, bpe_library

Run = Callable[[bytes], None]


class Target(NamedTuple):
    name: str
    open: Callable[[], AbstractContextManager[Run]]
    seeds: Callable[[], list[bytes]]
    """Whole inputs, which changes are made to."""


def refusing(run: Run) -> Run:
    def checked(data: bytes) -> None:
        with contextlib.suppress(ImpError):
            run(data)

    return checked


@contextlib.contextmanager
def gguf() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"

        def run(data: bytes) -> None:
            path.write_bytes(data)
            tokenizer_of(read_header(path), foreign=_foreign)

        yield refusing(run)


def _foreign(_text: str) -> Any:
    """Steps of strangers run in a process of their own (tests/text/test_model_workers.py)."""
    raise InvalidModel("foreign")


def gguf_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        whole = write_tiny_llama(Path(folder) / "m.gguf", n_layers=1, template=CHATML)
        return [whole.read_bytes()]


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 300, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
}  # fmt: skip


@contextlib.contextmanager
def safetensors() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG))

        def run(data: bytes) -> None:
            (folder / "model.safetensors").write_bytes(data)
            read_header(folder)

        yield refusing(run)


def safetensors_seeds() -> list[bytes]:
    names = ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight")
    return [save({name: np.zeros((4, 16), dtype=np.float32) for name in names}, {"format": "pt"})]


@contextlib.contextmanager
def tokenizer() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"

        def run(data: bytes) -> None:
            path.write_bytes(data)
            tokenizer_of_json(path, {}, foreign=_foreign).encode("Ein Text, 12 <|im_end|>", control=True)

        yield refusing(run)


@contextlib.contextmanager
def template() -> Iterator[Run]:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]

    def run(data: bytes) -> None:
        ChatTemplate(data.decode(errors="replace")).render(messages, tools=[{"name": "f"}])

    yield refusing(run)


@contextlib.contextmanager
def schema() -> Iterator[Run]:
    def run(data: bytes) -> None:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return
        check_schema(found)

    yield refusing(run)


SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": [1, "x", None]}}},
    {"type": "array", "items": {"$ref": "#/$defs/n"}, "uniqueItems": True, "$defs": {"n": {"pattern": "^(a|b)+c?$"}}},
    {"oneOf": [{"const": 1}, {"not": {"type": "string"}}], "if": {"minimum": 2}, "then": False, "else": True},
]


@contextlib.contextmanager
def call() -> Iterator[Run]:
    """What a model writes: read by every notation, whole and cut."""

    def run(data: bytes) -> None:
        form = FORMATS[data[0] % len(FORMATS)] if data else FORMATS[0]
        text = bytes(byte for byte in data[1:] if byte < 0xFE)
        whole, cut = (events_of(form, chat(TOOLS), text, places) for places in ((), range(len(text))))
        told = ["".join(e.text for e in events if isinstance(e, TextDelta)) for events in (whole, cut)]
        assert told[0] == told[1], (form, text)

    yield refusing(run)


def call_seeds() -> list[bytes]:
    spelled = []
    for number, form in enumerate(FORMATS):
        text = own_way(form, model_of(form, "none", True).tokenizer.marked, "first", {"s": "a", "n": None})
        spelled.append(bytes([number]) + bytes(byte for byte in text if byte < 0xFE))
    return spelled


@contextlib.contextmanager
def served(ask: Callable[[httpx.Client, bytes], httpx.Response]) -> Iterator[Run]:
    with toy_server(TOOLS_CHATML, settings={"server.max_tokens": 8}) as live:
        live.on_loop(live.engine.answer_with, answer)
        with httpx.Client(base_url=live.url, timeout=20) as http:

            def run(data: bytes) -> None:
                status = ask(http, data).status_code
                assert status < 500 or status in (501, 503), status

            yield run


def _body(http: httpx.Client, data: bytes) -> httpx.Response:
    paths = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/completion", "/v1/embeddings", "/tokenize")
    path = paths[data[0] % len(paths)] if data else paths[0]
    return http.post(path, content=data[1:], headers={"content-type": "application/json"})


def _offset(http: httpx.Client, data: bytes) -> httpx.Response:
    name, _, place = data.decode(errors="replace").partition("\n")
    return http.get("/v1/stream", params={"conv_id": name, "from": place}, headers={"last-event-id": "1"})


def body_seeds() -> list[bytes]:
    messages = [{"role": "user", "content": "hi"}]
    bodies: list[dict[str, Any]] = [
        {"messages": messages, "tools": [{"type": "function", "function": {"name": "f"}}], "stream": True},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "instructions": "x"},
        {"messages": messages, "max_tokens": 3, "stop_sequences": ["a"]},
        {"prompt": ["a", 3], "n_predict": 2, "json_schema": {"type": "object"}},
        {"input": ["a", "b"]},
        {"content": "a", "with_pieces": True},
    ]
    return [bytes([i]) + json.dumps({"model": MODEL, **made}).encode() for i, made in enumerate(bodies)]


TARGETS = {
    target.name: target
    for target in (
        Target("gguf", gguf, gguf_seeds),
        Target("safetensors", safetensors, safetensors_seeds),
        Target("tokenizer", tokenizer, lambda: [bpe_library(320).to_str().encode()]),
        Target("template", template, lambda: [CHATML.encode(), TOOLS_CHATML.encode()]),
        Target("schema", schema, lambda: [json.dumps(each).encode() for each in SCHEMAS]),
        Target("call", call, call_seeds),
        Target("body", lambda: served(_body), body_seeds),
        Target("offset", lambda: served(_offset), lambda: [b"a\n0", b"a::b\n18446744073709551616", b"\n-1"]),
    )
}
