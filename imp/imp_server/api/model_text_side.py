"""The text side of a real model: TextModel's blocking methods, and its sessions fed with an engine's deltas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from imp_server.config import Config
from imp_server.core import (
    Accepted,
    ChatRequest,
    GenerateRequest,
    LogprobEntry,
    OutputEvent,
    Progress,
    PromptLogprobs,
    PromptRequest,
    Timings,
    TokenLogprob,
    Vectors,
    unpack_ids,
)
from imp_server.engine.messages import RowDelta, RowFinish
from imp_server.grammar.proving import PROVES_HERE, Prover
from imp_server.grammar.whole_schema import Unjudged
from imp_server.text.model import Finish, Prepared, TextModel
from imp_server.text.model_workers import NONE_KILLED
from imp_server.text.template_traits import template_caps
from imp_server.vocab.table import Vocabulary
from imp_server.workers.client import Workers


class DeltaSession:
    """Turns deltas into events. Owner of the walk of its OutputSession and of the ids that came, by choice."""

    def __init__(self, request: GenerateRequest, prepared: Prepared, vocabulary: Vocabulary) -> None:
        self._request = request
        self._session = prepared.session
        self._remember = prepared.remember
        self._ids: dict[int, bytearray] = {}
        self._prompt_text = prepared.prompt_text
        self._prompt_tokens = len(request.ids) // 4
        self._vocabulary = vocabulary
        self._owes_prompt = request.prompt_logprobs is not None

    def feed(self, delta: RowDelta) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        if self._owes_prompt and (delta.prompt_logprobs or delta.ids or delta.finish):
            self._owes_prompt = False
            events.append(prompt_event(self._request.ids, self._prompt_text, delta.prompt_logprobs, self._vocabulary))
        if delta.vectors:
            events.append(Vectors(delta.choice, delta.vectors))
        if delta.n_cached >= 0:
            events.append(Accepted(delta.choice, self._prompt_tokens, delta.n_cached, delta.n_to_cache))
        if 0 <= delta.n_prefilled < self._prompt_tokens and not delta.ids:
            events.append(Progress(delta.choice, delta.n_prefilled, self._prompt_tokens))
        if delta.ids and self._remember is not None:
            self._ids.setdefault(delta.choice, bytearray()).extend(delta.ids)
        if delta.ids:
            events += self._session.push(delta.choice, delta.ids, delta.logprobs)
        if delta.finish is not None:
            events += self._finish(delta.choice, delta.finish)
        return events

    def unjudged(self, choice: int) -> Unjudged | None:
        return self._session.unjudged(choice)

    def _finish(self, choice: int, finish: RowFinish) -> list[OutputEvent]:
        if self._remember is not None and choice in self._ids:
            self._remember(unpack_ids(bytes(self._ids.pop(choice))), finish.stop_string)
        return self._session.finish(
            choice,
            finish.reason,
            finish.usage,
            finish.stop_string,
            finish.detail,
            Timings(finish.queue_ms, finish.prefill_ms, finish.decode_ms, finish.ttft_ms),
        )


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A request with the text it was made from, and the reader of its answer."""

    request: GenerateRequest
    prepared: Prepared
    vocabulary: Vocabulary

    @property
    def text(self) -> str:
        return self.prepared.prompt_text

    @property
    def ignored(self) -> tuple[str, ...]:
        return self.prepared.ignored

    def session(self) -> DeltaSession:
        return DeltaSession(self.request, self.prepared, self.vocabulary)


def prompt_event(packed: bytes, text: str, logprobs: Sequence[TokenLogprob], vocabulary: Vocabulary) -> PromptLogprobs:
    """`logprobs`: one per prompt token from the second on."""
    ids = unpack_ids(packed)
    pieces = [vocabulary.plain_bytes(i) for i in ids]
    if len(ids) > 1 and b"".join(pieces[1:]) == text.encode():
        pieces[0] = b""  # an opening token that the text doesn't show
    entries = tuple(
        LogprobEntry(
            entry.id,
            pieces[position],
            entry.logprob,
            tuple((i, vocabulary.plain_bytes(i), value) for i, value in entry.top),
            entry.rank,
        )
        for position, entry in enumerate(logprobs, start=1)
    )
    return PromptLogprobs(0, ids[0], pieces[0], entries)


class ModelTextSide:
    """Immutable but for the context length, which the engine knows best; methods may run in several threads."""

    def __init__(self, model: TextModel) -> None:
        self.model = model

    @classmethod
    def load(cls, path: str | Path, config: Config, workers: Workers | None = None) -> ModelTextSide:
        """`workers`: as in TextModel.load. Raises ModelFileMissing, InvalidModel, UnsupportedModel, ConfigError."""
        side = cls(TextModel.load(path, config, workers))
        _ = side.model.prompts.default  # what its template can do is found out before anybody waits for it
        return side

    @property
    def apart(self) -> frozenset[str]:
        return frozenset() if self.model.workers is None else self.model.workers.apart

    @property
    def trouble(self) -> str:
        return "" if self.model.workers is None else self.model.workers.trouble

    @property
    def killed(self) -> Mapping[str, int]:
        return NONE_KILLED if self.model.workers is None else self.model.workers.killed

    @property
    def vocabulary(self) -> Vocabulary:
        return self.model.vocabulary

    @property
    def chat_template(self) -> str:
        return self.model.chat_template

    @property
    def sampling_defaults(self) -> Mapping[str, float]:
        return self.model.sampling_defaults

    @cached_property
    def template_facts(self) -> Mapping[str, Any]:
        return {**self.model.edge_tokens, "chat_template_caps": template_caps(self.model.prompts.default.traits)}

    def limit_context(self, context_length: int) -> None:
        self.model.context_length = context_length

    def begin_chat(self, request: ChatRequest) -> Callable[[Prover], PreparedPrompt]:
        return partial(self._finished, self.model.begin_chat(request, 0))

    def begin_prompt(self, request: PromptRequest) -> Callable[[Prover], PreparedPrompt]:
        return partial(self._finished, self.model.begin_prompt(request, 0))

    def prepare_chat(self, request: ChatRequest) -> PreparedPrompt:
        """At once, all of it on the calling thread."""
        return self.begin_chat(request)(PROVES_HERE)

    def prepare_prompt(self, request: PromptRequest) -> PreparedPrompt:
        return self.begin_prompt(request)(PROVES_HERE)

    def _finished(self, finish: Finish, prover: Prover) -> PreparedPrompt:
        prepared = finish(prover)
        return PreparedPrompt(prepared.request, prepared, self.vocabulary)

    def count(self, request: ChatRequest) -> int:
        return self.model.count(request)

    def render(self, request: ChatRequest) -> str:
        return self.model.apply_template(request)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return self.model.tokenize(text, add_special=add_special, control=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self.model.detokenize(ids)
