"""A conversation held in the terminal: its messages, sampling, and the JSON file it can be kept in."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from msgspec.structs import replace

from imp_server.core import (
    SETTABLE,
    ChatRequest,
    Message,
    OutputIntent,
    ReasoningIntent,
    Role,
    SamplingIntent,
    SamplingParams,
    TextPart,
    UserFault,
)

_OTHERS = ("ignore_eos", "stop_token_ids", "min_tokens")
"""Of SamplingIntent, beside what is asked of the law of sampling."""
SETTINGS = ("max_tokens", "thinking", *SETTABLE, *_OTHERS)
_ANY = 1 << 30
_BOUNDS: dict[str, tuple[float, float]] = {
    "max_tokens": (1, _ANY), "temperature": (0, 100), "top_k": (0, _ANY), "top_p": (0, 1), "min_p": (0, 1),
    "typical_p": (0, 1), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2), "repetition_penalty": (0.01, 100),
    "repeat_last_n": (0, _ANY), "dry_multiplier": (0, 100), "dry_base": (1, 100), "dry_allowed_length": (0, _ANY),
    "dry_penalty_last_n": (0, _ANY), "mirostat_tau": (0, 100), "mirostat_eta": (0, 1), "dynatemp_range": (0, 100),
    "dynatemp_exponent": (0, 100), "top_n_sigma": (0, 100), "xtc_probability": (0, 1), "xtc_threshold": (0, 1),
}  # fmt: skip
_KINDS: dict[str, Any] = {
    "max_tokens": int,
    "thinking": bool,
    **get_type_hints(SamplingParams),
    **get_type_hints(SamplingIntent),
}


def _bounds_text(name: str) -> str:
    if name == "thinking":
        return " (true or false)"
    if name not in _BOUNDS:
        return ""
    low, high = _BOUNDS[name]
    return f" (a whole number from {low:g} on)" if high == _ANY else f" (a number from {low:g} to {high:g})"


def _setting(name: str, text: str) -> Any:
    """The value that `text` spells. Raises UserFault saying what may be."""
    low, high = _BOUNDS.get(name, (float("-inf"), float("inf")))
    try:
        value = msgspec.convert(json.loads(text), _KINDS[name])
    except (ValueError, msgspec.ValidationError, RecursionError):
        value = None
    if name == "mirostat" and value not in (0, 1, 2):
        raise UserFault(f"{text} isn't a value for mirostat (0 = off, 1, 2)")
    within = low <= value <= high if name in _BOUNDS and value is not None else value is not None
    if not within:
        raise UserFault(f"{text} isn't a value for {name}{_bounds_text(name)}")
    return value


@dataclass(slots=True)
class Conversation:
    """Owner of what has been said. `system` is sent first when it isn't empty."""

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    sampling: SamplingIntent = field(default_factory=SamplingIntent)
    max_tokens: int | None = None
    thinking: bool | None = None
    stop: tuple[str, ...] = ()

    def add(self, role: Role, text: str, reasoning: str | None = None) -> None:
        self.messages.append(Message(role, (TextPart(text),), reasoning=reasoning))

    def request(self) -> ChatRequest:
        first = [Message("system", (TextPart(self.system),))] if self.system else []
        return ChatRequest(
            messages=(*first, *self.messages),
            sampling=self.sampling,
            output=OutputIntent(max_tokens=self.max_tokens, stop=self.stop),
            reasoning=ReasoningIntent(enabled=self.thinking),
        )

    def drop_oldest(self) -> bool:
        """Leave out the older quarter of the questions, with their answers; False if there is but one question."""
        starts = [at for at, message in enumerate(self.messages) if message.role == "user"]
        if len(starts) < 2:
            return False
        del self.messages[: starts[max(1, len(starts) // 4)]]
        return True

    def set(self, name: str, text: str) -> None:
        """Change a sampling value, `max_tokens` or `thinking`; `default` takes it back.

        Raises UserFault with the names that there are, or the values that may be.
        """
        if name not in SETTINGS:
            close = difflib.get_close_matches(name, SETTINGS, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(SETTINGS)}"
            raise UserFault(f"no setting {name}; {hint}")
        value = None if text in ("default", "null") else _setting(name, text)
        if name == "max_tokens":
            self.max_tokens = value
        elif name == "thinking":
            self.thinking = value
        elif name in SETTABLE:
            asked = {known: its for known, its in self.sampling.asked.items() if known != name}
            self.sampling = replace(self.sampling, asked=asked if value is None else {**asked, name: value})
        else:
            self.sampling = replace(
                self.sampling, **{name: getattr(SamplingIntent(), name) if value is None else value}
            )

    def shown(self, name: str) -> str:
        """`name = value`. Raises UserFault for a name that there isn't."""
        if name not in SETTINGS:
            self.set(name, "")
        if name in _OTHERS:
            value = getattr(self.sampling, name)
            is_default = value == getattr(SamplingIntent(), name)
        else:
            value = self.sampling.asked.get(name) if name in SETTABLE else getattr(self, name)
            is_default = value is None
        return f"{name} = {'default' if is_default else json.dumps(value)}"

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
