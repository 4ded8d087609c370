"""The whole forward by plain operations against the reference: every part of a description, every format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from imp_server.backends.cuda.backend import CudaBackend
from imp_server.backends.cuda.device import CpuDevice
from imp_server.backends.cuda.lowering import refuse_what_we_lack
from imp_server.backends.cuda.rectangles import MAX_WIDTH
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture, grouped
from imp_server.models.feed_forwards import Dense, DenseAndExperts, Experts
from imp_server.models.mixers import Attention

from tests.backends.array_source import BASE, ArraySource, altered, tiny
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource
from tests.backends.cuda.running import PlainCuda
from tests.backends.driver import Driver
from tests.backends.test_reference import ARCHITECTURES

IDS = np.random.default_rng(9).integers(0, 97, 600).tolist()
TOLERANCE = 2e-5


def sharing() -> Architecture:
    """The third layer sees the keys and values of the first; each id says something to each layer."""
    layers, groups = grouped([altered(BASE, embedding=8, scaled=True)] * 2)
    attention = layers[0].mixer
    assert isinstance(attention, Attention)
    mixer = replace(attention, shares=0)
    third = replace(layers[0], mixer=mixer)
    groups = (replace(groups[0], layers=(0, 1, 2)),)
    return tiny(n_layers=3, layers=(*layers, third), cache_groups=groups, layer_vocab_size=80, residual_scale=0.7)


OTHERS: dict[str, Architecture] = {
    "chunks": tiny(altered(BASE, chunk=24)),
    "dense and experts": tiny(altered(BASE, feed_forward=DenseAndExperts(Dense(96), Experts(6, 2, 32)))),
    "sparse mixer": tiny(altered(BASE, feed_forward=Experts(6, 2, 32, gating="sparse_mixer", jitter=0.05))),
    "on the input": tiny(altered(BASE, feed_forward=Experts(6, 2, 32, weights_on_input=True))),
    "bare norms": tiny(altered(BASE, qk_norm="per_head", bare_qk_norm=True, v_norm=True, keys_are_values=True)),
    "shared": sharing(),
    "streams": tiny(
        altered(BASE, embedding=8, laurel=8, post_norm=True, cutoff=0.3), streams=3, layer_vocab_size=80, n_layers=3
    ),
    "around": tiny(altered(BASE, laurel=8), residual_scale=0.6),
}
KNOWN = {name: a for name, a in (ARCHITECTURES | OTHERS).items() if not a.position_embeddings}


def worst(source: Any, ids: list[int], chunk: int, **options: Any) -> float:
    """Largest difference of a logit, in parts of the largest one."""
    want = Driver(ReferenceBackend(source)).logits(ids, len(ids))
    got = Driver(PlainCuda(source, **options)).logits(ids, chunk)
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("name", KNOWN)
def test_equals_the_reference(name: str) -> None:
    assert worst(ArraySource(KNOWN[name]), IDS[:90], 7 if name != "experts" else 90) <= TOLERANCE


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_equals_the_reference_in_every_format(variant: Any) -> None:
    source = SyntheticSource(variant.architecture, variant.types)
    ids = [i % variant.architecture.vocab_size for i in IDS[:50]]
    assert worst(source, ids, 17) <= TOLERANCE


def test_a_chunk_longer_than_a_rectangle_is_run_in_pieces() -> None:
    ids = IDS[: MAX_WIDTH + 40]
    assert worst(ArraySource(tiny()), ids, len(ids)) <= TOLERANCE


def test_rows_of_any_width_share_a_step() -> None:
    source = ArraySource(ARCHITECTURES["mixed"])
    driver = Driver(PlainCuda(source))
    alone = Driver(ReferenceBackend(source))
    texts = [IDS[9 * r : 9 * r + 5 + 13 * r] for r in range(5)]
    lanes = [driver.sequence(len(text)) for text in texts]
    done = [0] * len(texts)
    rng = np.random.default_rng(1)
    while any(n < len(text) for n, text in zip(done, texts)):
        parts = []
        for r, text in enumerate(texts):
            part = text[done[r] : done[r] + int(rng.integers(0, 30))]
            done[r] += len(part)
            parts += [(lanes[r], part)] if part else []
        if parts:
            driver.run(parts)
    for lane, text in zip(lanes, texts):
        want = alone.logits(text, len(text))
        assert np.abs(np.concatenate(lane.logits) - want).max() <= TOLERANCE * np.abs(want).max()


def test_what_no_operation_has_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="learned positions"):
        refuse_what_we_lack(ARCHITECTURES["no_rope"])
    for lacking, architecture in (
        ("several streams", tiny(streams=4)),
        ("second ways around", tiny(altered(BASE, laurel=8, parallel=True))),
        ("cut gates", tiny(altered(BASE, cutoff=1.0, activation="swiglu_clamped"))),
    ):
        with pytest.raises(UnsupportedModel, match=lacking):
            refuse_what_we_lack(architecture)
    with pytest.raises(UnsupportedModel, match="isn't causal"):
        CudaBackend(ArraySource(tiny(altered(BASE, causal=False))), CpuDevice())
