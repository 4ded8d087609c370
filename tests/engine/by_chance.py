"""An engine in which chance decides whatever time decides elsewhere: a seed gives the same run each time.

What steps cost, what drafts are worth, when masks are there, how long a step waits for them, how much of a prompt goes
into a step or comes back from a tier, when requests come and are cancelled. All in one thread: the mask thread's work
is done whenever chance says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import exp
from random import Random
from typing import Any

import pytest
from imp_server.backends import host_sampling, late_masks
from imp_server.backends.base import Backend, KvSpec
from imp_server.backends.cpu import sampling as native_sampling
from imp_server.core import GenerateRequest, GrammarPlan, unpack_ids
from imp_server.engine.acceptance import Limits
from imp_server.engine.constrained import mask_waits
from imp_server.engine.constrained.constraint import Constraint
from imp_server.engine.constrained.grammars import Grammars
from imp_server.engine.drafting import speculation as speculating
from imp_server.engine.drafting.draft_account import DraftAccount
from imp_server.engine.drafting.draft_model import ModelDrafter
from imp_server.engine.drafting.speculation import Speculation
from imp_server.engine.loop import EngineLoop
from imp_server.engine.messages import Cancel, FromEngine, RequestAccepted, StepDone, Submit
from imp_server.engine.overlapped import OverlappedLoop
from imp_server.engine.parts import EngineParts
from imp_server.engine.row_rules import RowRules
from imp_server.models.architecture import Architecture
from imp_server.schedule.cache import Offload, PrefixCache
from imp_server.schedule.cost import CostTable
from imp_server.schedule.prefix import MakeIndex
from imp_server.schedule.scheduler import ScheduleLimits, Scheduler
from imp_server.schedule.tiers.tier import Tier
from imp_server.vocab.table import Vocabulary

from tests.engine.tiny_engine import Answer

MOST_TURNS = 12_000


class CostsByChance(CostTable):
    """Says of any step what it likes."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance

    def observe(self, n_tokens: int, ms: float) -> None:
        return None

    @property
    def n_sizes(self) -> int:
        return self._chance.choice((0, 2, 2, 2))

    def estimate_ms(self, n_tokens: int) -> float:
        return exp(self._chance.uniform(0, 2)) * (1 + 0.02 * n_tokens)

    def tokens_within(self, budget_ms: float) -> int:
        return int(exp(self._chance.uniform(0, 5)))


class AccountByChance(DraftAccount):
    """Of a draft model."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance

    @property
    def may_spend(self) -> bool:
        return self._chance.random() < 0.8


class JobsByChance:
    """The mask thread's jobs, done in any order at any time; without chance at once."""

    def __init__(self, chance: Random | None) -> None:
        self._chance = chance
        self._open: list[tuple[Callable[[], Any], Future[Any]]] = []
        self.seconds: dict[str, float] = {}
        self.haste = 1.0 if chance is None else chance.choice((0.05, 0.3, 0.8))

    def submit(self, answer: Callable[[], Any], owner: str = "", about: Any = None) -> Future[Any]:
        future: Future[Any] = Future()
        self._open.append((answer, future))
        self.work()
        return future

    def is_quick(self, _owner: str) -> bool:
        return self._chance is None or self._chance.random() < 0.7

    def earn(self, _owner: str) -> None:
        return

    def work(self, *_: object) -> None:
        """Some of what is open."""
        while self._open and (self._chance is None or self._chance.random() < self.haste):
            at = 0 if self._chance is None else self._chance.randrange(len(self._open))
            answer, future = self._open.pop(at)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                found = answer()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(found)

    def stop(self) -> None:
        for _, future in self._open:
            future.cancel()


class ImpatientConstraint:
    """A grammar that is busy now and then when the loop asks, and forgets masks that it knew."""

    def __init__(self, inner: Constraint, chance: Random) -> None:
        self._inner = inner
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("step", "past_early", "n_out", "route", "forced", "known_mask"):
            return found

        def ask(*args: Any) -> Any:
            is_busy = self._chance.random() < 0.1
            if name == "known_mask":
                return None if is_busy else found(*args)
            n_plain = 2 if name == "step" else 1
            if is_busy and len(args) > n_plain and args[n_plain] is not None:
                raise TimeoutError
            return found(*args)

        return ask


