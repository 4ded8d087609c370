"""Keys and values in each type of the cache: what is read is what was written, within the bound of the type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from imp_server.backends.base import KvSpec
from imp_server.backends.cuda.operations import KvPart, LayerKv
from imp_server.backends.cuda.plain.cache import gather, write
from imp_server.backends.kv_layout import kv_layouts
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.core import ConfigError

from tests.backends.array_source import ArraySource, tiny
from tests.backends.cuda.running import PlainCuda
from tests.backends.driver import Driver

BOUNDS = {"f32": 1e-5, "bf16": 2e-2, "int8": 2e-2, "fp8": 1.5e-1, "int4": 4e-1, "nvfp4": 5e-1}
"""Of a logit, in parts of the largest one, on a tiny random model."""


def layer(kv: str, n_blocks: int = 5) -> LayerKv:
    (layout,) = kv_layouts(tiny(), kv)
    place = layout[1]
    parts = [
        KvPart(
            p.part.heads,
            p.part.size,
            place.offset + p.values,
            place.offset + p.scales if p.scales >= 0 else -1,
            p.stride,
        )
        for p in place.parts
    ]
    pool = torch.full((n_blocks + 1, layout.block_bytes), 0xFF, dtype=torch.uint8)
    return LayerKv(pool, kv, 0, (parts[0], parts[1]))  # type: ignore[arg-type]


def kept(kv: str, x: torch.Tensor) -> torch.Tensor:
    """x [16, heads, size] written to block 2 and read."""
    own = layer(kv)
    write(own, 1, torch.full((16,), 2), torch.arange(16), x)
    return gather(own, 1, torch.tensor([[2]], dtype=torch.int32))[0].transpose(0, 1)


@pytest.mark.parametrize(("kv", "relative"), [("f32", 0.0), ("bf16", 2.0**-8), ("fp8", 2.0**-4)])
def test_floats_keep_their_relative_error(kv: str, relative: float) -> None:
    x = torch.randn(16, 2, 16) * 4
    x[0, 0, 0] = 0.0
    least = 2.0**-10 if kv == "fp8" else 0.0  # half of the smallest step
    assert bool(((kept(kv, x) - x).abs() <= relative * x.abs() + least).all())


def test_int8_is_off_by_half_a_step_of_its_vector() -> None:
    x = torch.randn(16, 2, 16) * torch.logspace(-3, 3, 16)[:, None, None]
    x[3] = 0.0
    step = x.abs().amax(-1, keepdim=True) / 127
    assert bool(((kept("int8", x) - x).abs() <= 0.5001 * step).all())


def test_fp8_takes_what_is_too_large_as_its_largest() -> None:
    x = torch.zeros(16, 2, 16)
    x[0, 0, :3] = torch.tensor([500.0, -1e6, 448.0])
    assert kept("fp8", x)[0, 0, :3].tolist() == [448.0, -448.0, 448.0]


def test_int4_is_off_by_half_a_step_of_its_32_neighbours() -> None:
    x = torch.randn(16, 2, 16) * torch.logspace(-2, 4, 16)[:, None, None]
    x[3] = 0.0
    step = x.abs().amax(-1, keepdim=True) / 7
    error = (kept("int4", x) - x).abs()
    assert bool((error <= 0.502 * step).all()) and bool((error.amax(-1) > 0.3 * step[..., 0])[x[:, :, 0] != 0].any())


def test_nvfp4_is_off_by_a_share_of_its_16_neighbours() -> None:
    x = torch.randn(16, 2, 16) * torch.logspace(-4, 2.5, 16)[:, None, None]
    x[3] = 0.0
    top = x.abs().amax(-1, keepdim=True)
    assert bool(((kept("nvfp4", x) - x).abs() <= (0.18 * top).clamp_min(0.006)).all())


def test_nvfp4_takes_the_nearest_of_its_numbers() -> None:
    """With a scale of 1, worked out by hand."""
    x = torch.zeros(16, 2, 16)
    given = [6.0, 0.25, 0.26, 0.75, 1.25, 1.3, 1.75, 2.5, 2.6, 3.5, 5.0, -5.1, -0.2, -2.4]
    x[0, 0, : len(given)] = torch.tensor(given)
    found = kept("nvfp4", x)[0, 0, : len(given)].tolist()
    assert found == [6.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.0, 2.0, 3.0, 4.0, 4.0, -6.0, -0.0, -2.0]


@pytest.mark.parametrize(("kv", "n_bytes"), [("int8", 16 + 4), ("int4", 8 + 2), ("nvfp4", 8 + 1)])
def test_nothing_else_is_written(kv: str, n_bytes: int) -> None:
    own = layer(kv)
    before = own.pool.clone()
    write(own, 0, torch.tensor([1]), torch.tensor([3]), torch.randn(1, 2, 16))
    changed = (own.pool != before).nonzero()
    assert set(changed[:, 0].tolist()) == {1} and len(changed) <= 2 * n_bytes


def test_a_strangers_nan_is_read_as_nothing() -> None:
    own = layer("bf16")  # all bits set: every number is a NaN
    found = gather(own, 0, torch.tensor([[-1, -1]], dtype=torch.int32))
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("kv", BOUNDS)
def test_a_model_stays_within_its_bound(kv: str) -> None:
    source = ArraySource(tiny())
    ids = np.random.default_rng(4).integers(0, 97, 80).tolist()
    want = Driver(ReferenceBackend(source)).logits(ids, 80)
    got = Driver(PlainCuda(source, kv=kv)).logits(ids, 9)
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error <= BOUNDS[kv]
    assert error >= BOUNDS[kv] / 100, "the bound says nothing"


@pytest.mark.parametrize("kv", ["mxfp4", "f16"])
def test_types_that_there_are_none_of_are_refused_by_name(kv: str) -> None:
    backend = PlainCuda(ArraySource(tiny()))
    with pytest.raises(ConfigError, match=f"kv_cache.dtype={kv}: the cuda backend has"):
        backend.block_bytes(kv)
    with pytest.raises(ConfigError, match=kv):
        backend.allocate(KvSpec((4,), kv))
