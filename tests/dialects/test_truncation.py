"""As many turns as fit stay, and finding them takes few counts, since each renders the whole prompt."""

from __future__ import annotations

import asyncio
from math import log2
from random import Random

import pytest
from imp_server.core import ChatRequest, Message, TextPart
from imp_server.dialects.openai_responses.truncation import fitting, without_oldest_turns

from tests.asked import changed, made


def conversation(sizes: list[int]) -> ChatRequest:
    """A turn of so many tokens each: a character is a token."""
    return made(ChatRequest, messages=tuple(Message("user", (TextPart("x" * size),)) for size in sizes))


def n_tokens(request: ChatRequest) -> int:
    return sum(len(part.text) for message in request.messages for part in message.parts if isinstance(part, TextPart))


def fitted(request: ChatRequest, context_length: int) -> tuple[ChatRequest, int]:
    """And how often it was counted."""
    n_counts = 0

    async def count(request: ChatRequest) -> int:
        nonlocal n_counts
        n_counts += 1
        return n_tokens(request)

    return asyncio.run(fitting(request, count, context_length)), n_counts


def test_turns_that_are_alike_take_few_counts() -> None:
    found, n_counts = fitted(conversation([8] * 5000), 32_000)
    assert len(found.messages) == 3999 and n_counts <= 5


@pytest.mark.parametrize("seed", range(60))
def test_as_many_stay_as_fit(seed: int) -> None:
    """Also where guesses are as wrong as they can be: most of the text in few turns."""
    chance = Random(seed)
    n_turns = chance.choice((1, 2, 3, 7, 40, 400))
    sizes = [int(chance.paretovariate(chance.choice((0.3, 1.0, 3.0)))) % 100_000 for _ in range(n_turns)]
    chance.choice((sizes.sort, lambda: sizes.sort(reverse=True), lambda: None))()
    request = conversation(sizes)
    length = chance.choice((1, sum(sizes) // 2, sum(sizes), sum(sizes) + 1, chance.randint(1, sum(sizes) + 2)))
    cuts = [without_oldest_turns(request.messages, n) for n in range(n_turns)]
    right = next((cut for cut in cuts if n_tokens(changed(request, messages=cut)) < length), cuts[-1])
    found, n_counts = fitted(request, length)
    assert found.messages == right and n_counts <= 2 * log2(n_turns + 1) + 2
