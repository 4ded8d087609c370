"""A model's own programs in processes apart, as this process sees them: the same as those that run here.

A template or a tokenizer that comes with a model file may take for ever, or all memory, on some conversation. Each
question has a limit; where it ends the worker, the request gets a 400 and the worker a successor.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from imp_server.core import ContextLengthExceeded, InvalidModel, InvalidRequest, TemplateRefused, TemplateTooCostly
from imp_server.text.worker_jobs import Opened, Rendered
from imp_server.vocab.encoder import Ids
from imp_server.workers.client import Workers
from imp_server.workers.lasting import LastingWorkers, WorkerEnded, WorkerFault
from imp_server.workers.wire import JobLimits

T = TypeVar("T")
_JOBS = "imp_server.text.worker_jobs"
WARM_UP = f"{_JOBS}:warm_up"
TEMPLATE_LIMITS = JobLimits(cpu_s=5.0, memory_bytes=512 << 20)
TOKENIZER_LIMITS = JobLimits(cpu_s=10.0, memory_bytes=1 << 30)
BYTES_PER_TOKEN = 8
"""Of the context: what a template may write."""
LEAST_BYTES = 1 << 16
"""That it may write in any case: a small context takes less, and says so itself."""
_ROOM = 1 << 20
"""Bytes of an answer besides."""


NONE_KILLED = {"template": 0, "tokenizer": 0}


class ModelWorkers:
    """Owner of the worker processes of one model, as far as it needs any."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._own: dict[str, LastingWorkers] = {}

    @property
    def apart(self) -> frozenset[str]:
        """What doesn't run here: template, tokenizer."""
        return frozenset(name.removeprefix("chat ") for name in self._own)

    @property
    def trouble(self) -> str:
        """What keeps being ended by its limits, in words; empty if nothing does."""
        failing = [name for name, own in self._own.items() if own.is_failing]
        return (
            f"the model's {' and '.join(failing)} took too long or too much memory, again and again" if failing else ""
        )

    @property
    def killed(self) -> dict[str, int]:
        """How often a limit ended one, by what it was."""
        return NONE_KILLED | {name.removeprefix("chat "): own.n_killed for name, own in self._own.items()}

    def templates(
        self, sources: Mapping[str, str], variables: Mapping[str, Any], context_length: Callable[[], int]
    ) -> dict[str, RemoteTemplate]:
        """Raises InvalidModel."""
        own = self._opened(
            "chat template", "open_templates", pickle.dumps((dict(sources), dict(variables))), TEMPLATE_LIMITS
        )
        return {name: RemoteTemplate(own, name, source, context_length) for name, source in sources.items()}

    def encoder(self, tokenizer_json: str) -> RemoteEncoder:
        """Raises ValueError in the library's words."""
        opening = tokenizer_json.encode("utf-8", "surrogatepass")
        try:
            own = self._opened("tokenizer", "open_tokenizer", opening, TOKENIZER_LIMITS)
        except InvalidModel as error:
            raise ValueError(error.message) from None
        return RemoteEncoder(own)

    def close(self) -> None:
        for own in self._own.values():
            own.close()

    def _opened(self, name: str, job: str, opening: bytes, limits: JobLimits) -> LastingWorkers:
        own = LastingWorkers(self._workers, f"{_JOBS}:{job}", opening, limits)
        try:
            own.open()
        except WorkerFault as error:
            raise InvalidModel(str(error)) from None
        except WorkerEnded as error:
            raise InvalidModel(f"the model's {name} takes too much time or memory ({error.how})") from None
        self._own[name] = own
        return own


class RemoteTemplate:
    """A chat template that runs in a worker (text/template.py is one that runs here)."""

    def __init__(self, own: LastingWorkers, name: str, source: str, context_length: Callable[[], int]) -> None:
        self.source = source
        self._own = own
        self._name = name
        self._context_length = context_length

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Raises TemplateRefused; TemplateTooCostly where a limit ended it; ContextLengthExceeded."""
        most = max(LEAST_BYTES, BYTES_PER_TOKEN * self._context_length())
        options = {
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
            "extra": dict(extra or {}),
        }
        question = pickle.dumps((self._name, list(messages), options, most))
        if len(question) > most + _ROOM:
            raise ContextLengthExceeded(
                f"this conversation has more than {most} bytes, {BYTES_PER_TOKEN} for each token of the context: "
                "shorten it",
                param="messages",
            )
        try:
            answer = self._own.call(question, most + _ROOM)
        except (WorkerEnded, WorkerFault):
            raise TemplateTooCostly(
                f"the model's chat template '{self._name}' took too much time or memory on this conversation and was "
                "ended; another one can be chosen with --chat-template",
                param="messages",
            ) from None
        rendered = msgspec.msgpack.decode(answer, type=Rendered)
        text = rendered.text.decode("utf-8", "surrogatepass")
        if rendered.outcome == "too_costly":
            raise TemplateTooCostly(text, param="messages")
        if rendered.outcome == "refused":
            raise TemplateRefused(text, param="messages")
        return text


class RemoteEncoder:
    """An Encoder (vocab/encoder.py) in a worker."""

    def __init__(self, own: LastingWorkers) -> None:
        self._own = own
        opened = self._asked(Opened, 1 << 30, "open")
        self.unknown_id = opened.unknown_id
        self._vocabulary = opened.vocabulary

    def vocabulary(self) -> dict[str, int]:
        return self._vocabulary

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        if not texts:
            return []
        found = self._asked(list[bytes], _answer_bytes(*texts), "encode", list(texts))
        return [np.frombuffer(ids, dtype=np.int32) for ids in found]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return self._asked(list[tuple[int, int]], 4 * _answer_bytes(text), "offsets", text)

    def n_ids_before(self, text: str, position: int) -> int:
        return self._asked(int, _ROOM, "n_ids_before", text, position)

    def _asked(self, kind: type[T], most_bytes: int, *question: Any) -> T:
        try:
            return msgspec.msgpack.decode(self._own.call(pickle.dumps(question), most_bytes), type=kind)
        except WorkerEnded:
            raise InvalidRequest(
                "the model's tokenizer took too much time or memory on this text and was ended; shorten or change it"
            ) from None
        except WorkerFault as error:
            raise InvalidRequest(f"the model's tokenizer can't cut this text: {error}") from None


def _answer_bytes(*texts: str) -> int:
    """Four ids a character: as many as its bytes."""
    return _ROOM + 16 * sum(map(len, texts))
