"""What a client asks for, independent of the dialect that brought it. Frozen; lists travel as tuples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from imp_server.core.errors import VisionUnavailable
from imp_server.core.generate import GenerationOptions, SamplingParams
from imp_server.core.owner import NOBODY, Owner

Role = Literal["system", "user", "assistant", "tool"]


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    text: str
    cache_mark: bool = False
    for_hour: bool = False
    """The mark asks for an hour, not five minutes."""


class MediaPart(msgspec.Struct, frozen=True, tag="media"):
    """An image, audio, video or file part; refused with `vision_unavailable` until a model can read it."""

    kind: str
    path: str
    """JSON path of the part in the request, for the error."""


Part = TextPart | MediaPart


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str
    """JSON text, exactly as the client sent it (`{}` when there was none)."""
    cache_mark: bool = False
    for_hour: bool = False


class Message(msgspec.Struct, frozen=True):
    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class InputGrammar(msgspec.Struct, frozen=True):
    """What the text of a free-form tool must be, as a whole. `param`: where the request says so, for errors."""

    syntax: Literal["regex", "lark"]
    definition: str
    param: str = "tools"


class Tool(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    parameters: Mapping[str, Any] = {}
    strict: bool = False
    cache_mark: bool = False
    for_hour: bool = False
    input_grammar: InputGrammar | None = None
    """Of the parameter `input`, the only one: the tool takes text."""
    param: str = ""
    """Where its schema stands in the request."""


class ToolChoice(msgspec.Struct, frozen=True):
    """`names` restricts the choice: one for a named function, several for allowed_tools, () for all."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True
    named: bool = False
    """A single function was forced by name (OpenAI then finishes with `stop`, not `tool_calls`)."""


class ResponseFormat(msgspec.Struct, frozen=True):
    """What the answer must look like. `schema` for json_schema, `choices` for choice, `text` for the others.

    `grammar` is GBNF.
    """

    kind: Literal["text", "json_object", "json_schema", "regex", "grammar", "lark", "choice"] = "text"
    schema: Any = None
    text: str = ""
    choices: tuple[str, ...] = ()
    name: str = ""
    param: str = "response_format"
    """JSON path of the field that asked for it, for errors."""


class ReasoningIntent(msgspec.Struct, frozen=True):
    """What the client said about thinking; None = nothing."""

    enabled: bool | None = None
    effort: str | None = None
    budget_tokens: int | None = None
    budget_fraction: float | None = None
    budget_message: str | None = None
    """What the model is made to think last when its thinking is closed for it; None = the server's."""
    shown: bool = True
    format: Literal["deepseek", "deepseek-legacy", "none"] | None = None
    """none: thinking stays in the text, with its tags; deepseek-legacy: so in streams alone; None = the server's."""


class SamplingIntent(msgspec.Struct, frozen=True):
    """What a client asks of sampling; what it leaves out is the model's (text/sampling_defaults.py)."""

    asked: Mapping[str, Any] = {}
    """Values by their field of SamplingParams, SETTABLE ones only. None is none."""
    logit_bias: Mapping[int, float] = {}
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the reply, besides the model's own."""
    min_tokens: int = 0
    """The reply may end by a token only when it has so many."""

    def __post_init__(self) -> None:
        if unknown := self.asked.keys() - SETTABLE:
            raise TypeError(f"sampling has no {sorted(unknown)}")


_MADE = ("logit_bias", "banned_ids", "min_tokens", "held_ids")
SETTABLE = tuple(name for name in SamplingParams.__struct_fields__ if name not in _MADE)
"""Fields of SamplingParams that a client gives a value; the others are made from the rest of its intent."""


class CacheIntent(msgspec.Struct, frozen=True):
    """Pins asked for by the client. Message and tool marks live on the parts and tools themselves."""

    pin_prompt: bool = False
    session_id: str | None = None
    salt: str = ""
    """Prefixes are shared among requests with the same salt only (cache_salt)."""
    owner: Owner = NOBODY
    """Whose sessions and transcripts these are."""
    for_hour: bool = False
    """The whole prompt is pinned for an hour."""


class OutputIntent(msgspec.Struct, frozen=True):
    """What a reply may be, and where it ends. The text side makes an OutputPlan of it."""

    response_format: ResponseFormat = ResponseFormat()
    max_tokens: int | None = None
    """None = the server's own limit."""
    stop: tuple[str, ...] = ()
    length_steering: bool = True
    """A bound answer may be brought to its end within max_tokens."""
    min_indent: int = 0
    """As in OutputPlan."""


class ChatRequest(msgspec.Struct, frozen=True):
    """A conversation to continue, independent of the dialect that brought it."""

    messages: tuple[Message, ...]
    model: str = ""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    reasoning: ReasoningIntent = ReasoningIntent()
    reasoning_default_on: bool = True
    """False on routes where thinking is opt-in (/v1/messages)."""
    output: OutputIntent = OutputIntent()
    sampling: SamplingIntent = SamplingIntent()
    cache: CacheIntent = CacheIntent()
    options: GenerationOptions = GenerationOptions()
    prediction: str | None = None
    template_kwargs: Mapping[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    streamed: bool = False
    """Where the form of thinking depends on it."""


class PromptRequest(msgspec.Struct, frozen=True):
    """A raw prompt to continue: no template, no segments."""

    prompt: tuple[str | int, ...]
    """Text and token ids, mixed. Text may spell control tokens; the model's opening token comes before a first text."""
    suffix: str | None = None
    """Text after the gap that the model is to fill; only models with fill-in-the-middle tokens can."""
    task: Literal["generate", "embed"] = "generate"
    model: str = ""
    output: OutputIntent = OutputIntent()
    sampling: SamplingIntent = SamplingIntent()
    cache: CacheIntent = CacheIntent()
    options: GenerationOptions = GenerationOptions()


PART_SEPARATOR = "\n"
"""Between the text parts of a message for templates that take plain text."""


def message_text(message: Message) -> str:
    """Raises VisionUnavailable for a part that isn't text."""
    texts = []
    for part in message.parts:
        if isinstance(part, MediaPart):
            raise VisionUnavailable(
                f"this model reads text only; {part.path} is of the kind '{part.kind}'", param=part.path
            )
        texts.append(part.text)
    return PART_SEPARATOR.join(texts)


def check_media(chat: ChatRequest) -> None:
    """Raises VisionUnavailable for the first part that isn't text: no model reads any other yet."""
    for message in chat.messages:
        message_text(message)