@dataclass
class Engine:
    """What an engine is made of. `chance` None: it does what it should as well as it can, at once."""

    backend: Backend
    words: Vocabulary
    chance: Random | None = None
    n_rows: int = 4
    n_blocks: Sequence[int] = (64,)
    context: int = 256
    prefill_chunk: int = 0
    drafters: Sequence[Any] = ()
    gates: bool = True
    """Drafts have a price."""
    keeps: bool = False
    tier: Tier | None = None
    takes_only: bool = True
    overlap: bool = False
    answers: dict[int, list[Answer]] = field(default_factory=dict)
    n_cancelled: int = 0

    def __post_init__(self) -> None:
        architecture: Architecture = self.backend.architecture
        self.backend.allocate(KvSpec(tuple(self.n_blocks), self.backend.info.default_kv_dtype))
        self._now_s = 1.0
        self._inbox: list[Any] = []
        self.jobs = JobsByChance(self.chance)
        costs = None if self.chance is None else CostsByChance(self.chance)
        self.scheduler = Scheduler(
            ScheduleLimits(self.n_rows, self.context, prefill_chunk=self.prefill_chunk),
            architecture.cache_groups,
            self.n_blocks,
            costs=costs,
            decode_costs=costs,
            make_index=self._make_index(),
        )
        self.speculation = self._make_speculation(costs)
        self.loop = (OverlappedLoop if self.overlap else EngineLoop)(
            EngineParts(
                self.backend,
                self.scheduler,
                self.words,
                Limits(self.context, architecture.vocab_size, self.n_rows),
                emit=self._take,
                post=self._inbox.append,
                make_constraint=self._make_constraint(),
                speculation=self.speculation,
                rules=RowRules(takes_only=self.takes_only),
                clock=self._clock,
            )
        )
        masks = self.loop.requests._masks
        masks.stop()
        masks._jobs = self.jobs  # type: ignore[assignment]

    def run(
        self, wanted: Iterable[GenerateRequest], given_up: Sequence[GenerateRequest] = ()
    ) -> dict[int, list[Answer]]:
        """Answers by key. `given_up`: these come, too, and somebody cancels them, or a choice of them."""
        coming: list[Any] = [Submit(request) for request in (*wanted, *given_up)]
        to_cancel = [Cancel(request.key, choice) for request in given_up for choice in self._choices_to_cancel(request)]
        self.answers |= {m.request.key: [Answer() for _ in range(m.request.options.n)] for m in coming}
        if self.chance is not None:
            self.chance.shuffle(coming)
        gap = 0.0 if self.chance is None else self.chance.choice((0.0, 0.3, 0.9))
        with self._in_charge():
            for _ in range(MOST_TURNS):
                while coming and (self.chance is None or self.chance.random() >= gap):
                    self._inbox.append(coming.pop())
                while to_cancel and self.chance is not None and self.chance.random() < 0.1:
                    self._inbox.append(to_cancel.pop())
                    self.n_cancelled += 1
                self._turn()
                if not (coming or self._inbox or self.loop.has_work or self.loop.requests._starting):
                    break
            else:
                raise AssertionError("the work doesn't end")
        fault = self.scheduler.idle_fault()
        assert not fault, fault
        return self.answers

    def close(self) -> None:
        self.loop.close()

    def _turn(self) -> None:
        while self._inbox:
            self.loop.handle(self._inbox.pop(0))
        self.jobs.work()
        if self.loop.has_work:
            self.loop.step()
            self.scheduler.check()
            for drafter in self.drafters:
                if isinstance(drafter, ModelDrafter):
                    drafter.memory.check()
        if self.chance is not None and self.chance.random() < 0.05:
            self.scheduler.index.tidy()

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, RequestAccepted):
            return
        assert isinstance(message, StepDone), message
        for delta in message.rows:
            answer = self.answers[delta.key][delta.choice]
            assert answer.finish is None, "a delta after the end"
            answer.ids += unpack_ids(delta.ids)
            answer.logprobs += delta.logprobs
            answer.prompt_logprobs = answer.prompt_logprobs or list(delta.prompt_logprobs)
            answer.finish = delta.finish

    def _choices_to_cancel(self, request: GenerateRequest) -> list[int]:
        assert self.chance is not None
        return [self.chance.choice((-1, *range(request.options.n)))]

    def _clock(self) -> float:
        self._now_s += 0.0 if self.chance is None else self.chance.expovariate(30)
        return self._now_s

    def _make_index(self) -> MakeIndex | None:
        if not self.keeps:
            return None
        if self.tier is None:
            return PrefixCache
        n_bytes = self.backend.block_bytes(self.backend.info.default_kv_dtype)
        return partial(PrefixCache, offload=Offload(self.backend, n_bytes, self.tier))

    def _make_speculation(self, costs: CostTable | None) -> Speculation:
        found = Speculation(self.drafters, costs=costs if self.gates else None, clock=self._clock)
        if self.chance is not None and found._account is not None:
            found._account = AccountByChance(self.chance)
        for drafter in self.drafters:
            if isinstance(drafter, ModelDrafter) and self.chance is not None:
                drafter._costs = CostsByChance(self.chance)  # type: ignore[assignment]
                drafter._prefill_costs = CostsByChance(self.chance)
        return found

    def _make_constraint(self) -> Callable[[GrammarPlan], Any]:
        grammars, chance = Grammars(self.words), self.chance
        if chance is None:
            return grammars
        return lambda plan: ImpatientConstraint(grammars(plan), chance)

    @contextmanager
    def _in_charge(self) -> Iterator[None]:
        """Whoever waits for masks, or brings blocks back, waits by chance."""
        restore = self.scheduler.index.restore

        def restore_some(row: Any, budget_ms: float) -> int | None:
            return restore(row, 0.0 if self.chance is not None and self.chance.random() < 0.7 else 1e9)

        def await_masks(step: Any, row: Any) -> tuple[int, float]:
            self.jobs.work()
            return late_masks.await_masks(step, row)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.scheduler.index, "restore", restore_some)
            for module in (late_masks, native_sampling):
                patch.setattr(module, "MASK_PATIENCE_S", 0.0)
            patch.setattr(host_sampling, "await_masks", await_masks)
            for module in (mask_waits, speculating):
                patch.setattr(module, "wait_for_all", self.jobs.work)
            patch.setattr(mask_waits, "wait_for_some", self.jobs.work)
            yield
