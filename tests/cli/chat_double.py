"""A text side over bytes for the scripted engine: what a chat needs, and nothing of a real model."""

from __future__ import annotations

import json
from collections.abc import Callable

from imp_server.core import (
    ChatRequest,
    GenerateRequest,
    OutputPlan,
    Segment,
    TemplateRefused,
    TextPart,
    pack_ids,
)
from imp_server.engine.client.scripted import byte_vocabulary
from imp_server.text.session import OutputSession, Prepared

END = 256
THINKS = (Segment("answer"), Segment("think", openers=(b"<",), closers=(b">",), opens_from=(0,), closes_to=0))
"""Bytes between < and > are reasoning."""


class ByteText:
    """Renders messages as JSON; refuses a message that says `refuse`."""

    def __init__(self) -> None:
        self.seen: list[ChatRequest] = []
        self.vocabulary = byte_vocabulary("<|end|>")

    def prepare_chat(self, chat: ChatRequest) -> Prepared:
        self.seen.append(chat)
        texts = ["".join(p.text for p in m.parts if isinstance(p, TextPart)) for m in chat.messages]
        if "refuse" in texts[-1]:
            raise TemplateRefused("the template refuses this")
        plan = OutputPlan(THINKS, end_ids=(END,), max_tokens=chat.output.max_tokens or 1000)
        prompt = json.dumps(texts).encode()
        request = GenerateRequest(0, pack_ids(list(prompt)), plan)
        return Prepared(request, OutputSession(plan, self.vocabulary), prompt.decode())

    def begin_chat(self, chat: ChatRequest) -> Callable[[object], Prepared]:
        return lambda _: self.prepare_chat(chat)

    def count(self, chat: ChatRequest) -> int:
        return len(json.dumps(["".join(p.text for p in m.parts if isinstance(p, TextPart)) for m in chat.messages]))
