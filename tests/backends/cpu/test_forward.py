"""The native forward against its twin, bit by bit, on models that use every part of the description."""

from __future__ import annotations

import numpy as np
import pytest
from imp_server.backends.cpu.twin_model import TwinModel
from imp_server.native import usable_isas

from tests.backends.cpu.running import logits_in_chunks, open_backend
from tests.backends.cpu.synthetic_models import VARIANTS, SyntheticSource, Variant

# AVX-VNNI differs from AVX2 in the dot products alone, which tests/kernels hold against their twin.
ISAS = [isa for isa in usable_isas() if isa != "avxvnni"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_logits_equal_the_twins(variant: Variant, kv: str, isa: str) -> None:
    source = SyntheticSource(variant.architecture, variant.types)
    ids = np.random.default_rng(1).integers(0, variant.architecture.vocab_size, 83)
    backend = open_backend(source, isa=isa, kv=kv)
    got = logits_in_chunks(backend, ids, 83)
    want = TwinModel(source, kv, has_fma=isa != "portable").logits(ids)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    assert (got.argmax(1) == want.argmax(1)).all()
    backend.close()


@pytest.mark.parametrize(
    "variant",
    [VARIANTS[0], *(pytest.param(VARIANTS[i], marks=pytest.mark.slow) for i in (3, -2))],
    ids=lambda v: v.name,
)
def test_long_contexts_merge_spans_like_the_twin(variant: Variant) -> None:
    """More than two spans of 512, so that the order of merging shows."""
    source = SyntheticSource(variant.architecture, variant.types)
    ids = np.random.default_rng(2).integers(0, variant.architecture.vocab_size, 1100)
    backend = open_backend(source, n_blocks=80)
    got = logits_in_chunks(backend, ids, 512)
    want = TwinModel(source).logits(ids)
    np.testing.assert_array_equal(got, want)
    backend.close()
