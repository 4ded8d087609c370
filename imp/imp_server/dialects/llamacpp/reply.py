"""OutputEvents -> the native completion objects, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any

import msgspec

from imp_server.core import (
    Accepted,
    Finish,
    ImpError,
    LogprobEntry,
    Logprobs,
    OutputEvent,
    Progress,
    SamplingParams,
    TextDelta,
    Usage,
)
from imp_server.dialects.base import ReplyContext, SseFrame
from imp_server.dialects.llamacpp.errors import error_body_of
from imp_server.dialects.llamacpp.fields import choices_of
from imp_server.dialects.llamacpp.request import n_probs_of
from imp_server.dialects.llamacpp.settings import settings_body
from imp_server.dialects.openai.usage import token_text
from imp_server.dialects.progress import Underway
from imp_server.dialects.timings import timings_body

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode


def _probability(entry: LogprobEntry, *, as_drawn: bool) -> Json:
    """`as_drawn`: the entry's values are those after sampling, which llama.cpp shows as probabilities."""
    top = [_token(token, data, logprob, as_drawn) for token, data, logprob in entry.top]
    name = "top_probs" if as_drawn else "top_logprobs"
    return _token(entry.id, entry.data, entry.logprob, as_drawn) | {name: top}


def _token(token_id: int, data: bytes, logprob: float, as_drawn: bool) -> Json:
    value = min(logprob, 0.0)
    shown = {"prob": exp(value)} if as_drawn else {"logprob": value}
    return {"id": token_id, "token": token_text(data), "bytes": list(data), **shown}


@dataclass(slots=True)
class Completion:
    """What one prompt has become so far."""

    index: int
    prompt: str
    sampling: SamplingParams
    prompt_tokens: int = 0
    cached_tokens: int = 0
    pieces: list[str] = field(default_factory=list)
    entries: list[LogprobEntry] = field(default_factory=list)
    n_sent: int = 0
    """Of `entries`, by a stream."""
    finish: Finish | None = None

    def take(self, event: OutputEvent) -> None:
        match event:
            case Accepted():
                self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
            case TextDelta():
                self.pieces.append(event.text)
            case Logprobs():
                self.entries += event.entries
            case Finish():
                self.finish = event

    def fresh(self) -> list[LogprobEntry]:
        entries, self.n_sent = self.entries[self.n_sent :], len(self.entries)
        return entries


