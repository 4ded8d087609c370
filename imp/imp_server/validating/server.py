"""A served checkpoint, asked for the raw things: ids, texts, completions with their logprobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from imp_server.degeneration.client import Client


class Refused(Exception):
    """The server doesn't do what a check needs, or not as expected."""


@dataclass(slots=True)
class Completed:
    """A completion; the lists are aligned, and tell of the prompt, too, where `echo` was asked for."""

    text: str
    finish: str
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[dict[str, float] | None] = field(default_factory=list)


class Served:
    """One model of a server with llama.cpp's /tokenize and OpenAI's /v1/completions."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self.model = client, model

    def tokenize(self, text: str) -> list[int]:
        asked = {"model": self.model, "content": text, "add_special": False, "parse_special": False}
        return list(self._post("/tokenize", asked)["tokens"])

    def detokenize(self, ids: list[int]) -> str:
        return str(self._post("/detokenize", {"model": self.model, "tokens": ids})["content"])

    def complete(self, prompt: str | list[int], max_tokens: int, **options: Any) -> Completed:
        """Greedy unless `options` say otherwise."""
        asked = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **options}
        choice = self._post("/v1/completions", asked)["choices"][0]
        told = choice.get("logprobs") or {}
        return Completed(
            choice["text"], choice["finish_reason"], told.get("token_logprobs", []), told.get("top_logprobs", [])
        )

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        status, reply = self._client.post(path, body)
        if status != 200:
            raise Refused(f"{path} answers {status}: {str(reply)[:200]}")
        return reply
