"""A further kind of mixer is a class and an entry in a backend's table: shown by one that nobody else knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from imp_server.backends.base import BLOCK_TOKENS
from imp_server.backends.cpu.lowering import refuse_what_we_lack
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.backends.reference.batch import Batch, LayerCache
from imp_server.backends.reference.mixers import MIXERS, Shared
from imp_server.backends.reference.tiles import linear
from imp_server.core import UnsupportedModel
from imp_server.models.architecture import Architecture, Layer, grouped
from imp_server.models.feed_forwards import Dense
from imp_server.models.mixers import CachedPart, CacheKind, Mixer, Shapes

from tests.backends.array_source import BASE, ArraySource, tiny
from tests.backends.driver import Driver

IDS = np.random.default_rng(3).integers(0, 97, 70).tolist()


@dataclass(frozen=True, slots=True)
class Before(Mixer):
    """A projection of what the position `distance` places before had; nothing where there is none."""

    distance: int

    @property
    def cache(self) -> tuple[CacheKind, int]:
        return "window", self.distance + 1

    def cached(self) -> tuple[CachedPart, ...]:
        return (CachedPart("x", 1, 64),)

    def tensors(self, width: int) -> Shapes:
        return {"turn": (width, width)}


class Unknown(Before):
    """One that no table has."""


class BeforeForward:
    def __init__(self, mixer: Before, tensors: dict[str, torch.Tensor], shared: Shared) -> None:
        self._distance, self._turn = mixer.distance, tensors["turn"]

    def __call__(self, x: torch.Tensor, batch: Batch, cache: LayerCache) -> torch.Tensor:
        cache.write(x=x[:, None])
        seen = torch.zeros_like(x)
        for row, span in enumerate(batch.spans()):
            kept = cache.read(row, span, self._distance + 1)
            for flat in range(span.begin, span.end):
                position = span.start + flat - span.begin - self._distance
                if position >= 0:
                    seen[flat] = kept.parts["x"][position - kept.first, 0]
        return linear(seen, self._turn)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[type, type] = MIXERS  # type: ignore[assignment]
    monkeypatch.setitem(kinds, Before, BeforeForward)


def with_before() -> Architecture:
    """One layer of each kind."""
    layers, groups = grouped([BASE, Layer(Before(3), Dense(96))])
    return tiny(layers=layers, cache_groups=groups)


def test_it_runs_beside_attention_and_no_chunk_changes_a_bit() -> None:
    driver = Driver(ReferenceBackend(ArraySource(with_before())))
    whole = driver.logits(IDS, len(IDS))
    for chunk in (1, 7):
        np.testing.assert_array_equal(driver.logits(IDS, chunk), whole)
    changed = driver.logits([*IDS[:-4], (IDS[-4] + 1) % 97, *IDS[-3:]], len(IDS))
    assert not np.array_equal(changed[-1], whole[-1])


def test_it_does_what_it_says() -> None:
    """A model of this mixer alone, without a feed-forward's share: the logits follow by hand."""
    layers, groups = grouped([Layer(Before(2), Dense(96))])
    source = ArraySource(tiny(n_layers=1, layers=layers, cache_groups=groups))
    source.tensors["layers.0.down"][:] = 0

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * source.tensors[name]

    x = source.tensors["embedding"][IDS]
    shifted = np.concatenate([np.zeros((2, 64)), norm(x, "layers.0.attn_norm")[:-2]])
    wanted = norm(x + shifted @ source.tensors["layers.0.turn"].T, "final_norm") @ source.tensors["head"].T
    got = Driver(ReferenceBackend(source)).logits(IDS, 30)
    assert np.abs(got - wanted).max() <= 2e-5 * np.abs(wanted).max()


def test_its_blocks_have_the_size_that_it_says() -> None:
    backend = ReferenceBackend(ArraySource(with_before()))
    assert backend.block_bytes("f32") == (2 * 2 * 16 * BLOCK_TOKENS * 4, 64 * BLOCK_TOKENS * 4)


def test_a_backend_without_it_refuses_it_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="can't run Before layers"):
        refuse_what_we_lack(with_before())
    with pytest.raises(UnsupportedModel, match="no Unknown layers"):
        ReferenceBackend(_Without(tiny()))


class _Without(ArraySource):
    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        layers = tuple(Layer(Unknown(1), layer.feed_forward) for layer in architecture.layers)
        self.architecture = tiny(layers=layers, cache_groups=architecture.cache_groups)
