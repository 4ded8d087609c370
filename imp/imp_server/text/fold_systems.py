"""Rewrites conversations for templates without a system role, or without one in the middle."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imp_server.core import Message, TextPart
from imp_server.text.template_traits import TemplateTraits

_BETWEEN = TextPart("")
"""Joined with the part separator on both sides, this leaves an empty line between the two texts."""


def fold_systems(messages: Sequence[Message], traits: TemplateTraits) -> tuple[list[Message], list[int]]:
    """The messages to render, and for each original message the index of the one it is in now."""
    folded: list[Message] = []
    where: list[int] = []
    waiting: list[Message] = []
    for index, message in enumerate(messages):
        supported = traits.system_role if index == 0 else traits.late_system
        if message.role == "system" and not supported:
            waiting.append(message)
            where.append(len(folded))
            continue
        if waiting and message.role == "user":
            message = msgspec.structs.replace(message, parts=_joined([*waiting, message]))
            waiting = []
        elif waiting:
            folded.append(Message("user", _joined(waiting)))
            waiting = []
        where.append(len(folded))
        folded.append(message)
    if waiting:
        folded.append(Message("user", _joined(waiting)))
    return folded, where


def _joined(messages: Sequence[Message]) -> tuple[TextPart, ...]:
    parts: list[TextPart] = []
    for message in messages:
        texts = [p for p in message.parts if isinstance(p, TextPart)]
        parts += [_BETWEEN, *texts] if parts and texts else texts
    return tuple(parts)
