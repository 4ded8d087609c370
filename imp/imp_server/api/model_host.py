"""One model that the server hosts, from its loading to its end: its engine, its text side, its state, its counters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakSet

from imp_server.api.adapter_scales import AdapterScales
from imp_server.api.generations import REASONING_EXHAUSTED, Generations
from imp_server.api.pool import WorkerPool
from imp_server.api.text_side import TextSide
from imp_server.config import Config
from imp_server.core import ImpError, InternalError, ModelLoading
from imp_server.core.owner import Owner
from imp_server.dialects.handler import ModelCard, ModelStatus
from imp_server.engine.client.base import EngineClient, EngineState, EngineStats, OnLoading
from imp_server.engine.messages import ModelInfo

_STATUS = {
    "unloaded": "unloaded",
    "failed": "unloaded",
    "stopped": "unloaded",
    "loading": "loading",
    "sleeping": "sleeping",
    "suspended": "sleeping",
}
"""State -> llama.cpp's word; of the others it is loaded."""
_ROUTED = ("generate", "embed")
"""What an engine can do that there are routes for."""
_STATS_S = 2.0
"""How long metrics wait for the engine, which answers between two steps."""
LOADS = "model_loads_total"
"""Counts how often the model was loaded; an engine that restarts loads it, too, and isn't counted."""
THINK_END = "think_end_requests_total"
"""Counts the calls that ended a reply's thinking."""
_SAVING_S = 10.0
"""Seconds that an engine gets to end in good order: it may have a prefix cache to save."""
_OWN_TOTAL = "engine_crashes_total"
"""Counted on this side of an engine: it doesn't begin anew with the process."""
Rest = Literal["", "unloaded", "sleeping", "suspended"]
"""Why a model isn't in memory on purpose: nobody has asked for it, it was idle, or an operator put it to sleep. ""
while it is, or is being loaded."""
HostState = EngineState | Rest
Source = Literal["", "preset", "folder", "catalogue"]
"""Where a model of several comes from: a section of the preset file, a file of the folder, what imp has fetched."""


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
    adapters: AdapterScales = field(init=False)
    _told: EngineStats = field(default_factory=lambda: EngineStats({}, ()))
    _asking: asyncio.Future[EngineStats] | None = None

    aliases: tuple[str, ...] = ()
    """Further names; `*` and `?` in one stand for any text and any character."""
    tags: tuple[str, ...] = ()
    source: Source = ""
    on_demand: bool = False
    """One of several: loaded when somebody asks for it, gone when another needs its place."""
    loads_at_start: bool = False
    is_hidden: bool = False
    """It is served, and not listed."""
    prove: Callable[[], object] | None = None
    """Blocking: raises what is wrong with its files, as far as that is known without loading them."""
    broken: str = ""
    """What is wrong with its configuration; it is never loaded then."""
    file_bytes: int = 0
    """What its files take, as far as that is known before it is loaded."""
    rest: Rest = ""
    """Set by whoever owns which models are in memory."""
    is_queued: bool = False
    """It waits for its turn to be loaded, or is being loaded behind a rest."""
    info: ModelInfo | None = None
    """Of its last load."""
    n_leases: int = 0
    """Requests that need it now."""
    used_s: float = field(default_factory=time.monotonic)
    """When it was last used, or loaded."""
    failed_s: float = 0.0
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is loaded or put to rest."""
    on_change: Callable[[ModelHost], None] | None = None
    """Told whenever its state has changed, and how far loading has come."""
    on_used: Callable[[], None] | None = None
    """Told when a request has left it."""
    _carried: dict[str, float] = field(default_factory=dict)
    """What engines of it counted that have ended."""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    read_s: float = field(default_factory=time.monotonic)
    """When its text side was used last."""
    _readers: Counter[TextSide] = field(default_factory=Counter)
    """Requests that use a text side, by text side."""
    _unread: dict[TextSide, asyncio.Event] = field(default_factory=dict)
    """Set once nobody uses one any more that is to be closed."""
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.adapters = AdapterScales(self.config.adapters)

    # --- its life -------------------------------------------------------------------------------

    async def load(self, pool: WorkerPool) -> None:
        """Engine and text side at the same time. A failure stays on record, until the next try, and is raised."""
        self.failure = None
        before, self.rest = self.rest, ""
        parts = [asyncio.ensure_future(work) for work in (self.client.start(self._progress), self.open_text(pool))]
        try:
            await asyncio.gather(*parts)
            text = self.text
            assert text is not None
            self.info = self.client.info
            text.limit_context(self.info.context_length)
            self.used_s = time.monotonic()
            self.counters[LOADS] += 1
            self.tell()
        except BaseException as error:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            if self.on_demand or before:
                await self.client.stop()
                self.rest = before
            if isinstance(error, Exception):
                self._keep(error)
            self.tell()
            raise

    async def check(self, pool: WorkerPool) -> None:
        """What can be known before it is loaded: text side and header. A failure is kept and raised as load's is."""
        self.failure = None
        try:
            if self.prove is not None:
                await pool.run(self.prove)
            await self.open_text(pool)
        except Exception as error:
            self._keep(error)
            self.tell()
            raise

    def _keep(self, error: Exception) -> None:
        if not isinstance(error, ImpError):
            error = InternalError(f"the model can't be loaded: {error}")
        self.failure = error

    async def open_text(self, pool: WorkerPool) -> TextSide:
        """The text side alone, which takes no engine; as it is if it is open already."""
        async with self._opening:
            if self.text is None:
                text = await pool.run(self.load_text)
                if self.info is not None:
                    text.limit_context(self.info.context_length)
                if text.apart and self.pool is None:
                    self.pool = WorkerPool()
                self.text = text
            return self.text

    def _progress(self, stage: str, value: float) -> None:
        self.stage, self.stage_value = stage, value
        if self.on_progress is not None:
            self.on_progress(stage, value)
        self.tell()

    def tell(self) -> None:
        if self.on_change is not None:
            self.on_change(self)

    def was_used(self) -> None:
        self.used_s = time.monotonic()
        if self.on_used is not None:
            self.on_used()

    async def put_to_rest(self) -> None:
        """Ends the engine, whose memory is free then; what is unloaded has no text side either."""
        if self.client.state == "ready":
            self._carry((await self._ask_engine()).counters)
            self._told = EngineStats({}, ())
        await self.client.drain(0.0 if self.queue_depth else _SAVING_S)
        if self.rest == "unloaded":
            was_read = self.is_read
            closing = self.close_text()
            if not was_read:  # others needn't wait for who reads: the engine's memory is free
                await asyncio.shield(closing)

    def reading(self) -> Callable[[], None]:
        """The text side stays open until what this gives is called."""
        text = self.text
        assert text is not None
        self._readers[text] += 1

        def end() -> None:
            self._readers[text] -= 1
            self.read_s = time.monotonic()
            if not self._readers[text]:
                del self._readers[text]
                if (unread := self._unread.pop(text, None)) is not None:
                    unread.set()

        return end

    @property
    def is_read(self) -> bool:
        """Somebody uses its text side."""
        return bool(self.text is not None and self._readers[self.text])

    def close_text(self) -> asyncio.Task[None]:
        """Whoever asks next opens another; who uses this one may finish, and then it is closed."""
        text, pool = self.text, self.pool
        self.text = self.pool = None
        task = asyncio.get_running_loop().create_task(self._close(text, pool))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def _close(self, text: TextSide | None, pool: WorkerPool | None) -> None:
        if text is None:
            return
        if self._readers[text]:
            unread = self._unread[text] = asyncio.Event()
            await unread.wait()
        await asyncio.to_thread(text.close)
        if pool is not None:
            pool.close()

    async def retire(self) -> None:
        """Behind its last request: a text side that is being opened is closed, too."""
        async with self._opening:
            pass
        await self.close_text()

    def _carry(self, counters: dict[str, float]) -> None:
        for name, value in counters.items():
            if name.partition("{")[0].endswith("_total") and name != _OWN_TOTAL:
                self._carried[name] = self._carried.get(name, 0.0) + value

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
    def state(self) -> HostState:
        """As EngineClient.state; failed if loading ended with an error; else why it isn't in memory."""
        if self.failure is not None and not self.is_queued:
            return "failed"
        if self.is_queued:
            return "loading"
        if self.rest:
            return self.rest
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

    @property
    def is_idle(self) -> bool:
        return not (self.n_leases or self.queue_depth)

    @property
    def memory_bytes(self) -> int:
        """What it takes while it is loaded: as measured behind its last load, before the first its files."""
        return self.file_bytes if self.info is None else self.info.memory_bytes

    def ready_text(self) -> TextSide:
        """Raises ModelLoading, or the error that loading ended with. A model that sleeps has its text."""
        if self.text is not None and (self.info is not None or self.on_demand):
            return self.text
        if self.failure is not None:
            raise self.failure
        raise ModelLoading("the model is still loading; try again in a moment", retry_after_s=1.0)

    def own_pool(self, *, renders: bool) -> WorkerPool | None:
        """For work of the text side that may wait for processes of this model; `renders`: with its template, too.

        None: it doesn't wait.
        """
        apart = self.ready_text().apart
        return self.pool if "tokenizer" in apart or (renders and "template" in apart) else None

    async def stats(self, owner: Owner) -> EngineStats:
        """Of rows that aren't the owner's only that they are busy. Nothing while the model loads.

        Totals go on behind a rest.
        """
        if self.info is None:
            return EngineStats({}, ())
        told, rows = await self._ask_engine()
        told = told | {name: told.get(name, 0.0) + n for name, n in self._carried.items()}
        own = {key for reply in self.replies if reply.owner == owner for key in reply.keys}
        shown = tuple(row if row.get("key") in own else {"slot": row.get("slot")} for row in rows)
        killed = {} if self.text is None else self.text.killed
        ended = {f'worker_killed_total{{job="{name}"}}': n for name, n in killed.items()}
        return EngineStats({**self.counters, **ended, **told}, shown)

    async def _ask_engine(self) -> EngineStats:
        """One question at a time; what the engine told last where it takes long, in a step or for good."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self.client.stats())
        done, _ = await asyncio.wait((self._asking,), timeout=_STATS_S)
        if done:
            self._told = self._asking.result()
        return self._told

    @property
    def status(self) -> str:
        """In llama.cpp's words: unloaded | loading | loaded | sleeping."""
        return _STATUS.get(self.state, "loaded")

    def card(self) -> ModelCard:
        plain = ModelCard(self.id, self.created, False, None, aliases=self.aliases, tags=self.tags)
        plain = plain._replace(pooling=self.config.model.pooling)
        if self.on_demand:
            problem = self.broken or ("" if self.failure is None else self.failure.message)
            status = ModelStatus(self.status, problem, self.source, self.source == "catalogue")
            plain = plain._replace(status=status)
        info = self.info
        if info is None:
            return plain
        return plain._replace(
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
