"""The reference backend: equal to a float64 twin, and bitwise independent of batch and chunking."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from imp_server.backends import choose, make_backend
from imp_server.backends.base import (
    WANT_HIDDEN,
    WANT_LOGITS,
    WANT_POOLED,
    WANT_SAMPLE,
    KvSpec,
    StepRow,
)
from imp_server.backends.options import BackendOptions
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.backends.step_builder import StepBuilder
from imp_server.core import ConfigError, SamplingParams
from imp_server.decode.state import SamplerState
from imp_server.models.architecture import Architecture
from imp_server.models.feed_forwards import Dense, Experts
from imp_server.models.rotation import Rope, RopeScaling

from tests.backends import plain_model
from tests.backends.array_source import BASE, ArraySource, altered, mixed_groups, tiny
from tests.backends.driver import Driver, logits_of

IDS = np.random.default_rng(9).integers(0, 97, 700).tolist()
EXPERTS = Experts(count=6, top_k=2, hidden=32)

ARCHITECTURES: dict[str, Architecture] = {
    "plain": tiny(),
    "interleaved": tiny(altered(BASE, rope=Rope("interleaved", dims=16)), tied_head=True),
    "partial_rope": tiny(altered(BASE, rope=Rope(dims=8, scaling=RopeScaling("linear", factor=2.0)))),
    "rope_factors": tiny(
        altered(BASE, rope=Rope(dims=16, scaling=RopeScaling("llama3", frequency_factors=(1, 1, 2, 2, 4, 4, 8, 8))))
    ),
    "no_rope": tiny(altered(BASE, rope=None), position_embeddings=128),
    "layer_norm": tiny(altered(BASE, qkv_bias=True, out_bias=True, bias=True, activation="gelu"), norm="layer"),
    "gemma": tiny(
        altered(BASE, post_norm=True, softcap=5.0, qk_norm="per_head", scale=0.2, activation="gelu_tanh"),
        norm="rms_plus_one",
        embedding_scale=8.0,
        logit_softcap=4.0,
    ),
    "whole_norm": tiny(altered(BASE, qk_norm="whole", pre_norm=False, post_norm=True)),
    "window": tiny(altered(BASE, window=20)),
    "mixed": mixed_groups(),
    "sinks": tiny(altered(BASE, sinks=True, window=37, activation="swiglu_clamped")),
    "gate": tiny(altered(BASE, gated=True)),
    "parallel": tiny(altered(BASE, parallel=True), logit_scale=0.25, residual_scale=0.7),
    "relu2": tiny(altered(BASE, feed_forward=Dense(96, gated=False, activation="relu2"))),
    "one_head": tiny(altered(BASE, n_heads=4, n_kv_heads=4, head_size=24, value_head_size=8, rope=Rope(dims=24))),
    "experts": tiny(altered(BASE, feed_forward=EXPERTS)),
    "shared_expert": tiny(altered(BASE, feed_forward=replace(EXPERTS, gating="sigmoid", shared_hidden=32, scale=1.5))),
    "mixtral": tiny(altered(BASE, feed_forward=replace(EXPERTS, normalise_top_k=False))),
}


@pytest.fixture(params=sorted(ARCHITECTURES))
def source(request: pytest.FixtureRequest) -> ArraySource:
    return ArraySource(ARCHITECTURES[request.param])


def test_equals_the_float64_twin(source: ArraySource) -> None:
    ids = IDS[:100]
    got = Driver(ReferenceBackend(source)).logits(ids, 100)
    wanted = plain_model.forward(source, ids)[1]
    assert np.abs(got - wanted).max() <= 2e-5 * np.abs(wanted).max()


def test_chunks_change_no_bit(source: ArraySource) -> None:
    ids = IDS[:230]
    driver = Driver(ReferenceBackend(source))
    whole = driver.logits(ids, len(ids))
    for chunk in (1, 16, 100):
        np.testing.assert_array_equal(driver.logits(ids, chunk), whole)


@pytest.mark.parametrize("n_rows", [2, 7, 8, 9, 33])
@pytest.mark.parametrize("name", ["plain", "mixed", "experts", "layer_norm"])
def test_batch_mates_change_no_bit(name: str, n_rows: int) -> None:
    driver = Driver(ReferenceBackend(ArraySource(ARCHITECTURES[name])), n_blocks=600)
    texts = [IDS[7 * r : 7 * r + 20 + 3 * r] for r in range(n_rows)]
    alone = [driver.logits(text, 64) for text in texts]
    sequences = [driver.sequence(len(text)) for text in texts]
    done = [0] * n_rows
    rng = np.random.default_rng(n_rows)
    while any(d < len(text) for d, text in zip(done, texts)):
        parts = []
        for r, text in enumerate(texts):
            size = min(int(rng.integers(0, 40)), len(text) - done[r])
            if size:
                parts.append((sequences[r], text[done[r] : done[r] + size]))
                done[r] += size
        if parts:
            driver.run(parts)
    for sequence, wanted in zip(sequences, alone):
        np.testing.assert_array_equal(np.concatenate(sequence.logits), wanted)


def test_long_chunks_change_no_bit() -> None:
    driver = Driver(ReferenceBackend(ArraySource(ARCHITECTURES["plain"])))
    ids = IDS[:600]
    np.testing.assert_array_equal(driver.logits(ids, 512), driver.logits(ids, 16))


def test_threads_change_no_bit() -> None:
    source = ArraySource(ARCHITECTURES["plain"])
    one = Driver(ReferenceBackend(source, threads=1)).logits(IDS[:100], 100)
    two = Driver(ReferenceBackend(source, threads=2)).logits(IDS[:100], 100)
    ReferenceBackend(source, threads=1)
    np.testing.assert_array_equal(one, two)


def test_stale_blocks_do_no_harm() -> None:
    """A row that overflowed to infinity leaves its blocks behind; the next owner must not see them."""
    driver = Driver(ReferenceBackend(ArraySource(ARCHITECTURES["plain"])), n_blocks=8)
    wanted = driver.logits(IDS[:40], 40)
    for layer in range(2):
        for tensor in driver.backend._pools.of_layer(layer).values():  # type: ignore[attr-defined]
            tensor.fill_(float("nan"))
    np.testing.assert_array_equal(driver.logits(IDS[:40], 40), wanted)


def test_blocks_that_a_window_has_left_do_no_harm() -> None:
    driver = Driver(ReferenceBackend(ArraySource(ARCHITECTURES["window"])))
    wanted = driver.logits(IDS[:150], 150)[-1]
    sequence = driver.sequence(150)
    driver.run([(sequence, IDS[:149])])
    seen_from = (149 - 20 + 1) // 16
    driver.backend.write_blocks(0, np.zeros(1, np.int32), np.full(2 * 2 * 16 * 2 * 16, np.nan, "f4").tobytes())
    assert 0 not in sequence.tables[0][seen_from:]
    sequence.tables[0][:seen_from] = -1
    (last,) = driver.run([(sequence, IDS[149:150])])
    np.testing.assert_array_equal(logits_of(last)[0], wanted)


def test_every_want() -> None:
    source = ArraySource(ARCHITECTURES["plain"])
    driver = Driver(ReferenceBackend(source))
    hidden, logits = plain_model.forward(source, IDS[:30])
    state = SamplerState(SamplingParams(temperature=0.0), 0, np.array(IDS[:30], dtype=np.int32), 64)
    rows = [
        StepRow(wants=WANT_SAMPLE, sampler=state, n_logprobs=3),
        StepRow(wants=WANT_LOGITS, logit_ids=np.array([5, 3], dtype=np.int32)),
        StepRow(wants=WANT_LOGITS),
        StepRow(wants=WANT_HIDDEN | WANT_POOLED),
        StepRow(),
    ]
    results = driver.run([(driver.sequence(30), IDS[:30]) for _ in rows], rows)
    assert results[0].tokens.tolist() == [int(np.argmax(logits[-1]))]
    assert results[0].logprobs is not None and results[0].logprobs.rank.tolist() == [1]
    assert results[0].logprobs.top_ids.tolist()[0] == np.argsort(-logits[-1])[:3].tolist()
    np.testing.assert_allclose(logits_of(results[1]), logits[-1][[5, 3]], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(logits_of(results[2]), logits[-1], rtol=1e-4, atol=1e-4)
    assert results[3].hidden is not None
    np.testing.assert_allclose(results[3].hidden, hidden[-1], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(results[3].pooled, results[3].hidden)
    assert not len(results[4].tokens) and results[4].logits is None


def test_drafts_are_verified_in_order() -> None:
    source = ArraySource(ARCHITECTURES["plain"])
    driver = Driver(ReferenceBackend(source))
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=11)

    def fresh() -> SamplerState:
        return SamplerState(params, 0, np.array(IDS[:20], dtype=np.int32), 64)

    plain, sequence = fresh(), driver.sequence(64)
    pending = IDS[:20]
    for _ in range(8):
        (result,) = driver.run([(sequence, pending)], [StepRow(wants=WANT_SAMPLE, sampler=plain)])
        plain.append(result.tokens)
        pending = result.tokens.tolist()
    right = plain.output.tolist()
    drafts = [*right[:4], (right[4] + 1) % 97, right[5]]
    rows = [StepRow(wants=WANT_SAMPLE, sampler=fresh(), n_drafts=6)]
    (result,) = driver.run([(driver.sequence(64), IDS[:20] + drafts)], rows)
    assert result.n_accepted == 4 and result.tokens.tolist() == right[:5]


def test_masks_and_dead_ends() -> None:
    driver = Driver(ReferenceBackend(ArraySource(ARCHITECTURES["plain"])))
    state = SamplerState(SamplingParams(temperature=0.0), 0, np.array(IDS[:5], dtype=np.int32), 64)
    masks = np.zeros((2, 4), dtype=np.uint32)
    masks[0, 1] = 1 << 7
    rows = [StepRow(wants=WANT_SAMPLE, sampler=state, mask_row=r) for r in (0, 1)]
    parts = [(driver.sequence(5), IDS[:5]), (driver.sequence(5), IDS[:5])]
    only, dead = driver.run(parts, rows, masks=masks)
    assert only.tokens.tolist() == [39] and not only.dead_end
    assert dead.dead_end and not len(dead.tokens)


def test_encoders_have_no_cache() -> None:
    layer = altered(BASE, causal=False, pre_norm=False, rope=None, qkv_bias=True, out_bias=True)
    layer = altered(layer, feed_forward=Dense(96, gated=False, activation="gelu"))
    source = ArraySource(
        tiny(
            layer,
            cache_groups=(),
            norm="layer",
            pooling="mean",
            position_embeddings=128,
            embedding_norm=True,
            token_types=2,
        )
    )
    backend = ReferenceBackend(source)
    texts = [IDS[:9], IDS[20:110]]
    builder = StepBuilder(0)
    for text in texts:
        builder.add_alone(StepRow(wants=WANT_POOLED), np.array(text, dtype=np.int32), 0, ())
    for text, result in zip(texts, backend.run(builder.finish()).rows):
        assert result.pooled is not None
        np.testing.assert_allclose(result.pooled, plain_model.forward(source, text)[0].mean(0), atol=1e-4)


def test_blocks_are_copied_and_moved_bit_for_bit() -> None:
    backend = ReferenceBackend(ArraySource(mixed_groups()))
    driver = Driver(backend, n_blocks=16)
    sequence = driver.sequence(40)
    driver.run([(sequence, IDS[:30])])
    twin = driver.sequence(40)
    for group in (0, 1):
        pairs = np.stack([sequence.tables[group], twin.tables[group]], axis=1)
        if group == 0:
            backend.copy_blocks(group, pairs)
        else:
            backend.write_blocks(group, pairs[:, 1], backend.read_blocks(group, pairs[:, 0]))
        bytes_per_block = backend.block_bytes("f32")[group]
        assert len(backend.read_blocks(group, pairs[:, 0])) == 3 * bytes_per_block
    twin.n_done = 30
    (a,), (b,) = driver.run([(sequence, IDS[30:34])]), driver.run([(twin, IDS[30:34])])
    np.testing.assert_array_equal(a.logits, b.logits)


def test_the_factory() -> None:
    source = ArraySource(tiny())
    assert make_backend("reference", source, BackendOptions()).info.name == "reference"
    assert choose("reference") == "reference"
    with pytest.raises(ConfigError, match="has no backend"):
        make_backend("abacus", source, BackendOptions())
    with pytest.raises(ConfigError, match="f32 only"):
        make_backend("reference", source, BackendOptions()).allocate(KvSpec((4,), "int8"))


def test_a_step_that_writes_beyond_its_table_is_refused() -> None:
    driver = Driver(ReferenceBackend(ArraySource(tiny())))
    sequence: Any = driver.sequence(16)
    with pytest.raises((ValueError, IndexError)):
        driver.run([(sequence, IDS[:20])])
