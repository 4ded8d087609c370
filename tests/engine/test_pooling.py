"""Embeddings in which every position has a part, held against the reference backend's hidden states."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from imp_server.backends.base import WANT_ALL_HIDDEN, KvSpec, StepRow
from imp_server.backends.cpu.backend import CpuBackend
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.core import GenerateRequest
from imp_server.engine.client.inline import InlineEngine
from imp_server.engine.merge import merge_deltas
from imp_server.engine.messages import RowDelta
from imp_server.engine.pooling import Pooler, pooler_of
from imp_server.models.architecture import Architecture
from imp_server.schedule.cache import PrefixCache

from tests.backends.array_source import ArraySource, tiny
from tests.backends.test_contract import step
from tests.engine.tiny_engine import IDS, Tiny, ask, request, with_engine

INPUT = IDS[:53]


class Native(CpuBackend):
    def allocate(self, kv: KvSpec) -> None:
        super().allocate(KvSpec(kv.n_blocks, "bf16"))


def hidden_states() -> Any:
    """[positions, width] of the input, of one forward."""
    oracle = ReferenceBackend(ArraySource(tiny()))
    oracle.allocate(KvSpec((8,), "f32"))
    return oracle.run(step(StepRow(WANT_ALL_HIDDEN), np.array(INPUT), 0, np.arange(8, dtype=np.int32))).rows[0].hidden


@pytest.mark.parametrize("make", [ReferenceBackend, Native])
@pytest.mark.parametrize("chunk", [0, 10])
def test_each_kind_is_made_of_the_same_hidden_states(make: Any, chunk: int) -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        hidden = hidden_states()
        atol = 0 if make is ReferenceBackend else 0.1  # keys and values of 16 bits
        (each,) = await ask(engine, request(engine, INPUT, task="embed", pooling="none"))
        np.testing.assert_allclose(np.stack(each.vectors), hidden, rtol=0, atol=atol)
        (last,) = await ask(engine, request(engine, INPUT, task="embed", pooling="last"))
        np.testing.assert_array_equal(last.vectors, each.vectors[-1:])
        (mean,) = await ask(engine, request(engine, INPUT, task="embed", pooling="mean"))
        exact = np.stack(each.vectors).astype(np.float64).sum(axis=0) / len(INPUT)
        np.testing.assert_array_equal(mean.vectors, [exact.astype(np.float32)])
        assert mean.finish and mean.finish.usage.prompt_tokens == len(INPUT)

    with_engine(body, prefill_chunk=chunk, wrap=lambda _: make(ArraySource(tiny())))


def test_what_the_cache_holds_is_computed_for_them() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        await ask(engine, request(engine, INPUT, 4))
        (each,) = await ask(engine, request(engine, INPUT, task="embed", pooling="none"))
        assert len(each.vectors) == len(INPUT) and each.finish and not each.finish.usage.cached_tokens

    with_engine(body, make_index=PrefixCache)


def test_neighbours_change_nothing() -> None:
    async def body(engine: InlineEngine, _: Tiny) -> None:
        def wanted() -> GenerateRequest:
            return request(engine, INPUT, task="embed", pooling="mean")

        (alone,) = await ask(engine, wanted())
        answers = await asyncio.gather(
            *(ask(engine, wanted()) for _ in range(3)),
            *(ask(engine, request(engine, IDS[60:90], 30)) for _ in range(3)),
        )
        for (other,) in answers[:3]:
            np.testing.assert_array_equal(other.vectors, alone.vectors)

    with_engine(body, n_rows=6, n_blocks=14, prefill_chunk=16)  # too few blocks for all: rows step back


def test_chunks_that_come_again_count_once() -> None:
    hidden = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)
    mean, each = Pooler("mean", 4), Pooler("none", 4)
    sent = each.take(0, hidden[:3]) + each.take(0, hidden[:2]) + each.take(2, hidden[2:5]) + each.take(5, hidden[5:])
    assert sent == tuple(vector.tobytes() for vector in hidden) and each.end() == ()
    for start, end in ((0, 3), (0, 2), (2, 5), (5, 7)):
        assert mean.take(start, hidden[start:end]) == ()
    np.testing.assert_allclose(np.frombuffer(mean.end()[0], dtype="<f4"), hidden.mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("asked", "own", "kind"),
    [("auto", "none", None), ("auto", "mean", "mean"), ("last", "mean", None), ("mean", "none", "mean"),
     ("none", "mean", "none")],
)  # fmt: skip
def test_the_model_has_a_say(asked: Any, own: Any, kind: str | None) -> None:
    architecture: Architecture = replace(tiny(), pooling=own)
    pooler = pooler_of(GenerateRequest(1, b"", task="embed", pooling=asked), architecture)
    assert (pooler.kind if pooler else None) == kind
    assert pooler_of(GenerateRequest(1, b"", pooling="mean"), architecture) is None


def test_vectors_of_two_hand_offs_stay_in_order() -> None:
    merged = merge_deltas(RowDelta(1, 0, vectors=(b"a", b"b")), RowDelta(1, 0, vectors=(b"c",)))
    assert merged.vectors == (b"a", b"b", b"c")