class _Completions:
    """Owner of the completions of one reply: those of a prompt side by side."""

    def __init__(self, ctx: ReplyContext) -> None:
        self._ctx = ctx
        self._body = ctx.body
        self._n_probs = n_probs_of(ctx.body)
        prompts = ctx.extra["prompts"]
        if ctx.habits == "llama-server" and ctx.accepted.prompt_texts:
            prompts = ctx.accepted.prompt_texts
        samplings = ctx.accepted.sampling or [SamplingParams()] * len(prompts)
        each = zip(prompts, samplings, strict=True)
        wanted = [one for one in each for _ in range(choices_of(ctx.body))]
        self.all = [Completion(i, prompt, sampling) for i, (prompt, sampling) in enumerate(wanted)]

    def _listed(self, entries: Sequence[LogprobEntry], *, streamed: bool) -> Json:
        """The fields that tell of tokens: streams list all ids, whole replies where they were asked for."""
        shown = streamed or self._body.get("return_tokens")
        fields: Json = {"tokens": [entry.id for entry in entries] if shown else []}
        if self._n_probs:
            as_drawn = bool(self._body.get("post_sampling_probs"))
            fields["completion_probabilities"] = [_probability(entry, as_drawn=as_drawn) for entry in entries]
        return fields

    def pieces(self, one: Completion, text: str) -> list[Json]:
        """One per token, as llama.cpp's clients read probabilities, where each token writes whole characters."""
        fresh = one.fresh()
        if not self._n_probs or len(fresh) < 2 or b"".join(entry.data for entry in fresh) != text.encode():
            return [self.piece(one, text, fresh)]
        try:
            return [self.piece(one, entry.data.decode(), [entry]) for entry in fresh]
        except UnicodeDecodeError:
            return [self.piece(one, text, fresh)]

    def piece(self, one: Completion, content: str, fresh: Sequence[LogprobEntry] = ()) -> Json:
        n_evaluated = one.prompt_tokens or (self._ctx.accepted.usage.prompt_tokens if len(self.all) == 1 else 0)
        return {
            "index": one.index,
            "content": content,
            "stop": False,
            "id_slot": self._body.get("id_slot", -1),
            "tokens_predicted": len(one.entries),
            "tokens_evaluated": n_evaluated,
            **self._listed(fresh, streamed=True),
        }

    def final(self, one: Completion, *, streamed: bool) -> Json:
        finish = one.finish or Finish(one.index, "cancelled", Usage())
        usage, text = finish.usage, "".join(one.pieces)
        whole = {
            "index": one.index,
            "content": "" if streamed else text,
            "id_slot": self._body.get("id_slot", -1),
            "stop": True,
            "model": self._ctx.model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens or one.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
            "generation_settings": settings_body(one.sampling, self._body, most=self._ctx.extra.get("most_tokens", 0)),
            "prompt": one.prompt,
            "has_new_line": "\n" in text,
            "truncated": self._is_truncated(one, finish),
            "stop_type": _stop_type(finish),
            "stopping_word": finish.stop_sequence or "",
            "timings": timings_body(usage, finish.timings),
            **self._listed(one.fresh() if streamed else one.entries, streamed=streamed),
        }
        return chosen(whole, self._body["response_fields"]) if self._body.get("response_fields") else whole

    def _is_truncated(self, one: Completion, finish: Finish) -> bool:
        """The context was full: that ended it, or it was shifted."""
        if finish.usage.shifted_tokens:
            return True
        limit = self._ctx.extra.get("context_length")
        if limit is None or finish.reason != "length":
            return False
        return one.prompt_tokens + finish.usage.completion_tokens >= int(limit)


def _stop_type(finish: Finish) -> str:
    if finish.stop_sequence is not None:
        return "word"
    return {"length": "limit", "cancelled": "none"}.get(finish.reason, "eos")


def chosen(whole: Mapping[str, Any], names: Sequence[str]) -> Json:
    """The named fields, each under its whole path: `a/b` is b of a. Unknown names are left out."""
    found: Json = {}
    for name in names:
        value: Any = whole
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            found[name] = value
    return found


class LlamaCompletionFold:
    def __init__(self, ctx: ReplyContext) -> None:
        self._completions = _Completions(ctx)

    def feed(self, event: OutputEvent) -> None:
        if not isinstance(event, Progress):
            self._completions.all[event.choice].take(event)

    def body(self) -> Any:
        """One object, or an array for several prompts or completions."""
        bodies = [self._completions.final(one, streamed=False) for one in self._completions.all]
        return bodies if len(bodies) > 1 else bodies[0]


class LlamaCompletionStream:
    """Items without names and without a sentinel; the last item of each prompt says stop."""

    def __init__(self, ctx: ReplyContext) -> None:
        self._ctx = ctx
        self._completions = _Completions(ctx)
        self._underway = Underway(ctx)

    def open(self) -> list[SseFrame]:
        return []

    def feed(self, event: OutputEvent) -> list[SseFrame]:
        one = self._completions.all[event.choice]
        one.take(event)
        items = [self._completions.piece(one, "") | told for told in self._underway.feed(event)]
        match event:
            case TextDelta(text=text) if text:
                timings = self._underway.timings(one.index, len(one.entries))
                items += [piece | timings for piece in self._completions.pieces(one, text)]
            case Finish():
                items.append(self._completions.final(one, streamed=True))
        return _frames(items)

    def close(self) -> list[SseFrame]:
        """Completions that were cancelled have had no Finish."""
        open_ones = [one for one in self._completions.all if one.finish is None]
        return _frames([self._completions.final(one, streamed=True) for one in open_ones])

    def fail(self, error: ImpError) -> list[SseFrame]:
        return _frames([error_body_of(self._ctx.habits, error, self._ctx.request_id)])


def _frames(items: list[Json]) -> list[SseFrame]:
    return [SseFrame(_encode(item)) for item in items]
