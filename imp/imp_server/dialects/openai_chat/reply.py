"""Output events as a chat.completion, whole or in chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from imp_server import __version__
from imp_server.core import (
    CallArgs,
    CallEnd,
    CallStart,
    Finish,
    ImpError,
    Logprobs,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
)
from imp_server.dialects.base import ReplyContext, SseFrame
from imp_server.dialects.free_form import InputReader
from imp_server.dialects.llamacpp.errors import error_body_of
from imp_server.dialects.llamacpp.verbose import verbose
from imp_server.dialects.openai.usage import UsageSum, logprob_body, usage_body
from imp_server.dialects.progress import Underway

_FINGERPRINTS = {"imp": f"fp_imp_{__version__}", "llama-server": f"b-imp-{__version__}"}
"""By habit: llama-server's clients look for a build, which begins with b."""
DONE = SseFrame(b"[DONE]")


def fingerprint(context: ReplyContext) -> str:
    return _FINGERPRINTS[context.habits]


def finish_reason(event: Finish, *, named: bool) -> str:
    """A tool forced by name ends with `stop`, as OpenAI's own server does it."""
    if event.reason == "tool_calls":
        return "stop" if named else "tool_calls"
    return "length" if event.reason == "length" else "stop"


@dataclass(slots=True)
class _ChatCall:
    id: str
    name: str
    is_free_form: bool
    arguments: list[str] = field(default_factory=list)
    is_cut: bool = False

    def body(self) -> dict[str, Any]:
        arguments = "".join(self.arguments)
        if not self.is_free_form:
            function = {"name": self.name, "arguments": arguments}
            return {"id": self.id, "type": "function", "function": function}
        reader = InputReader()
        text = reader.feed(arguments) + ("" if self.is_cut else reader.rest())
        return {"id": self.id, "type": "custom", "custom": {"name": self.name, "input": text}}


@dataclass(slots=True)
class _ChatChoice:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_ChatCall] = field(default_factory=list)
    logprobs: list[msgspec.Raw] = field(default_factory=list)
    finish: Finish | None = None


def _settings(context: ReplyContext) -> tuple[bool, bool]:
    """(logprobs wanted, a tool forced by name)."""
    choice = context.body.get("tool_choice")
    named = isinstance(choice, dict) and choice.get("type") in {"function", "custom"}
    return bool(context.body.get("logprobs")), named


def _free_form(context: ReplyContext) -> frozenset[str]:
    """Names of the tools that take text."""
    tools = context.body.get("tools") or ()
    return frozenset(tool["custom"]["name"] for tool in tools if tool["type"] == "custom")


