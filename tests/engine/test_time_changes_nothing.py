"""Whatever is decided by time may be decided in any way: ids, logprobs and ends are those of each request alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from imp_server.backends.base import Backend, KvSpec
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.core import GenerateRequest
from imp_server.decode.forced import ForcedDrafter
from imp_server.decode.ngram import NgramDrafter, NgramKnobs
from imp_server.decode.recall import RecallDrafter
from imp_server.engine.drafting.draft_model import ModelDrafter
from imp_server.models.architecture import Architecture, CacheGroup
from imp_server.schedule.cache import PrefixCache
from imp_server.schedule.tiers.host import HostTier

from tests.asked import changed
from tests.backends.array_source import BASE, ArraySource, altered, tiny
from tests.engine.any_request import AnyRequest, encode, words
from tests.engine.by_chance import Engine
from tests.engine.hash_model import HashModel
from tests.engine.tiny_engine import VOCAB, Answer

WINDOWS = ((0,), (0, 20), (0, 20), (20,), (0, 3, 37))
"""Of each cache group; 0 = full."""
N_SEEDS = 16
SEEDS_AT_ONCE = 8
HAPPENS = (
    "spec_ngram_accepted_total",
    "spec_model_accepted_total",
    "spec_recall_accepted_total",
    "constrained_mask_waits_total",
    "grammar_steered_total",
    "preemptions_total",
    "prefix_cache_hit_tokens_total",
)
"""In any few seeds; otherwise they would prove little."""
EAGER = NgramKnobs(k=9, min_match=1, max_match=3, miss_burst=0, give_up_after=0)
SULKY = NgramKnobs(min_match=2, suffix=False, burst_rearm=False)


def grouped(windows: Sequence[int]) -> Architecture:
    groups = tuple(CacheGroup("window" if w else "full", (i,), w) for i, w in enumerate(windows))
    layers = tuple(altered(BASE, window=w, cache_group=i) for i, w in enumerate(windows))
    return tiny(n_layers=len(windows), layers=layers, cache_groups=groups)


def hashes(architecture: Architecture, salt: int, n_threads: int) -> Backend:
    return HashModel(architecture, salt=salt, waits_for_masks=n_threads > 1)


def reference(architecture: Architecture, salt: int, n_threads: int) -> Backend:
    return ReferenceBackend(ArraySource(architecture, salt))


def cpu(architecture: Architecture, salt: int, n_threads: int) -> Backend:
    return CpuBackend(ArraySource(architecture, salt), n_threads=n_threads)


class World:
    """One seed's engine and requests. `make`: a model of an architecture, a salt and so many threads."""

    def __init__(self, seed: int, make: Callable[[Architecture, int, int], Backend] = hashes) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.make = make
        self.words = words()
        self.architecture = grouped(self.chance.choice(WINDOWS))
        self.context = self.chance.choice((48, 96, 160, 250))
        self.n_rows = self.chance.choice((1, 2, 4, 6))
        self.draws = AnyRequest(
            self.chance,
            longest=self.context - 12,
            most_tokens=self.chance.choice((12, 40, 90)),
            n_rows=self.n_rows,
        )
        self.models: list[Backend] = []

    def alone(self, request: GenerateRequest) -> list[Answer]:
        """By an engine that has nothing else to do, drafts nothing and keeps nothing."""
        model = self.make(self.architecture, 0, 1)
        self.models.append(model)
        n_blocks = [64] * len(self.architecture.cache_groups)
        engine = Engine(
            model, self.words, n_rows=self.n_rows, n_blocks=n_blocks, context=self.context, takes_only=False
        )
        (answers,) = engine.run([request]).values()
        engine.close()
        return answers

    def engine(self) -> Engine:
        chance = self.chance
        least = -(-self.context // 16)
        n_blocks = [least + chance.choice((0, 0, 1, 3, 30)) for _ in self.architecture.cache_groups]
        model = self.make(self.architecture, 0, chance.choice((1, 2, 2)))
        self.models.append(model)
        return Engine(
            model,
            self.words,
            chance,
            n_rows=self.n_rows,
            n_blocks=n_blocks,
            context=self.context,
            prefill_chunk=chance.choice((0, 0, 1, 7, 16)),
            drafters=self._drafters(),
            gates=chance.random() < 0.5,
            keeps=chance.random() < 0.7,
            tier=chance.choice((None, HostTier(1 << 12), HostTier(1 << 20))),
            takes_only=chance.random() < 0.7,
            overlap=chance.random() < 0.6,
        )

    def _drafters(self) -> list[Any]:
        chance = self.chance
        found = [
            ForcedDrafter(encode, self.words.token_bytes),
            NgramDrafter(chance.choice((EAGER, EAGER, NgramKnobs(), SULKY))),
            self._draft_model(),
        ]
        chance.shuffle(found)
        found = found[: chance.choice((1, 2, 3, 3))]
        return [*found, RecallDrafter()] if self.seed % 4 == 2 else found

    def _draft_model(self) -> ModelDrafter:
        chance = self.chance
        model = self.make(grouped(chance.choice(WINDOWS)), chance.randrange(3), 1)
        self.models.append(model)
        kv = KvSpec((chance.choice((2, 5, 9, 40)),) * len(model.architecture.cache_groups), model.info.default_kv_dtype)
        return ModelDrafter(
            model,
            kv,
            chance.choice((VOCAB, VOCAB, VOCAB - 3)),
            k=chance.choice((1, 4, 9)),
            p_min=chance.choice((0.0, 0.0, 0.4)),
            make_index=chance.choice((None, PrefixCache)),
        )


def told(answer: Answer) -> tuple[Any, ...]:
    """All that mustn't depend on time."""
    finish = answer.finish
    assert finish is not None
    usage = finish.usage
    return (
        answer.ids,
        finish.reason,
        finish.stop_string,
        finish.end_id,
        finish.detail,
        usage.completion_tokens,
        usage.reasoning_tokens,
        answer.logprobs,
        answer.prompt_logprobs,
    )


def play(seed: int, make: Callable[[Architecture, int, int], Backend] = hashes) -> Counter[str]:
    """What happened on the way. Raises AssertionError."""
    world = World(seed, make)
    wanted = [world.draws.draw() for _ in range(world.chance.choice((1, 3, 6, 9)))]
    plain = {request.key: world.alone(request) for request in wanted}
    given_up = [changed(world.draws.draw(), n=min(2, world.n_rows)) for _ in range(world.chance.choice((0, 0, 2)))]
    engine = world.engine()
    found = engine.run([world.draws.told(request, plain[request.key]) for request in wanted], given_up)
    for request in wanted:
        for choice, (one, other) in enumerate(zip(plain[request.key], found[request.key], strict=True)):
            assert told(other) == told(one), (seed, request, choice)
    assert not [fault for model in world.models if isinstance(model, HashModel) for fault in model.faults], seed
    counters, _ = engine.loop.stats()
    engine.close()
    return Counter({name: int(value) for name, value in counters.items() if name.endswith("_total")})


@pytest.mark.parametrize("first", range(0, N_SEEDS, SEEDS_AT_ONCE))
def test_every_request_gets_what_it_gets_alone(first: int) -> None:
    happened = sum((play(seed) for seed in range(first, first + SEEDS_AT_ONCE)), Counter())
    assert all(happened[name] for name in HAPPENS), happened


@pytest.mark.parametrize("seed", [1055, 1552, 1933, 1959])
def test_worlds_that_were_wrong_once(seed: int) -> None:
    """A draft that was forgotten while its step was under way; masks behind drafts from before a reply was steered."""
    play(seed)


@pytest.mark.parametrize(("make", "n_seeds"), [(reference, 2), (cpu, 4)])
def test_of_real_backends_too(make: Callable[[Architecture, int, int], Backend], n_seeds: int) -> None:
    happened = sum((play(seed, make) for seed in range(n_seeds)), Counter())
    assert happened["spec_accepted_total"] and happened["constrained_mask_waits_total"], happened


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_it_does_so_in_a_thousand_worlds(first: int) -> None:
    for seed in range(first, first + 50):
        play(seed)
    for seed in range(first, first + 4):
        play(seed, reference)
        play(seed, cpu)
