"""The smallest chat requests."""

from __future__ import annotations

from typing import Any

from imp_server.core import (
    ChatRequest,
    Message,
    TextPart,
)

from tests.asked import made


def message(role: str, text: str, **more: Any) -> Message:
    return Message(role, (TextPart(text),), **more)  # type: ignore[arg-type]


def chat(*messages: Message, **more: Any) -> ChatRequest:
    return made(ChatRequest, messages, **more)


HI = chat(message("user", "hi"))
