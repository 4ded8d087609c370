"""What the kernels can't execute is refused by name, in one line that says what to do, before anything is packed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from imp_server.backends.cpu.lowering import refuse_what_we_lack
from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture
from imp_server.models.feed_forwards import Dense, DenseAndExperts, Experts
from imp_server.models.mixers import Attention, LatentAttention
from imp_server.models.rotation import Rope

from tests.backends.cpu.synthetic_models import VARIANTS

PLAIN = VARIANTS[0].architecture
MIXER = PLAIN.layers[0].mixer
assert isinstance(MIXER, Attention)
LATENT = LatentAttention(n_heads=4, rank=32, still_size=16, value_size=32, rope=Rope(dims=16))


def in_layers(**changes: Any) -> Architecture:
    return replace(PLAIN, layers=tuple(replace(layer, **changes) for layer in PLAIN.layers))


LACKING = {
    "encoders": replace(PLAIN, cache_groups=()),
    "learned positions": replace(PLAIN, position_embeddings=8),
    "norm follows the sum": in_layers(pre_norm=False),
    "halves side by side with a norm": in_layers(parallel=True, post_norm=True),
    "around the mixer beside halves": in_layers(parallel=True, laurel=8),
    "9 streams": replace(PLAIN, streams=9),
    "differ in size": replace(
        PLAIN, layers=(replace(PLAIN.layers[0], embedding=16), *in_layers(embedding=8).layers[1:])
    ),
    "value heads of another size": in_layers(mixer=replace(MIXER, value_head_size=2 * MIXER.head_size)),
    "heads of 24": in_layers(mixer=replace(MIXER, head_size=24)),
    "isn't causal": in_layers(mixer=replace(MIXER, causal=False)),
    "gated attention": in_layers(mixer=replace(MIXER, gated=True)),
    "latents, turned keys and values of 40": in_layers(mixer=replace(LATENT, rank=40)),
    "latents of 608": in_layers(mixer=replace(LATENT, rank=608)),
    "swiglu_clamped without a gate": in_layers(feed_forward=Dense(96, gated=False, activation="swiglu_clamped")),
    "cut-off of gates": in_layers(feed_forward=Dense(96, bias=True, cutoff=1.0)),
    "experts of 24": in_layers(feed_forward=Experts(4, 2, 24)),
    "experts in a model 40 wide": replace(in_layers(feed_forward=Experts(4, 2, 32)), width=40),
    "biases beside experts": in_layers(feed_forward=DenseAndExperts(Dense(96, bias=True), Experts(4, 2, 32))),
}


@pytest.mark.parametrize("words", LACKING)
def test_it_is_named(words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        refuse_what_we_lack(LACKING[words])
    told = str(caught.value)
    assert words in told and "engine.backend=reference" in told and "\n" not in told


def test_nothing_else_is_refused() -> None:
    for variant in VARIANTS:
        refuse_what_we_lack(variant.architecture)
