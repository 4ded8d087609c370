"""Output events as a text_completion, whole or in chunks."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from imp_server.core import Finish, ImpError, LogprobEntry, Logprobs, OutputEvent, PromptLogprobs, TextDelta
from imp_server.dialects.base import ReplyContext, SseFrame
from imp_server.dialects.llamacpp.errors import error_body_of
from imp_server.dialects.llamacpp.fields import choices_of
from imp_server.dialects.openai.usage import UsageSum, token_text, usage_body
from imp_server.dialects.openai_chat.reply import DONE, fingerprint
from imp_server.dialects.progress import Underway


def logprobs_of(body: Mapping[str, Any]) -> int | None:
    """Alternatives per token that the reply shows; None: no logprobs at all."""
    value = body.get("logprobs")
    if value is None:
        return int(body.get("n_probs", 0)) or None
    if isinstance(value, bool):
        return 1 if value else None
    return int(value)


def legacy_text(data: bytes) -> str:
    """A token's text; one that isn't whole characters is told from text that looks like its escapes by `bytes:`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"bytes:{token_text(data)}"


class LegacyLogprobs:
    """Owner of the four parallel arrays of one choice. `take` hands over what has come since the last time."""

    def __init__(self) -> None:
        self._arrays = _empty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._n_characters = 0

    def add_first(self, data: bytes) -> None:
        """The first token of a prompt: nothing is known of its likelihood."""
        self._add(data, None, None)

    def add(self, entry: LogprobEntry) -> None:
        top = {legacy_text(entry.data): min(entry.logprob, 0.0)}
        for _, data, logprob in entry.top:
            top.setdefault(legacy_text(data), min(logprob, 0.0))
        self._add(entry.data, min(entry.logprob, 0.0), top)

    def take(self) -> dict[str, list[Any]]:
        arrays, self._arrays = self._arrays, _empty()
        return arrays

    def _add(self, data: bytes, logprob: float | None, top: dict[str, float] | None) -> None:
        self._arrays["tokens"].append(legacy_text(data))
        self._arrays["token_logprobs"].append(logprob)
        self._arrays["top_logprobs"].append(top)
        self._arrays["text_offset"].append(self._n_characters)
        self._n_characters += len(self._decoder.decode(data))


def _empty() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def prompt_logprobs_body(event: PromptLogprobs, k: int) -> list[dict[str, Any] | None]:
    """vLLM's shape: per prompt token a map from id to what is known, the token itself and the `k` best."""
    rows: list[dict[str, Any] | None] = [None]
    for entry in event.entries:
        known = {
            str(token_id): _known(logprob, rank, data)
            for rank, (token_id, data, logprob) in enumerate(entry.top[:k], start=1)
        }
        known.setdefault(str(entry.id), _known(entry.logprob, max(1, entry.rank), entry.data))
        rows.append(known)
    return rows


