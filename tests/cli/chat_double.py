"""A text side over bytes for the scripted engine: what a chat needs, and nothing of a real model."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from imp_server.core import (
    ChatRequest,
    Finish,
    GenerateRequest,
    OutputEvent,
    OutputPlan,
    ReasoningDelta,
    TemplateRefused,
    TextDelta,
    TextPart,
    pack_ids,
    unpack_ids,
)
from imp_server.engine.messages import RowDelta

END = 256


@dataclass
class ByteSession:
    """Bytes between < and > are reasoning."""

    decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))
    thinking: bool = False

    def unjudged(self, choice: int) -> None:
        return None

    def feed(self, delta: RowDelta) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        for char in self.decoder.decode(bytes(i for i in unpack_ids(delta.ids) if i < END)):
            if char in "<>":
                self.thinking = char == "<"
            else:
                events.append((ReasoningDelta if self.thinking else TextDelta)(0, char))
        if delta.finish:
            events.append(Finish(0, delta.finish.reason, delta.finish.usage))
        return events


@dataclass
class BytePrepared:
    request: GenerateRequest

    ignored: tuple[str, ...] = ()

    def session(self) -> ByteSession:
        return ByteSession()


class ByteText:
    """Renders messages as JSON; refuses a message that says `refuse`."""

    def __init__(self) -> None:
        self.seen: list[ChatRequest] = []

    def prepare_chat(self, chat: ChatRequest) -> BytePrepared:
        self.seen.append(chat)
        texts = ["".join(p.text for p in m.parts if isinstance(p, TextPart)) for m in chat.messages]
        if "refuse" in texts[-1]:
            raise TemplateRefused("the template refuses this")
        plan = OutputPlan(end_ids=(END,), max_tokens=chat.max_tokens or 1000)
        prompt = json.dumps(texts).encode()
        return BytePrepared(GenerateRequest(0, pack_ids(list(prompt)), plan))

    def begin_chat(self, chat: ChatRequest) -> Callable[[object], BytePrepared]:
        return lambda _: self.prepare_chat(chat)

    def count(self, chat: ChatRequest) -> int:
        return len(json.dumps(["".join(p.text for p in m.parts if isinstance(p, TextPart)) for m in chat.messages]))
