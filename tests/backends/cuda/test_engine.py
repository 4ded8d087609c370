"""The whole engine on the cuda backend: what it answers is what the reference answers, whatever happens on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from imp_server.backends.base import Backend, KvSpec
from imp_server.backends.cuda.plain.operations import PlainOperations
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.core import GenerateRequest, OutputPlan, SamplingParams, pack_ids
from imp_server.decode.ngram import NgramDrafter
from imp_server.engine.drafting.draft_model import ModelDrafter
from imp_server.grammar.check import check_schema
from imp_server.models.architecture import Architecture
from imp_server.models.feed_forwards import Experts
from imp_server.models.mixers import LatentAttention
from imp_server.models.rotation import Rope

from tests.asked import made
from tests.backends.array_source import BASE, ArraySource, altered, mixed_groups, tiny
from tests.backends.cuda.naive import NAIVE, OPERATIONS, mixed
from tests.backends.cuda.running import PlainCuda
from tests.backends.cuda.test_forward import KNOWN, OTHERS
from tests.engine.any_request import words
from tests.engine.by_chance import Engine
from tests.engine.test_time_changes_nothing import EAGER, World, told
from tests.engine.tiny_engine import VOCAB, Answer

END = 96
PROMPT = [5, 9, 31, 60, 7, 7, 12, 44, 2, 80, 33, 5, 9, 31, 60, 7, 7, 12, 5, 9, 31]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "is_confirmed": {"type": "boolean"}},
    "required": ["name", "is_confirmed"],
    "additionalProperties": False,
}
MODELS: dict[str, Architecture] = {
    "full": tiny(),
    "windows": mixed_groups(),
    "chunks": OTHERS["chunks"],
    "sinks": KNOWN["sinks"],
    "gemma": KNOWN["gemma"],
    "latents": tiny(altered(BASE, mixer=LatentAttention(4, 32, 16, 16, Rope("interleaved", dims=16), q_rank=24))),
    "experts": tiny(altered(BASE, feed_forward=Experts(6, 2, 32))),
    "dense and experts": OTHERS["dense and experts"],
    "shared": KNOWN["shared"],
    "streams": KNOWN["streams"],
}
SAMPLED = SamplingParams(temperature=1.0, top_k=30, top_p=0.95, seed=3, presence_penalty=0.4)
GREEDY = SamplingParams(temperature=0.0)


def requests() -> list[GenerateRequest]:
    schema = {"grammar": check_schema(SCHEMA), "end_ids": (END,)}
    asked: list[tuple[SamplingParams, dict[str, Any], list[int]]] = [
        (GREEDY, {}, PROMPT),
        (SAMPLED, {}, PROMPT + [40] * 3),
        (GREEDY, schema, PROMPT[:9]),
        (SAMPLED, schema, PROMPT),
    ]
    return [
        made(GenerateRequest, key, pack_ids(prompt), OutputPlan(**{"max_tokens": 24} | plan), law)
        for key, (law, plan, prompt) in enumerate(asked, 1)
    ]


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefix hit": {"keeps": True},
    "n-gram": {"drafters": ("n-gram",), "gates": False},
    "draft model": {"drafters": ("model",), "gates": False},
    "all": {"keeps": True, "drafters": ("n-gram", "model"), "gates": False, "prefill_chunk": 5},
}


QUICK = (("full", "all"), ("windows", "prefix hit"), ("latents", "plain"))
"""The others are slow tests."""


def drafter(name: str) -> Any:
    if name == "n-gram":
        return NgramDrafter(EAGER)
    return ModelDrafter(PlainCuda(ArraySource(tiny())), KvSpec((64,), "f32"), VOCAB, k=3, catch_up_ms=1e6)


def answers(backend: Backend, *, overlap: bool = False, **way: Any) -> tuple[list[Any], Counter[str]]:
    n_groups = len(backend.architecture.cache_groups)
    way["drafters"] = [drafter(name) for name in way.get("drafters", ())]
    engine = Engine(backend, words(), n_blocks=[64] * n_groups, context=160, overlap=overlap, **way)
    found: list[Any] = []
    for _ in range(2 if way.get("keeps") else 1):  # the second time, their prompts are known
        again = engine.run(requests())
        found = [told(one) for key in sorted(again) for one in again[key]]
        engine.answers = {}
    counters, _ = engine.loop.stats()
    engine.close()
    return found, Counter({name: int(value) for name, value in counters.items()})


@pytest.fixture(scope="module")
def wanted() -> dict[str, list[Any]]:
    """By model, what the reference answers; made when it is asked for."""
    return {}


def of_reference(wanted: dict[str, list[Any]], model: str) -> list[Any]:
    if model not in wanted:
        wanted[model] = answers(ReferenceBackend(ArraySource(MODELS[model])))[0]
    return wanted[model]


@pytest.mark.parametrize(
    ("model", "way"),
    [
        pytest.param(model, way, marks=() if (model, way) in QUICK else pytest.mark.slow)
        for model in ("full", "windows", "latents")
        for way in WAYS
    ],
)
def test_ids_are_those_of_the_reference(model: str, way: str, wanted: dict[str, list[Any]]) -> None:
    backend = PlainCuda(ArraySource(MODELS[model]))
    found, counters = answers(backend, overlap=way in ("plain", "all"), **WAYS[way])
    assert found == of_reference(wanted, model)
    if "keeps" in WAYS[way]:
        assert counters["prefix_cache_hit_tokens_total"]
    if "drafters" in WAYS[way]:
        assert counters["spec_drafted_total"] and (counters["spec_accepted_total"] or model != "full")


@pytest.mark.parametrize(
    "model",
    [name for name in MODELS if name not in ("full", "windows")],
)
@pytest.mark.slow
def test_so_are_those_of_every_kind_of_layer(model: str, wanted: dict[str, list[Any]]) -> None:
    found, counters = answers(PlainCuda(ArraySource(MODELS[model])), overlap=True, **WAYS["all"])
    assert found == of_reference(wanted, model)
    assert counters["spec_drafted_total"] and counters["prefix_cache_hit_tokens_total"]


def subset(seed: int) -> list[str]:
    chance = Random(seed)
    return [name for name in NAIVE if chance.random() < 0.5]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_any_subset_of_operations_may_have_another_maker(seed: int, wanted: dict[str, list[Any]]) -> None:
    model = ("full", "windows", "experts")[seed % 3]
    backend = PlainCuda(ArraySource(MODELS[model]), ops=mixed(subset(seed)))
    found, _ = answers(backend, **WAYS["n-gram"])
    assert found == of_reference(wanted, model)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 30))
def test_so_may_many_more(seed: int, wanted: dict[str, list[Any]]) -> None:
    test_any_subset_of_operations_may_have_another_maker(seed, wanted)


def test_the_list_of_operations_is_whole() -> None:
    plain = PlainOperations()
    assert len(OPERATIONS) > 20 and all(callable(getattr(plain, name)) for name in OPERATIONS)
    assert set(NAIVE) <= set(OPERATIONS)


class Beside(World):
    """A world on the cuda backend; what each request gets alone is said by the reference."""

    def alone(self, request: GenerateRequest) -> list[Answer]:
        self.make = reference
        try:
            return super().alone(request)
        finally:
            self.make = cuda


def reference(architecture: Architecture, salt: int, n_threads: int) -> Backend:
    return ReferenceBackend(ArraySource(architecture, salt))


def cuda(architecture: Architecture, salt: int, n_threads: int) -> Backend:
    return PlainCuda(ArraySource(architecture, salt))


def without_logprobs(answer: Answer) -> Any:
    """Their last digits are each backend's own."""
    return told(replace(answer, logprobs=[], prompt_logprobs=[]))


def play(seed: int) -> None:
    world = Beside(seed, cuda)
    wanted = [world.draws.draw() for _ in range(world.chance.choice((1, 3, 5)))]
    plain = {request.key: world.alone(request) for request in wanted}
    engine = world.engine()
    found = engine.run([world.draws.told(request, plain[request.key]) for request in wanted])
    for request in wanted:
        for one, other in zip(plain[request.key], found[request.key], strict=True):
            assert without_logprobs(other) == without_logprobs(one), (seed, request)
            for ours, theirs in zip(other.logprobs, one.logprobs, strict=True):
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
    engine.close()


def test_whatever_is_decided_by_time_may_be_decided_in_any_way() -> None:
    play(0)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_so_it_is_in_many_worlds(first: int) -> None:
    for seed in range(first, first + 20):
        play(seed)