def _known(logprob: float, rank: int, data: bytes) -> dict[str, Any]:
    return {"logprob": min(logprob, 0.0), "rank": rank, "decoded_token": token_text(data)}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the request asked to see."""

    echo: bool
    logprobs: bool
    prompt_logprobs: int | None
    usage: bool
    per_prompt: int
    """Choices made of each prompt (best_of)."""
    shown: int
    """Choices shown of each prompt (n)."""

    @classmethod
    def by(cls, context: ReplyContext) -> _Wanted:
        body = context.body
        per_prompt = context.extra["per_prompt"]
        return cls(
            echo=bool(body.get("echo")),
            logprobs=logprobs_of(body) is not None,
            prompt_logprobs=body.get("prompt_logprobs"),
            usage=bool(body.get("stream_options", {}).get("include_usage")),
            per_prompt=per_prompt,
            shown=choices_of(body),
        )


@dataclass(slots=True)
class _CompletionChoice:
    text: list[str] = field(default_factory=list)
    entries: list[LogprobEntry] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def mean_logprob(self) -> float:
        return sum(e.logprob for e in self.entries) / len(self.entries) if self.entries else 0.0


class CompletionFold:
    """Owner of one text_completion in the making."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._wanted = _Wanted.by(context)
        self._choices = [_CompletionChoice() for _ in range(context.n)]
        self._prompts: dict[int, PromptLogprobs] = {}
        self._usage = UsageSum(context.n)

    def feed(self, event: OutputEvent) -> None:
        match event:
            case TextDelta():
                self._choices[event.choice].text.append(event.text)
            case Logprobs():
                self._choices[event.choice].entries += event.entries
            case PromptLogprobs():
                self._prompts[event.choice // self._wanted.per_prompt] = event
            case Finish():
                self._choices[event.choice].finish = event
                self._usage.add(event)

    def body(self) -> dict[str, Any]:
        return {
            "id": self._context.id,
            "object": "text_completion",
            "created": self._context.created,
            "model": self._context.model,
            "system_fingerprint": fingerprint(self._context),
            "choices": [self._choice(i, p, c) for i, (p, c) in enumerate(self._chosen())],
            "usage": usage_body(self._usage.total),
            "timings": self._usage.timings(),
        }

    def _chosen(self) -> list[tuple[int, _CompletionChoice]]:
        """(prompt, choice) of those that are shown: all, or the most likely by mean logprob."""
        wanted = self._wanted
        chosen: list[tuple[int, _CompletionChoice]] = []
        for prompt, start in enumerate(range(0, len(self._choices), wanted.per_prompt)):
            made = self._choices[start : start + wanted.per_prompt]
            if wanted.shown < wanted.per_prompt:
                made = sorted(made, key=lambda c: -c.mean_logprob)[: wanted.shown]
            chosen += [(prompt, choice) for choice in made]
        return chosen

    def _choice(self, index: int, prompt: int, choice: _CompletionChoice) -> dict[str, Any]:
        assert choice.finish is not None
        echo = self._context.accepted.prompt_texts[prompt] if self._wanted.echo else ""
        scored = self._prompts.get(prompt)
        body: dict[str, Any] = {
            "text": echo + "".join(choice.text),
            "index": index,
            "finish_reason": "length" if choice.finish.reason == "length" else "stop",
            "logprobs": self._logprobs(scored, choice) if self._wanted.logprobs else None,
        }
        if self._wanted.prompt_logprobs is not None and scored is not None:
            body["prompt_logprobs"] = prompt_logprobs_body(scored, int(self._wanted.prompt_logprobs))
        if choice.finish.detail:
            body["imp_finish_detail"] = choice.finish.detail
        return body

    def _logprobs(self, scored: PromptLogprobs | None, choice: _CompletionChoice) -> dict[str, list[Any]]:
        arrays = LegacyLogprobs()
        if self._wanted.echo and scored is not None:
            _add_prompt(arrays, scored)
        for entry in choice.entries:
            arrays.add(entry)
        return arrays.take()


def _add_prompt(arrays: LegacyLogprobs, scored: PromptLogprobs) -> None:
    arrays.add_first(scored.first_data)
    for entry in scored.entries:
        arrays.add(entry)


class CompletionStream:
    """Owner of the chunks of one reply: the prompt if it is echoed, deltas, a finish per choice, usage, [DONE]."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._wanted = _Wanted.by(context)
        self._arrays = [LegacyLogprobs() for _ in range(context.n)]
        self._owed = [False] * context.n
        """Entries wait for the text they belong to."""
        self._underway = Underway(context)
        self._n_tokens = [0] * context.n
        """As far as their logprobs came."""
        self._usage = UsageSum(context.n)

    def open(self) -> list[SseFrame]:
        """The echo comes at once, unless its logprobs must come with it."""
        if not self._wanted.echo:
            return [self._part(choice, "") for choice in range(self._context.n)]
        if self._wanted.logprobs:
            return []
        return [self._part(choice, self._prompt_text(choice)) for choice in range(self._context.n)]

    def feed(self, event: OutputEvent) -> list[SseFrame]:
        told = [self._part(event.choice, "", **told) for told in self._underway.feed(event)]
        return [*told, *self._feed(event)]

    def _feed(self, event: OutputEvent) -> list[SseFrame]:
        match event:
            case PromptLogprobs():
                return self._echo_scored(event)
            case Logprobs():
                self._n_tokens[event.choice] += len(event.entries)
                if self._wanted.logprobs:
                    for entry in event.entries:
                        self._arrays[event.choice].add(entry)
                    self._owed[event.choice] = True
            case TextDelta():
                timings = self._underway.timings(event.choice, self._n_tokens[event.choice])
                return [self._part(event.choice, event.text, **timings)]
            case Finish():
                self._usage.add(event)
                return [self._part(event.choice, "", event)]
        return []

    def close(self) -> list[SseFrame]:
        if not self._wanted.usage:
            return [DONE]
        return [self._chunk([], usage_body(self._usage.total), is_last=True), DONE]

    def fail(self, error: ImpError) -> list[SseFrame]:
        return [SseFrame(msgspec.json.encode(error_body_of(self._context.habits, error, self._context.request_id)))]

    def _prompt_text(self, choice: int) -> str:
        return self._context.accepted.prompt_texts[choice // self._wanted.per_prompt]

    def _echo_scored(self, event: PromptLogprobs) -> list[SseFrame]:
        if not self._wanted.echo:
            return []
        frames = []
        for choice in range(event.choice, event.choice + self._wanted.per_prompt):
            _add_prompt(self._arrays[choice], event)
            self._owed[choice] = True
            frames.append(self._part(choice, self._prompt_text(choice)))
        return frames

    def _part(self, choice: int, text: str, finish: Finish | None = None, **more: Any) -> SseFrame:
        """`more`: fields of the chunk beside its choices. Entries wait for text or the finish."""
        logprobs = None
        if self._wanted.logprobs and self._owed[choice] and "prompt_progress" not in more:
            self._owed[choice] = False
            logprobs = self._arrays[choice].take()
        part: dict[str, Any] = {"text": text, "index": choice, "finish_reason": None, "logprobs": logprobs}
        if finish is not None:
            part["finish_reason"] = "length" if finish.reason == "length" else "stop"
            if finish.detail:
                part["imp_finish_detail"] = finish.detail
        is_last = finish is not None and self._usage.is_complete and not self._wanted.usage
        return self._chunk([part], is_last=is_last, **more)

    def _chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None, *, is_last: bool = False, **more: Any
    ) -> SseFrame:
        chunk: dict[str, Any] = {
            "id": self._context.id,
            "object": "text_completion",
            "created": self._context.created,
            "model": self._context.model,
            "system_fingerprint": fingerprint(self._context),
            "choices": choices,
            **more,
        }
        if self._wanted.usage:
            chunk["usage"] = usage
        if is_last:
            chunk["timings"] = self._usage.timings()
        return SseFrame(msgspec.json.encode(chunk))
