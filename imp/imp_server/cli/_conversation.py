"""A conversation held in the terminal: its messages, sampling, and the JSON file it can be kept in."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from imp_server.core import ChatRequest, Message, ReasoningIntent, Role, SamplingIntent, TextPart, UserFault


@dataclass(slots=True)
class Conversation:
    """Owner of what has been said. `system` is sent first when it isn't empty."""

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    sampling: SamplingIntent = field(default_factory=SamplingIntent)
    max_tokens: int | None = None
    thinking: bool | None = None

    def add(self, role: Role, text: str, reasoning: str | None = None) -> None:
        self.messages.append(Message(role, (TextPart(text),), reasoning=reasoning))

    def request(self) -> ChatRequest:
        first = [Message("system", (TextPart(self.system),))] if self.system else []
        return ChatRequest(
            messages=(*first, *self.messages),
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            reasoning=ReasoningIntent(enabled=self.thinking),
        )

    def set(self, name: str, text: str) -> None:
        """Change a sampling value, `max_tokens` or `thinking`. Raises UserFault with the names that there are."""
        names = [f for f in SamplingIntent.__struct_fields__ if f not in {"logit_bias"}]
        try:
            value = json.loads(text)
            if name == "max_tokens":
                self.max_tokens = msgspec.convert(value, int | None)
            elif name == "thinking":
                self.thinking = msgspec.convert(value, bool | None)
            elif name in names:
                changed = {**msgspec.structs.asdict(self.sampling), name: value}
                self.sampling = msgspec.convert(changed, SamplingIntent)
            else:
                raise UserFault(f"no setting {name}; there are {', '.join([*names, 'max_tokens', 'thinking'])}")
        except (ValueError, msgspec.ValidationError):
            raise UserFault(f"{text} isn't a value for {name}") from None

    def save(self, path: Path) -> None:
        """Write messages in the form of the chat API. Raises UserFault."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        messages += [_plain(message) for message in self.messages]
        try:
            path.write_text(json.dumps({"messages": messages}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserFault(f"can't write {path}: {error.strerror}") from None

    def load(self, path: Path) -> None:
        """Replace the conversation by a saved one; unchanged if the file isn't one. Raises UserFault."""
        try:
            saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
        except OSError as error:
            raise UserFault(f"can't read {path}: {error.strerror}") from None
        except msgspec.MsgspecError as error:
            raise UserFault(f"{path} is no saved conversation: {error}") from None
        self.system = "\n\n".join(m.content for m in saved.messages if m.role == "system")
        self.messages = []
        for message in saved.messages:
            if message.role != "system":
                self.add(message.role, message.content, message.reasoning_content)


class _SavedMessage(msgspec.Struct, frozen=True):
    role: Role
    content: str
    reasoning_content: str | None = None


class _Saved(msgspec.Struct, frozen=True):
    messages: tuple[_SavedMessage, ...]


def _plain(message: Message) -> dict[str, Any]:
    content = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    plain: dict[str, Any] = {"role": message.role, "content": content}
    return {**plain, "reasoning_content": message.reasoning} if message.reasoning else plain
