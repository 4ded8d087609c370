"""`truncation: auto`: drops the oldest turns of a conversation that the context can't hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

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

    Fewer turns never count more, so the number to drop is found by halving: each count renders the whole prompt.
    """

    def cut(n_turns: int) -> ChatRequest:
        return msgspec.structs.replace(request, messages=without_oldest_turns(request.messages, n_turns))

    if await count(request) < context_length:
        return request
    fails, fits = 0, max(0, len(_users(request.messages)) - 1)
    while fits - fails > 1:
        middle = (fails + fits) // 2
        if await count(cut(middle)) < context_length:
            fits = middle
        else:
            fails = middle
    return cut(fits)