class ChatFold:
    """Owner of one chat.completion in the making."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._with_logprobs, self._named = _settings(context)
        self._free_form = _free_form(context)
        self._choices = [_ChatChoice() for _ in range(context.n)]
        self._usage = UsageSum(context.n)

    def feed(self, event: OutputEvent) -> None:
        choice = self._choices[event.choice]
        match event:
            case TextDelta():
                choice.text.append(event.text)
            case ReasoningDelta():
                choice.reasoning.append(event.text)
            case CallStart():
                choice.calls.append(_ChatCall(event.id, event.name, event.name in self._free_form))
            case CallArgs():
                choice.calls[event.index].arguments.append(event.text)
            case CallEnd():
                choice.calls[event.index].is_cut = event.is_cut
            case Logprobs(kind="text"):
                choice.logprobs += map(logprob_body, event.entries)
            case Finish():
                choice.finish = event
                self._usage.add(event)

    def body(self) -> dict[str, Any]:
        return {
            "id": self._context.id,
            "object": "chat.completion",
            "created": self._context.created,
            "model": self._context.model,
            "system_fingerprint": fingerprint(self._context),
            "choices": [self._choice(i, choice) for i, choice in enumerate(self._choices)],
            "usage": usage_body(self._usage.total),
            "timings": self._usage.timings(),
            **verbose(self._context, "".join(self._choices[0].text), self._choices[0].finish),
        }

    def _choice(self, index: int, choice: _ChatChoice) -> dict[str, Any]:
        assert choice.finish is not None
        body = {
            "index": index,
            "message": _message(choice),
            "finish_reason": finish_reason(choice.finish, named=self._named),
            "logprobs": {"content": choice.logprobs, "refusal": None} if self._with_logprobs else None,
        }
        if choice.finish.detail:
            body["imp_finish_detail"] = choice.finish.detail
        return body


def _message(choice: _ChatChoice) -> dict[str, Any]:
    text = "".join(choice.text)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if choice.calls and not text else text,
        "refusal": None,
        "annotations": [],
    }
    reasoning = "".join(choice.reasoning)
    if reasoning:
        message["reasoning_content"] = message["reasoning"] = reasoning
    if choice.calls:
        message["tool_calls"] = [call.body() for call in choice.calls]
    return message


class ChatStream:
    """Owner of the chunks of one reply: role first, deltas, a finish per choice, usage if asked for, [DONE]."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._with_logprobs, self._named = _settings(context)
        self._with_usage = bool(context.body.get("stream_options", {}).get("include_usage"))
        self._usage = UsageSum(context.n)
        self._logprobs: list[list[msgspec.Raw]] = [[] for _ in range(context.n)]
        """Entries that wait for the text they belong to."""
        self._free_form = _free_form(context)
        self._underway = Underway(context)
        self._first_finish: Finish | None = None
        self._n_tokens = [0] * context.n
        """Of text and thinking, as far as their logprobs came."""
        self._readers: dict[tuple[int, int], InputReader] = {}
        """Of the free-form calls that are open, by choice and index."""

    def open(self) -> list[SseFrame]:
        content = None if self._context.habits == "llama-server" else ""
        first = {"role": "assistant", "content": content, "refusal": None}
        return [self._delta(i, dict(first)) for i in range(self._context.n)]

    def feed(self, event: OutputEvent) -> list[SseFrame]:
        told = [self._delta(event.choice, {}, underway=told) for told in self._underway.feed(event)]
        return [*told, *self._feed(event)]

    def _feed(self, event: OutputEvent) -> list[SseFrame]:
        match event:
            case TextDelta():
                return [self._delta(event.choice, {"content": event.text}, logprobs=self._take(event.choice))]
            case ReasoningDelta():
                return [self._delta(event.choice, {"reasoning_content": event.text, "reasoning": event.text})]
            case CallStart():
                return [self._call_start(event)]
            case CallArgs():
                if reader := self._readers.get((event.choice, event.index)):
                    return self._input(event.choice, event.index, reader.feed(event.text))
                more = {"index": event.index, "function": {"arguments": event.text}}
                return [self._delta(event.choice, {"tool_calls": [more]})]
            case CallEnd():
                reader = self._readers.pop((event.choice, event.index), None)
                rest = reader.rest() if reader and not event.is_cut else ""
                return self._input(event.choice, event.index, rest)
            case Logprobs():
                self._n_tokens[event.choice] += len(event.entries)
                if event.kind == "text" and self._with_logprobs:
                    self._logprobs[event.choice] += map(logprob_body, event.entries)
            case Finish():
                self._usage.add(event)
                self._first_finish = event if event.choice == 0 else self._first_finish
                return [self._delta(event.choice, {}, finish=event, logprobs=self._take(event.choice))]
        return []

    def close(self) -> list[SseFrame]:
        if not self._with_usage:
            return [DONE]
        return [self._chunk([], usage=usage_body(self._usage.total), is_last=True), DONE]

    def fail(self, error: ImpError) -> list[SseFrame]:
        return [SseFrame(msgspec.json.encode(error_body_of(self._context.habits, error, self._context.request_id)))]

    def _call_start(self, event: CallStart) -> SseFrame:
        call: dict[str, Any] = {"index": event.index, "id": event.id}
        if event.name in self._free_form:
            self._readers[event.choice, event.index] = InputReader()
            call |= {"type": "custom", "custom": {"name": event.name, "input": ""}}
        else:
            call |= {"type": "function", "function": {"name": event.name, "arguments": ""}}
        return self._delta(event.choice, {"tool_calls": [call]})

    def _input(self, choice: int, index: int, text: str) -> list[SseFrame]:
        more = {"index": index, "custom": {"input": text}}
        return [self._delta(choice, {"tool_calls": [more]})] if text else []

    def _take(self, choice: int) -> dict[str, Any] | None:
        entries = self._logprobs[choice]
        if not self._with_logprobs or not entries:
            return None
        self._logprobs[choice] = []
        return {"content": entries, "refusal": None}

    def _delta(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        finish: Finish | None = None,
        logprobs: dict[str, Any] | None = None,
        underway: dict[str, Any] | None = None,
    ) -> SseFrame:
        body: dict[str, Any] = {
            "index": choice,
            "delta": delta,
            "finish_reason": finish_reason(finish, named=self._named) if finish else None,
            "logprobs": logprobs,
        }
        if finish is not None and finish.detail:
            body["imp_finish_detail"] = finish.detail
        is_last = finish is not None and self._usage.is_complete and not self._with_usage
        more = underway or {}
        if delta and "role" not in delta:
            more = self._underway.timings(choice, self._n_tokens[choice])
        return self._chunk([body], is_last=is_last, **more)

    def _chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None, *, is_last: bool = False, **more: Any
    ) -> SseFrame:
        chunk: dict[str, Any] = {
            "id": self._context.id,
            "object": "chat.completion.chunk",
            "created": self._context.created,
            "model": self._context.model,
            "system_fingerprint": fingerprint(self._context),
            "choices": choices,
            **more,
        }
        if self._with_usage:
            chunk["usage"] = usage
        if is_last:
            chunk["timings"] = self._usage.timings()
            chunk |= verbose(self._context, "", self._first_finish)
        return SseFrame(msgspec.json.encode(chunk))
