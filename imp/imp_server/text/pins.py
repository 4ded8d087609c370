"""How far cache marks pin a prompt, in characters of its text and in tokens.

The place of the last marked block is looked up in the prompt itself. Rendering the conversation again, cut
behind the block, would tell the same where its ids begin those of the prompt, at the price of a second
rendering and tokenising; a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from imp_server.core import ChatRequest, MessageSpan, TextPart, message_text
from imp_server.text.guard import Guard
from imp_server.text.spans import TextSpan


class _Mark(NamedTuple):
    """The last marked block: indices of its message and of the part in it; a call counts as its message's last part."""

    message: int
    part: int


class MarkedPrefix(NamedTuple):
    """Tokens that the client wants kept; 0 = none."""

    until: int
    hour_until: int
    """As far as it wants them for an hour."""


def _last_mark(chat: ChatRequest, *, for_hour: bool) -> _Mark | None:
    """None: nothing in the messages is marked, or nothing for an hour."""
    for index in range(len(chat.messages) - 1, -1, -1):
        parts = chat.messages[index].parts
        if any(call.for_hour if for_hour else call.cache_mark for call in chat.messages[index].tool_calls):
            return _Mark(index, len(parts) - 1)
        for at in range(len(parts) - 1, -1, -1):
            part = parts[at]
            if isinstance(part, TextPart) and (part.for_hour if for_hour else part.cache_mark):
                return _Mark(index, at)
    return None


def ends_inside(
    chat: ChatRequest, text: str, places: Sequence[TextSpan | None], where: Sequence[int], guard: Guard
) -> list[int | None]:
    """Where the last marked block ends in the guarded prompt, and the last for an hour, if parts of its message follow.

    `places` of the rendered messages; `where`: which of them each message is in. None: nothing is marked, the block
    ends with its message, the message was folded into another, or the template shows it in a way of its own.
    """
    marks = [_last_mark(chat, for_hour=for_hour) for for_hour in (False, True)]
    return [_end_inside(chat, mark, text, places, where, guard) for mark in marks]


def _end_inside(
    chat: ChatRequest,
    mark: _Mark | None,
    text: str,
    places: Sequence[TextSpan | None],
    where: Sequence[int],
    guard: Guard,
) -> int | None:
    if mark is None:
        return None
    message, index = chat.messages[mark.message], where[mark.message]
    place = places[index]
    if mark.part == len(message.parts) - 1 or place is None or list(where).count(index) > 1:
        return None
    block = message_text(msgspec.structs.replace(message, parts=message.parts[: mark.part + 1])).lstrip()
    region = text[place.start : place.end]
    if not block or not guard.clean(region).startswith(block):
        return None
    end = n_seen = 0
    while n_seen < len(block):
        n_seen += region[end] != guard.character
        end += 1
    return place.start + end


def pins_of(chat: ChatRequest, spans: Sequence[MessageSpan], n_ids: int, inside: Sequence[int | None]) -> MarkedPrefix:
    """`inside`: tokens before the ends of `ends_inside`.

    A mark on tools pins the whole prompt; for an hour no more than what stands before the conversation.
    """
    until, hour_until = (
        _until(spans, n_ids, _last_mark(chat, for_hour=for_hour), at)
        for for_hour, at in zip((False, True), inside, strict=True)
    )
    if chat.cache.pin_prompt or any(tool.cache_mark for tool in chat.tools):
        until = n_ids
    if any(tool.for_hour for tool in chat.tools):
        hour_until = max(hour_until, next((s.start for s in spans if s.role != "system"), n_ids))
    return MarkedPrefix(until, n_ids if chat.cache.for_hour else hour_until)


def _until(spans: Sequence[MessageSpan], n_ids: int, mark: _Mark | None, inside: int | None) -> int:
    if mark is None:
        return 0
    if inside is not None:
        return inside
    # A message folded into a later one ends where that one ends.
    return next((s.end for s in spans[mark.message :] if s.end > s.start), n_ids)
