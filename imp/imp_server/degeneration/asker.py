"""Asks one server with the run's settings: model, default decoding, what a thinking model needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imp_server.degeneration.client import Answer, Client

REASONER_TOKENS = 1000
PROBE_TOKENS = 400


@dataclass(frozen=True, slots=True)
class ProbeAsker:
    client: Client
    model: str
    reasons: bool = False
    """The model thinks before it answers: budgets are raised to REASONER_TOKENS."""
    quick: bool = False
    repeatable: bool = True
    """Whether equal requests are expected to bring equal answers."""

    def body(self, prompt: str | list[dict[str, Any]], max_tokens: int, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        exact = fields.pop("exact_tokens", False)
        limit = max(max_tokens, REASONER_TOKENS) if self.reasons and not exact else max_tokens
        return {
            "model": self.model, "messages": messages, "max_tokens": limit, "temperature": 0.0, "seed": 42, **fields
        }  # fmt: skip

    def chat(self, prompt: str | list[dict[str, Any]], max_tokens: int, **fields: Any) -> Answer:
        return self.client.chat(self.body(prompt, max_tokens, **fields))

    def messages(self, prompt: str, max_tokens: int, **fields: Any) -> Answer:
        body = self.body(prompt, max_tokens, **fields)
        del body["seed"]  # Messages has none
        return self.client.messages(body)


def reasons(client: Client, model: str) -> bool:
    """Whether the model thinks first: reasoning, or thinking tags, in a stream or in a whole reply."""
    asker = ProbeAsker(client, model)
    for stream in (True, False):
        answer = asker.chat("How many days are there in three weeks?", PROBE_TOKENS, stream=stream)
        if answer.reasoning.strip() or "<think>" in answer.content:
            return True
    return False
