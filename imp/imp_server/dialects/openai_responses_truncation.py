"""`truncation: auto`: drops the oldest turns of a conversation that the context can't hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from imp_server.core import ChatRequest, Message


def without_oldest_turn(messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
    """Without the first user message and all that answered it; None if only one user message is left.

    System messages stay, and a tool result never stays without its call.
    """
    users = [i for i, message in enumerate(messages) if message.role == "user"]
    if len(users) < 2:
        return None
    kept = [message for message in messages[: users[1]] if message.role == "system"]
    return (*kept, *messages[users[1] :])


async def fitting(
    request: ChatRequest, count: Callable[[ChatRequest], Awaitable[int]], context_length: int
) -> ChatRequest:
    """The request with as many turns as fit; the last turn is never dropped, so it may still be too long."""
    while await count(request) >= context_length:
        messages = without_oldest_turn(request.messages)
        if messages is None:
            break
        request = msgspec.structs.replace(request, messages=messages)
    return request
