"""`truncation: auto`: drops the oldest turns of a conversation that the context can't hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from imp_server.core import ChatRequest, Message


def without_oldest_turns(messages: tuple[Message, ...], n_turns: int) -> tuple[Message, ...]:
    """Without the first `n_turns` user messages and all that answered them; one user message always stays.

    System messages stay, and a tool result never stays without its call.
    """
    users = _users(messages)
    n_turns = min(n_turns, len(users) - 1)
    if n_turns <= 0:
        return messages
    kept = [message for message in messages[: users[n_turns]] if message.role == "system"]
    return (*kept, *messages[users[n_turns] :])


def _users(messages: tuple[Message, ...]) -> list[int]:
    return [i for i, message in enumerate(messages) if message.role == "user"]


async def fitting(
    request: ChatRequest, count: Callable[[ChatRequest], Awaitable[int]], context_length: int
) -> ChatRequest:
    """The request with as many turns as fit; the last turn is never dropped, so it may still be too long.

    Fewer turns never count more. Each count renders the whole prompt, so the number to drop is guessed from what turns
    count on average, and what is left is halved after each guess: few counts for turns that are alike, and for others
    at most twice those of halving alone.
    """

    def cut(n_turns: int) -> ChatRequest:
        return msgspec.structs.replace(request, messages=without_oldest_turns(request.messages, n_turns))

    n_users = len(_users(request.messages))
    low = _Probe(0, await count(request))
    high = _Probe(max(0, n_users - 1), low.n_tokens // max(1, n_users))
    if low.n_tokens < context_length:
        return request
    halves = False
    while high.n_turns - low.n_turns > 1:
        middle = (low.n_turns + high.n_turns) // 2 if halves else _guess(low, high, context_length)
        found = _Probe(middle, await count(cut(middle)))
        low, high = (low, found) if found.n_tokens < context_length else (found, high)
        halves = not halves
    return cut(high.n_turns)


class _Probe(NamedTuple):
    """Turns dropped, and what the rest counts."""

    n_turns: int
    n_tokens: int


def _guess(low: _Probe, high: _Probe, context_length: int) -> int:
    """Turns to drop, between the two: the fewest that fit, if all turns between them count the same."""
    n_between = high.n_turns - low.n_turns
    too_many = low.n_tokens - context_length + 1
    guess = low.n_turns + -(-too_many * n_between // max(1, low.n_tokens - high.n_tokens))
    return max(low.n_turns + 1, min(high.n_turns - 1, guess))
