"""Ids of tool calls: new ones are unique in their conversation, and old ones are shown as the template wants them.

What clients see is never changed: they get their own ids back. Only the rendered history is respelled, by rules that
look at what precedes a call alone, so a prompt stays a prefix of the next one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from imp_server.core import Message, ToolCall
from imp_server.text.tools.base import SpellId

SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_DIGITS = "0123456789"
_MOST_DIGITS = 18
"""Of the number at the end of an id: those before them are letters like others."""


def unique_id(wanted: str, taken: Collection[str]) -> str | None:
    """`wanted`, or with the next number that is free if it ends in one; None if it doesn't and is taken."""
    while wanted in taken:
        number = wanted[max(len(wanted.rstrip(_DIGITS)), len(wanted) - _MOST_DIGITS) :]
        if not number:
            return None
        wanted = f"{wanted[: -len(number)]}{int(number) + 1}"
    return wanted


def short_id(call: ToolCall, taken: Collection[str]) -> str:
    """Nine letters and digits, as Mistral's templates demand."""
    if SHORT_ID.fullmatch(call.id) and call.id not in taken:
        return call.id
    return next(found for found in _hashes(call.id) if found not in taken)


def _hashes(text: str) -> Iterator[str]:
    for number in range(1 << 30):
        yield hashlib.blake2b(f"{number} {text}".encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()[:9]


def settled(messages: Sequence[Message], spell: SpellId | None) -> tuple[Message, ...]:
    """The same messages with each tool's result at its call: in the calls' order, under its name and its id.

    A result belongs to the latest call with its id that has none yet. `spell`: how the template wants ids.
    """
    found: list[Message] = []
    taken: set[str] = set()
    calls: dict[str, list[_Call]] = {}
    """By the client's id, those that wait for a result."""
    n_calls = run = 0
    placed: list[tuple[int, Message]] = []
    for message in messages:
        if message.role != "tool":
            found += _in_order(placed)
            placed = []
        if message.role == "assistant" and message.tool_calls:
            run, respelled = n_calls, []
            latest: dict[str, list[_Call]] = {}
            for call in message.tool_calls:
                shown = msgspec.structs.replace(call, id=spell(call, taken)) if spell else call
                taken.add(shown.id)
                latest.setdefault(call.id, []).append(_Call(n_calls, shown))
                respelled.append(shown)
                n_calls += 1
            calls |= latest
            found.append(msgspec.structs.replace(message, tool_calls=tuple(respelled)))
        elif message.role == "tool":
            waiting = calls.get(message.tool_call_id or "", [])
            call_of = waiting[0] if waiting else None
            if len(waiting) > 1:
                del waiting[0]
            at = n_calls if call_of is None else max(call_of.number, run)
            placed.append((at, message if call_of is None else _result(message, call_of.shown)))
        else:
            found.append(message)
    return tuple(found + _in_order(placed))


class _Call(msgspec.Struct, frozen=True):
    number: int
    """Calls before it in the conversation."""
    shown: ToolCall


def _result(message: Message, call: ToolCall) -> Message:
    return msgspec.structs.replace(message, tool_call_id=call.id, name=message.name or call.name)


def _in_order(placed: Sequence[tuple[int, Message]]) -> list[Message]:
    return [message for _, message in sorted(placed, key=lambda pair: pair[0])]
