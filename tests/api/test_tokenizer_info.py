"""What evaluation harnesses ask a server's tokenizer: vLLM's route, and its names of fields."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.api.live_server import LiveServer
from tests.live.toy_server import MODEL, toy_server
from tests.toy import CHATML


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with toy_server(CHATML) as server:
        yield server


def test_the_edges_of_texts_and_the_template(live: LiveServer) -> None:
    told = httpx.get(f"{live.url}/tokenizer_info").json()
    assert told == {
        "tokenizer_class": "imp",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": None,
        "chat_template": CHATML,
        "model_max_length": 32768,
    }
    assert httpx.get(f"{live.url}/tokenizer_info", params={"model": MODEL}).json() == told
    assert httpx.get(f"{live.url}/tokenizer_info", params={"model": "other"}).status_code == 404


def test_vllms_names_of_fields(live: LiveServer) -> None:
    ids = httpx.post(f"{live.url}/tokenize", json={"prompt": "hé", "add_special_tokens": False}).json()["tokens"]
    assert ids == [104, 195, 169]
    assert httpx.post(f"{live.url}/detokenize", json={"tokens": ids}).json() == {"content": "hé", "prompt": "hé"}
