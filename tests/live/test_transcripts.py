"""The next turn, sent back over HTTP, finds the reply in the cache, though its text would be tokenised otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from imp_server.api.model_text_side import ModelTextSide
from imp_server.backends import choose
from imp_server.config import Config
from imp_server.engine.build import build_engine
from imp_server.engine.client.inline import InlineEngine
from imp_server.vocab.byte_alphabet import CHAR_OF_BYTE
from imp_server.vocab.from_gguf import CONTROL, NORMAL

from tests.api.live_server import LiveServer, live_server
from tests.models.tiny_gguf import write_tiny_llama

Json = dict[str, Any]
PAIRS = [a + b for a in "abcdefghijklmno" for b in "abcdefghijklmno"]
TOKENS = [*(CHAR_OF_BYTE[b] for b in (10, *range(32, 127))), *PAIRS, "<|end|>"]
"""Every printable character and 225 pairs of letters, so that most replies could be written in many ways."""
TOKENIZER: dict[str, Any] = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": TOKENS,
    "token_type": [NORMAL] * (len(TOKENS) - 1) + [CONTROL],
    "merges": [f"{pair[0]} {pair[1]}" for pair in PAIRS],
    "eos_token_id": len(TOKENS) - 1,
}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
N_REPLY = 24


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, LiveServer]]:
    """With transcripts and without."""
    if choose("auto") == "reference":
        pytest.skip("the native library isn't built")
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_llama(path, vocab=len(TOKENS), context=1024, tokenizer=TOKENIZER, template=TEMPLATE)
    with _served(path, True) as with_them, _served(path, False) as without:
        yield with_them, without


def _served(path: Path, transcripts: bool) -> Any:
    settings = {"engine.backend": "cpu", "prefix_cache.transcripts": transcripts, "cpu.pack_cache": False}
    config = Config.of(settings)
    engine = InlineEngine(functools.partial(build_engine, str(path), "m", config.for_engine()), check_each_step=True)
    return live_server(engine, lambda: ModelTextSide.load(str(path), config), settings=settings)


def _post(server: LiveServer, path: str, body: Json) -> Json:
    reply = httpx.post(f"{server.url}{path}", json={"model": "m", "temperature": 1.0} | body, timeout=60)
    assert reply.status_code == 200, reply.text
    found: Json = reply.json()
    return found


class Chat:
    """The conversation as each dialect's clients keep it."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self.history: list[Json] = []

    def turn(self, text: str) -> tuple[int, int, int, str]:
        """Prompt tokens, of them cached, completion tokens, and the reply."""
        self.history.append({"role": "user", "content": text})
        body = _post(self.server, "/v1/chat/completions", {"messages": self.history, "max_tokens": N_REPLY, "seed": 3})
        message = body["choices"][0]["message"]
        self.history.append(message)
        usage = body["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], cached, usage["completion_tokens"], message["content"]


class Messages(Chat):
    def turn(self, text: str) -> tuple[int, int, int, str]:
        self.history.append({"role": "user", "content": text})
        counted = _post(self.server, "/v1/messages/count_tokens", {"messages": self.history})["input_tokens"]
        body = _post(self.server, "/v1/messages", {"messages": self.history, "max_tokens": N_REPLY, "seed": 3})
        self.history.append({"role": "assistant", "content": body["content"]})
        usage = body["usage"]
        cached, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        assert counted == usage["input_tokens"] + cached + written
        return counted, cached, usage["output_tokens"], body["content"][0]["text"]


class Responses(Chat):
    def turn(self, text: str) -> tuple[int, int, int, str]:
        self.history.append({"role": "user", "content": text})
        body = self.ask(text)
        self.history += body["output"]
        usage = body["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        return usage["input_tokens"], cached, usage["output_tokens"], body["output"][-1]["content"][0]["text"]

    def ask(self, _text: str) -> Json:
        return _post(self.server, "/v1/responses", {"input": self.history, "max_output_tokens": N_REPLY, "seed": 3})


class Continued(Responses):
    last = ""

    def ask(self, text: str) -> Json:
        body: Json = {"input": text, "max_output_tokens": N_REPLY, "seed": 3}
        answer = _post(self.server, "/v1/responses", body | ({"previous_response_id": self.last} if self.last else {}))
        self.last = answer["id"]
        return answer


@pytest.mark.parametrize("make", [Chat, Messages, Responses, Continued])
def test_a_turn_reuses_the_replies_before_it(
    servers: tuple[LiveServer, LiveServer], make: Callable[[LiveServer], Chat]
) -> None:
    encode = TextOf(servers[0]).encode
    kept, plain = make(servers[0]), make(servers[1])
    n_otherwise = 0
    before = 0
    for number in range(4):
        question = f"{make.__name__} asks for the {number}th time"
        n_prompt, n_cached, n_reply, text = kept.turn(question)
        if number:
            assert n_cached >= before, "the reply's tokens weren't found"
        n_otherwise += encode(text) != n_reply
        before = n_prompt + n_reply - 1  # the last token of a reply is never run
        plain.turn(question)
    assert n_otherwise >= 3, "replies that are tokenised to as many ids prove nothing"
    missed = plain.turn("once more")
    assert missed[1] < missed[0] - 4 * 10, "without transcripts the replies would have to be computed again"


class TextOf:
    def __init__(self, server: LiveServer) -> None:
        self._url = server.url

    def encode(self, text: str) -> int:
        return len(httpx.post(f"{self._url}/tokenize", json={"content": text}, timeout=10).json()["tokens"])
