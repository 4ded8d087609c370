"""OutputEvents -> TGI's reply, whole or one event per token."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any

import msgspec

from imp_server.core import (
    Finish,
    ImpError,
    LogprobEntry,
    Logprobs,
    OutputEvent,
    PromptLogprobs,
    TextDelta,
    Usage,
)
from imp_server.dialects.base import ReplyContext, SseFrame
from imp_server.dialects.intents import present
from imp_server.dialects.openai.usage import token_text
from imp_server.dialects.tgi.errors import error_body

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode


def parameters_of(ctx: ReplyContext) -> Json:
    found: Json = ctx.body.get("parameters") or {}
    return found


DEFAULT_NEW_TOKENS = 100
"""TGI's own, which its clients count on."""


def new_tokens_of(parameters: Mapping[str, Any]) -> int:
    """The most tokens that the answer may have."""
    return int(present(parameters, "max_new_tokens", DEFAULT_NEW_TOKENS))


def wants_details(parameters: Mapping[str, Any]) -> bool:
    return bool(parameters.get("details") or parameters.get("decoder_input_details"))


class TokenTexts:
    """Owner of the bytes of tokens in a row that form no whole character yet."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, data: bytes) -> str:
        """What a token completes: the texts of all tokens are the text of all of them."""
        return self._decoder.decode(data)


class _Generation:
    """Owner of the text and the tokens so far."""

    def __init__(self, ctx: ReplyContext) -> None:
        self._parameters = parameters_of(ctx)
        self._prefix = ctx.body["inputs"] if self._parameters.get("return_full_text") else ""
        self.pieces: list[str] = []
        self.entries: list[LogprobEntry] = []
        self.prompt: PromptLogprobs | None = None
        self.finish = Finish(0, "cancelled", Usage())

    def take(self, event: OutputEvent) -> None:
        match event:
            case TextDelta():
                self.pieces.append(event.text)
            case Logprobs():
                self.entries += event.entries
            case PromptLogprobs():
                self.prompt = event
            case Finish():
                self.finish = event

    @property
    def text(self) -> str:
        return self._prefix + "".join(self.pieces)

    def details(self) -> Json:
        finish = self.finish
        if finish.stop_sequence is not None:
            reason = "stop_sequence"
        else:
            reason = "length" if finish.reason == "length" else "eos_token"
        return {
            "finish_reason": reason,
            "generated_tokens": finish.usage.completion_tokens,
            "seed": self._parameters.get("seed"),
        }

    def top(self, entry: LogprobEntry) -> list[Json] | None:
        """None if nobody asked."""
        if not self._parameters.get("top_n_tokens"):
            return None
        return [_token(token_id, token_text(data), logprob) for token_id, data, logprob in entry.top]

    def prefill(self) -> list[Json]:
        if self.prompt is None:
            return []
        texts = TokenTexts()
        found: list[Json] = [{"id": self.prompt.first_id, "text": texts.of(self.prompt.first_data), "logprob": None}]
        found += (
            {"id": entry.id, "text": texts.of(entry.data), "logprob": min(entry.logprob, 0.0)}
            for entry in self.prompt.entries
        )
        return found


def _token(token_id: int, text: str, logprob: float) -> Json:
    return {"id": token_id, "text": text, "logprob": min(logprob, 0.0), "special": False}


class GenerateFold:
    def __init__(self, ctx: ReplyContext) -> None:
        self._generation = _Generation(ctx)
        self._wanted = wants_details(parameters_of(ctx))

    def feed(self, event: OutputEvent) -> None:
        self._generation.take(event)

    def body(self) -> Any:
        generation = self._generation
        if not self._wanted:
            return {"generated_text": generation.text}
        entries, texts = generation.entries, TokenTexts()
        details = generation.details() | {
            "prefill": generation.prefill(),
            "tokens": [_token(entry.id, texts.of(entry.data), entry.logprob) for entry in entries],
        }
        tops = [top for entry in entries if (top := generation.top(entry)) is not None]
        return {"generated_text": generation.text, "details": details | ({"top_tokens": tops} if tops else {})}


class GenerateListFold(GenerateFold):
    """The same as the only one of a list: what clients of the root path expect."""

    def body(self) -> Any:
        return [super().body()]


class GenerateStream:
    """The last event carries the whole text: that of the token that max_new_tokens makes the last, or an empty one."""

    def __init__(self, ctx: ReplyContext) -> None:
        self._ctx = ctx
        self._generation = _Generation(ctx)
        self._n_most = new_tokens_of(parameters_of(ctx))
        self._n_sent = 0
        self._texts = TokenTexts()

    def open(self) -> list[SseFrame]:
        return []

    def feed(self, event: OutputEvent) -> list[SseFrame]:
        self._generation.take(event)
        ready = self._generation.entries[self._n_sent : self._n_most - 1]
        return [self._frame(entry, None, None) for entry in ready]

    def close(self) -> list[SseFrame]:
        generation = self._generation
        details = generation.details() | {"input_length": self._ctx.accepted.usage.prompt_tokens}
        left = generation.entries[self._n_sent :]
        frames = [self._frame(entry, None, None) for entry in left[:-1]]
        return [*frames, self._frame(left[-1] if left else None, generation.text, details)]

    def fail(self, error: ImpError) -> list[SseFrame]:
        return [SseFrame(_encode(error_body(error, self._ctx.request_id)))]

    def _frame(self, entry: LogprobEntry | None, text: str | None, details: Json | None) -> SseFrame:
        """`entry` None: the end of an answer that no token of its text marks."""
        self._n_sent += 1
        nothing = {"id": 0, "text": "", "logprob": 0.0, "special": True}
        token = _token(entry.id, self._texts.of(entry.data), entry.logprob) if entry else nothing
        event: Json = {"index": self._n_sent, "token": token, "generated_text": text, "details": details}
        if entry and (top := self._generation.top(entry)) is not None:
            event["top_tokens"] = top
        return SseFrame(_encode(event))
