"""The text side of a real model: TextModel's blocking methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from imp_server.config import Config
from imp_server.core import ChatRequest, PromptRequest
from imp_server.grammar.proving import PROVES_HERE
from imp_server.text.model import Finish, TextModel
from imp_server.text.model_workers import NONE_KILLED
from imp_server.text.session import Prepared
from imp_server.text.template_traits import template_caps
from imp_server.vocab.table import Vocabulary
from imp_server.workers.client import Workers


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

    def close(self) -> None:
        if self.model.workers is not None:
            self.model.workers.close()

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

    def begin_chat(self, request: ChatRequest) -> Finish:
        return self.model.begin_chat(request, 0)

    def begin_prompt(self, request: PromptRequest) -> Finish:
        return self.model.begin_prompt(request, 0)

    def prepare_chat(self, request: ChatRequest) -> Prepared:
        """At once, all of it on the calling thread."""
        return self.begin_chat(request)(PROVES_HERE)

    def prepare_prompt(self, request: PromptRequest) -> Prepared:
        return self.begin_prompt(request)(PROVES_HERE)

    def count(self, request: ChatRequest) -> int:
        return self.model.count(request)

    def render(self, request: ChatRequest) -> str:
        return self.model.apply_template(request)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return self.model.tokenize(text, add_special=add_special, control=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self.model.detokenize(ids)
