"""One model that the server hosts, from its loading to its end: its engine, its text side, its state, its counters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakSet

from imp_server.api.generations import REASONING_EXHAUSTED, Generations
from imp_server.api.pool import WorkerPool
from imp_server.api.text_side import TextSide
from imp_server.config import Config
from imp_server.core import ImpError, InternalError, ModelLoading
from imp_server.core.owner import Owner
from imp_server.dialects.handler import ModelCard
from imp_server.engine.client.base import EngineClient, EngineState, EngineStats, OnLoading

_ROUTED = ("generate", "embed")
"""What an engine can do that there are routes for."""
_STATS_S = 2.0
"""How long metrics wait for the engine, which answers between two steps."""
LOADS = "model_loads_total"
"""Counts how often the model was loaded; an engine that restarts loads it, too, and isn't counted."""
THINK_END = "think_end_requests_total"
"""Counts the calls that ended a reply's thinking."""


@dataclass(slots=True, eq=False)
class ModelHost:
    """Owner of what the API process has of one model. `load`, `drain` and `stop` are called by the server."""

    id: str
    client: EngineClient
    load_text: Callable[[], TextSide]
    """Slow: runs in a thread while the engine loads."""
    config: Config = field(default_factory=Config)
    """This model's: client and text side were made from it."""
    on_progress: OnLoading | None = None
    """Told how far loading has come, beside `stage` and `stage_value`."""
    text: TextSide | None = None
    """None until the model is loaded."""
    pool: WorkerPool | None = None
    """Threads of a model whose text side may wait for processes of its own; None = everybody's do."""
    created: int = field(default_factory=lambda: int(time.time()))
    stage: str = ""
    stage_value: float = 0.0
    failure: ImpError | None = None
    """What loading ended with."""
    replies: WeakSet[Generations] = field(default_factory=WeakSet)
    """Replies being made."""
    counters: Counter[str] = field(default_factory=lambda: Counter({REASONING_EXHAUSTED: 0, THINK_END: 0, LOADS: 0}))
    """What is counted in this process, by the name of its metric."""
    _told: EngineStats = field(default_factory=lambda: EngineStats({}, ()))
    _asking: asyncio.Future[EngineStats] | None = None

    # --- its life -------------------------------------------------------------------------------

    async def load(self, pool: WorkerPool) -> None:
        """Engine and text side at the same time. A failure stays on record, until the next try, and is raised."""
        self.failure = None
        try:
            text, _ = await asyncio.gather(pool.run(self.load_text), self.client.start(self._progress))
            text.limit_context(self.client.info.context_length)
            self.text = text
            self.counters[LOADS] += 1
            if text.apart and self.pool is None:
                self.pool = WorkerPool()
        except ImpError as error:
            self.failure = error
            raise
        except Exception as error:
            self.failure = InternalError(f"the model can't be loaded: {error}")
            raise

    def _progress(self, stage: str, value: float) -> None:
        self.stage, self.stage_value = stage, value
        if self.on_progress is not None:
            self.on_progress(stage, value)

    async def drain(self, limit_s: float, hurried: asyncio.Event) -> None:
        """The engine finishes what runs, for at most `limit_s` and until `hurried`, and stops."""
        if self.client.state != "ready":  # it loads or restarts: nothing is finished there, and nothing begins again
            await self.client.stop()
            return
        drain = asyncio.create_task(self.client.drain(limit_s))
        hurry = asyncio.create_task(hurried.wait())
        try:
            await asyncio.wait((drain, hurry), return_when=asyncio.FIRST_COMPLETED)
            if not drain.done():
                await self.client.stop()
            await drain
        finally:
            drain.cancel()
            hurry.cancel()

    async def stop(self) -> None:
        """At once; idempotent. It may be loaded again."""
        await self.client.stop()
        if self.pool is not None:
            self.pool.close()
            self.pool = None

    # --- its state ------------------------------------------------------------------------------

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

    @property
    def queue_depth(self) -> int:
        """Choices in flight, those that wait for a row included."""
        return sum(reply.n_choices for reply in self.replies)

    def ready_text(self) -> TextSide:
        """Raises ModelLoading, or the error that loading ended with."""
        if self.failure is not None:
            raise self.failure
        if self.text is None:
            raise ModelLoading("the model is still loading; try again in a moment", retry_after_s=1.0)
        return self.text

    def own_pool(self, *, renders: bool) -> WorkerPool | None:
        """For work of the text side that may wait for processes of this model; `renders`: with its template, too.

        None: it doesn't wait.
        """
        apart = self.ready_text().apart
        return self.pool if "tokenizer" in apart or (renders and "template" in apart) else None

    async def stats(self, owner: Owner) -> EngineStats:
        """Of rows that aren't the owner's only that they are busy. Nothing while the model loads."""
        if self.text is None:
            return EngineStats({}, ())
        told, rows = await self._ask_engine()
        own = {key for reply in self.replies if reply.owner == owner for key in reply.keys}
        shown = tuple(row if row.get("key") in own else {"slot": row.get("slot")} for row in rows)
        ended = {f'worker_killed_total{{job="{name}"}}': n for name, n in self.text.killed.items()}
        return EngineStats({**self.counters, **ended, **told}, shown)

    async def _ask_engine(self) -> EngineStats:
        """One question at a time; what the engine told last where it takes long, in a step or for good."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self.client.stats())
        done, _ = await asyncio.wait((self._asking,), timeout=_STATS_S)
        if done:
            self._told = self._asking.result()
        return self._told

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
