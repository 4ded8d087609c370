"""An inline engine over a tiny random model, and the client's side of a test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from imp_server.backends.base import Backend, KvSpec
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.core import GenerateRequest, OutputPlan, SamplingParams, TokenLogprob, pack_ids, unpack_ids
from imp_server.engine.acceptance import Limits
from imp_server.engine.build import BuiltEngine
from imp_server.engine.client.base import EngineClient
from imp_server.engine.client.inline import Emit, InlineEngine, Post
from imp_server.engine.constrained.constraint import MakeConstraint
from imp_server.engine.drafting.speculation import Speculation
from imp_server.engine.loop import EngineLoop
from imp_server.engine.messages import ModelInfo, RowFinish
from imp_server.engine.overlapped import OverlappedLoop
from imp_server.engine.parts import EngineParts
from imp_server.engine.row_rules import RowRules
from imp_server.engine.slot_files import SlotStore
from imp_server.models.architecture import Architecture
from imp_server.schedule.cache import Offload, PrefixCache
from imp_server.schedule.prefix import MakeIndex
from imp_server.schedule.scheduler import ScheduleLimits, Scheduler
from imp_server.schedule.snapshots import SnapshotLimits
from imp_server.schedule.tiers.tier import Tier
from imp_server.vocab.table import Vocabulary

from tests.asked import made
from tests.backends import plain_model
from tests.backends.array_source import ArraySource, tiny

VOCAB = 97
END, THINK, UNTHINK = 96, 95, 94
IDS = np.random.default_rng(3).integers(0, 94, 600).tolist()
SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=7)


def vocabulary() -> Vocabulary:
    """Ids 0-93 write the printable characters from blank on; the last three are special."""
    pieces: list[bytes | None] = [bytes([32 + i]) for i in range(94)]
    return Vocabulary([*pieces, None, None, None], {94: "</think>", 95: "<think>", 96: "<end>"}, end_ids=(END,))


@dataclass
class Tiny:
    """What a test sets about its engine."""

    architecture: Architecture = field(default_factory=tiny)
    n_rows: int = 4
    n_blocks: int = 64
    context: int = 256
    max_queue: int = 128
    step_ms: float = 50.0
    prefill_chunk: int = 0
    make_constraint: MakeConstraint | None = None
    drafters: Sequence[Any] = ()
    make_index: MakeIndex | None = None
    tier: Tier | None = None
    """Under a prefix cache, instead of `make_index`."""
    snapshots: SnapshotLimits = field(default_factory=SnapshotLimits)
    wrap: Callable[[Backend], Backend] = lambda backend: backend
    clock: Callable[[], float] = time.monotonic
    takes_only: bool = True
    words: Vocabulary | None = None
    """Instead of `vocabulary()`."""
    overlaps: ClassVar[bool] = False
    """Which loop it is, unless it is said: the overlapped one."""
    overlap: bool | None = None
    keeps_slots: bool = False
    """What slots held can be saved."""
    loop: EngineLoop | None = None
    """The loop once it is built."""

    def build(self, emit: Emit, post: Post) -> BuiltEngine:
        backend: Backend = ReferenceBackend(ArraySource(self.architecture))
        backend = self.wrap(backend)
        groups = self.architecture.cache_groups
        if self.tier is not None or self.keeps_slots or any(group.kind == "state" for group in groups):
            offload = Offload(backend, backend.block_bytes("f32"), self.tier, self.snapshots)
            self.make_index = partial(PrefixCache, offload=offload)
        backend.allocate(KvSpec((self.n_blocks,) * len(groups), "f32"))
        tasks = ("generate", "embed", "score", "rank")
        limits = Limits(self.context, VOCAB, self.n_rows, self.max_queue, tasks)
        schedule = ScheduleLimits(self.n_rows, self.context, self.step_ms, 4 * self.step_ms, self.prefill_chunk)
        scheduler = Scheduler(schedule, groups, [self.n_blocks] * len(groups), make_index=self.make_index)
        grammars: Any = {"make_constraint": self.make_constraint} if self.make_constraint else {}
        self.loop = (OverlappedLoop if (self.overlaps if self.overlap is None else self.overlap) else EngineLoop)(
            EngineParts(
                backend,
                scheduler,
                self.words or vocabulary(),
                limits,
                emit=emit,
                post=post,
                rules=RowRules(takes_only=self.takes_only),
                **grammars,
                speculation=Speculation(self.drafters),
                slot_store=self._slot_store(scheduler, backend),
                clock=self.clock,
            )
        )
        info = ModelInfo("tiny", "tiny", "", self.context, self.context, VOCAB, 64, 0, "F32")
        return BuiltEngine(self.loop, info)

    def _slot_store(self, scheduler: Scheduler, backend: Backend) -> SlotStore | None:
        if not self.keeps_slots:
            return None
        assert isinstance(scheduler.index, PrefixCache) and scheduler.index.files is not None
        return SlotStore(scheduler.index.files, lambda: bytes(32), sum(backend.block_bytes("f32")))


@dataclass
class Answer:
    """Everything that one choice sent."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    vectors: list[np.ndarray[Any, Any]] = field(default_factory=list)
    prefilled: list[int] = field(default_factory=list)
    finish: RowFinish | None = None


def with_engine(test: Callable[[InlineEngine, Tiny], Awaitable[None]], **fields: Any) -> None:
    """Run `test` on an engine whose integrity is checked after every step."""

    async def body() -> None:
        setup = Tiny(**fields)
        engine = InlineEngine(setup.build, check_each_step=True)
        await engine.start()
        try:
            await asyncio.wait_for(test(engine, setup), 60)
            assert engine.state != "failed", "the engine's thread died"
        finally:
            await engine.stop()

    asyncio.run(body())


def request(engine: EngineClient, prompt: Sequence[int], max_tokens: int = 16, **fields: Any) -> GenerateRequest:
    """Greedy and without end ids unless `plan` or `sampling` say otherwise."""
    plan = fields.pop("plan", OutputPlan(max_tokens=max_tokens))
    sampling = fields.pop("sampling", SamplingParams(temperature=0.0))
    return made(GenerateRequest, engine.new_key(), pack_ids(prompt), plan, sampling, **fields)


async def ask(engine: EngineClient, wanted: GenerateRequest) -> list[Answer]:
    """The answers by choice."""
    answers = [Answer() for _ in range(wanted.options.n)]
    async for delta in await engine.submit(wanted):
        answer = answers[delta.choice]
        assert answer.finish is None, "a delta after the end"
        answer.ids += unpack_ids(delta.ids)
        answer.logprobs += delta.logprobs
        answer.prompt_logprobs += delta.prompt_logprobs
        answer.vectors += [np.frombuffer(v, dtype="<f4") for v in delta.vectors]
        if delta.n_prefilled >= 0:
            answer.prefilled.append(delta.n_prefilled)
        answer.finish = delta.finish
    assert all(answer.finish for answer in answers)
    return answers


def greedy_twin(prompt: list[int], n: int, n_ids: int = 97) -> list[int]:
    """The `n` likeliest ids after `prompt`, one plain forward each. `n_ids`: ids from there on are banned."""
    source = ArraySource(tiny())
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(np.argmax(plain_model.forward(source, ids)[1][-1][:n_ids])))
    return ids[len(prompt) :]
