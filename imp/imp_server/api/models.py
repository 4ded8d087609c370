"""The models this server hosts. Names are strict: a model answers to its own id only, and no name is a path."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

from imp_server.api.generations import REASONING_EXHAUSTED, Generations
from imp_server.api.pool import WorkerPool
from imp_server.api.text_side import TextSide
from imp_server.core import ImpError, ModelLoading, ModelNotFound, NoModel
from imp_server.core.owner import Owner
from imp_server.dialects.handler import ModelCard
from imp_server.engine.client.base import EngineClient, EngineState

_ROUTED = ("generate", "embed")
"""What an engine can do that there are routes for."""
THINK_END = "think_end_requests_total"
"""Counts the calls that ended a reply's thinking."""


@dataclass(slots=True)
class Hosted:
    """Owner of what the API process knows about one model: its engine, its text side, how far loading has come."""

    id: str
    client: EngineClient
    text: TextSide | None = None
    """None until the model is loaded."""
    pool: WorkerPool | None = None
    """Threads of a model whose text side may wait for processes of its own; None = everybody's do."""
    created: int = field(default_factory=lambda: int(time.time()))
    stage: str = ""
    stage_value: float = 0.0
    failure: ImpError | None = None
    replies: WeakSet[Generations] = field(default_factory=WeakSet)
    """Replies being made."""
    counters: Counter[str] = field(default_factory=lambda: Counter({REASONING_EXHAUSTED: 0, THINK_END: 0}))
    """What is counted in this process, by the name of its metric."""

    def keys_of(self, owner: Owner) -> set[int]:
        """What the engine calls the requests of this owner that run."""
        return {key for reply in self.replies if reply.owner == owner for key in reply.keys}

    @property
    def queue_depth(self) -> int:
        """Choices in flight, those that wait for a row included."""
        return sum(reply.n_choices for reply in self.replies)

    @property
    def state(self) -> EngineState:
        """As EngineClient.state; failed if loading ended with an error."""
        if self.failure is not None:
            return "failed"
        state = self.client.state
        return "loading" if state == "stopped" or (state == "ready" and self.text is None) else state

    @property
    def trouble(self) -> str:
        """What keeps this model from making prompts although it is loaded; empty if nothing does."""
        return self.text.trouble if self.text is not None else ""

    def take_text(self, text: TextSide) -> None:
        self.text = text
        self.pool = WorkerPool() if text.apart else None

    def ready_text(self) -> TextSide:
        """Raises ModelLoading, or the error that loading ended with."""
        if self.failure is not None:
            raise self.failure
        if self.text is None:
            raise ModelLoading("the model is still loading; try again in a moment", retry_after_s=1.0)
        return self.text

    def card(self) -> ModelCard:
        try:
            info = self.client.info
        except ImpError:
            return ModelCard(self.id, self.created, False, None)
        return ModelCard(
            id=self.id,
            created=self.created,
            loaded=self.state in ("ready", "draining"),
            context_length=info.context_length,
            trained_context=info.trained_context,
            vocab_size=info.vocab_size,
            width=info.width,
            n_parameters=info.n_parameters,
            file_bytes=info.file_bytes,
            family=info.family,
            quantisation=info.quantisation,
            path=info.path,
            n_rows=info.n_rows,
            tasks=tuple(task for task in info.tasks if task in _ROUTED),
        )


class Models:
    """Owner of the hosted models, by id."""

    def __init__(self, hosted: Sequence[Hosted] = (), *, any_name: bool = False) -> None:
        """`any_name`: a name that no model has means the first one."""
        self._hosted = {model.id: model for model in hosted}
        self._any_name = any_name

    def __iter__(self) -> Iterator[Hosted]:
        return iter(list(self._hosted.values()))

    def reply(self, name: str, owner: Owner) -> tuple[Hosted, Generations] | None:
        """The owner's reply being made that a client calls `name`: its own id or the client's; the newest of them."""
        own = [(hosted, reply) for hosted in self for reply in hosted.replies if reply.owner == owner]
        named = [(hosted, reply) for hosted, reply in own if name in reply.names and reply.n_choices]
        return max(named, key=lambda found: found[1].born_s, default=None)

    def find(self, name: str) -> Hosted:
        """The model with this id; "" is the only one. Raises NoModel when none is hosted, else ModelNotFound."""
        if not self._hosted:
            raise NoModel("no model is loaded; start the server with a model")
        if not name or (self._any_name and name not in self._hosted):
            return next(iter(self._hosted.values()))
        found = self._hosted.get(name)
        if found is None:
            known = ", ".join(repr(i) for i in self._hosted)
            raise ModelNotFound(f"model {name[:200]!r} not found; this server has {known}", param="model")
        return found
