"""Every kernel of every build against torch in float64, within the error that its roundings allow."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from imp_server.backends.base import WANT_SAMPLE, StepRow
from imp_server.backends.cpu import abi
from imp_server.backends.cpu.layouts import FLOAT_LAYOUTS, LAYOUTS
from imp_server.backends.cpu.sampling import NativeSampling
from imp_server.backends.cpu.twin import TwinMatrix
from imp_server.core import SamplingParams
from imp_server.decode.philox import gumbel
from imp_server.decode.state import SamplerState
from imp_server.native import usable_isas
from imp_server.weights.ggml_types import BY_NAME

from tests.backends.cpu.synthetic_models import random_tensor
from tests.kernels import torch_twins as twins
from tests.kernels.single_kernels import ACTIVATIONS, KV, PackedMatrix, activate, attend, normalise, rotate
from tests.kernels.torch_twins import Rule, Twin

pytestmark = pytest.mark.parametrize("isa", usable_isas())
SIZES = [1e-18, 1e-4, 1.0, 1e4, 1e15]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_within(got: torch.Tensor, twin: Twin) -> None:
    assert torch.isfinite(got).all()
    worst = ((got.double() - twin.value).abs() / twin.bound.clamp_min(1e-300)).max()
    assert worst <= 1, f"{float(worst):.2f} times the bound"


def noise(*shape: int, seed: int = 0, size: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * size


@pytest.mark.parametrize("type_name", [*LAYOUTS, *FLOAT_LAYOUTS])
def test_products(isa: str, type_name: str) -> None:
    """GEMV and GEMM: 1 to 17 rows, outputs that fill no panel, inputs that fill no block where the type allows it."""
    block = BY_NAME[type_name].block
    for n_out, n_in, n_rows in (
        (1, max(block, 32), 1),
        (35, 3 * max(block, 32), 8),
        (70, 2 * block if block > 1 else 83, 17),
    ):
        raw = random_tensor(type_name, (n_out, n_in), np.random.default_rng(n_out))
        packed, twin = PackedMatrix(raw, isa), TwinMatrix(raw)
        for size in (1e-25, 1.0, 1e20):
            x = noise(n_rows, n_in, seed=n_rows, size=size)
            assert_within(packed.multiply(x), twins.product(twin, x))


def test_products_of_outliers(isa: str) -> None:
    """One input a million times its block, rows of zeros, rows of one value."""
    raw = random_tensor("Q4_1", (33, 96), np.random.default_rng(1))
    x = noise(9, 96)
    x[0] = 0
    x[1] = 3
    x[2:, 40] *= 1e6
    assert_within(PackedMatrix(raw, isa).multiply(x), twins.product(TwinMatrix(raw), x))


def test_embedding_rows(isa: str) -> None:
    """Scale times (value - zero), plus a minimum, is the same in both but for the roundings of those two."""
    for type_name in ("Q4_0", "Q4_1", "Q8_0", "Q6_K", "BF16"):
        raw = random_tensor(type_name, (37, 256), np.random.default_rng(2))
        got, matrix = PackedMatrix(raw, isa).rows(5, 32), TwinMatrix(raw)
        if matrix.floats is not None:
            assert torch.equal(
                got, torch.from_numpy(raw.data.view(np.int16).reshape(37, 256)[5:]).view(torch.bfloat16).float()
            )
            continue
        values = torch.from_numpy(matrix.values).double().reshape(37, 8, matrix.groups, -1)
        scaled = torch.from_numpy(matrix.scale).double()[..., None] * values
        minimum = torch.zeros(()) if matrix.minimum is None else torch.from_numpy(matrix.minimum).double()[..., None]
        want = (scaled + minimum).reshape(37, 256)[5:]
        assert_within(got, Twin(want, 2 * twins.EPS * (scaled.abs() + minimum.abs()).reshape(37, 256)[5:]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n", [1, 15, 16, 33, 576, 2048])
def test_norms(isa: str, n: int, size: float) -> None:
    x, weight, bias = noise(3, n, size=size), 1 + noise(n, seed=1, size=0.2), noise(n, seed=2)
    x[1] = size
    eps = 1e-5
    assert_within(normalise(isa, "rms", eps, weight, None, x), twins.norm(x, weight, None, eps, centred=False))
    if n > 1:
        for b in (None, bias):
            assert_within(
                normalise(isa, "layer", eps, weight, b, x[:1]), twins.norm(x[:1], weight, b, eps, centred=True)
            )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("head_size, dims", [(32, 32), (48, 16), (64, 64), (80, 64), (128, 128), (256, 256)])
def test_rotation(isa: str, head_size: int, dims: int, interleaved: bool) -> None:
    angles = torch.arange(5)[:, None] * 1e4 ** (-torch.arange(0, dims, 2) / dims)
    for size in SIZES:
        heads = noise(5, head_size, size=size)
        got = rotate(isa, heads, angles.cos(), angles.sin(), interleaved=interleaved)
        assert_within(got, twins.rotated(heads, angles.cos(), angles.sin(), interleaved=interleaved))
        assert torch.equal(got[:, dims:], heads[:, dims:])


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(isa: str, kind: str) -> None:
    steps = torch.linspace(-120, 120, 4000)
    gate = torch.cat([steps, noise(48), noise(48, size=1e-30), torch.tensor([0.0, -0.0] * 8), noise(48, size=1e15)])
    assert_within(activate(isa, kind, gate), twins.activated(kind, gate))


def check_attention(
    isa: str,
    kv: str,
    rule: Rule,
    head_size: int,
    positions: list[int],
    n_positions: int,
    size: float = 1.0,
    sinks: torch.Tensor | None = None,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    q = noise(len(positions), head_size, seed=seed, size=size)
    keys, values = (noise(n_positions, head_size, seed=seed + i) for i in (1, 2))
    at = torch.tensor(positions)
    got = attend(isa, rule, kv, q, at, keys, values, sinks)
    assert_within(got, twins.attention(rule, kv, q, at, keys, values, sinks))
    return q, keys, values, got


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("head_size", [32, 48, 64, 80, 96, 128, 256])
def test_attention_over_head_sizes(isa: str, kv: str, head_size: int) -> None:
    rule = Rule(head_size**-0.5, 0.0, 0)
    check_attention(isa, kv, rule, head_size, [0, 1, 15, 16, 17, 63, 64, 65, 99, 100, 101, 102, 102], 103)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("n", [*range(1, 14), 24, 25])
def test_attention_of_any_number_of_queries_and_each_alone(isa: str, kv: str, n: int) -> None:
    """All widths of tile; a query's numbers don't know of its neighbours."""
    positions = [130 + i // 3 for i in range(n)]
    rule = Rule(0.125, 0.0, 0)
    q, keys, values, got = check_attention(isa, kv, rule, 64, positions, 140, seed=n)
    alone = [
        attend(isa, rule, kv, q[i : i + 1].contiguous(), torch.tensor(positions[i : i + 1]), keys, values, None)
        for i in range(n)
    ]
    assert torch.equal(got, torch.cat(alone))


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("rule", [Rule(0.1, 0.0, 0), Rule(0.1, 20.0, 0), Rule(0.1, 0.0, 40), Rule(0.1, 5.0, 700)])
def test_attention_over_spans_windows_caps_and_sinks(isa: str, kv: str, rule: Rule) -> None:
    positions = [3, 511, 512, 513, 900, 1023, 1024, 1100]
    for sinks in (None, noise(8, seed=5, size=3)):
        check_attention(isa, kv, rule, 64, positions, 1101, sinks=sinks)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("size", [1e-20, 1e-3, 30.0, 1e3])
def test_attention_of_tiny_and_huge_scores(isa: str, kv: str, size: float) -> None:
    """From all positions alike to one that takes everything."""
    check_attention(isa, kv, Rule(0.125, 0.0, 0), 64, [200, 201, 299], 300, size=size)


def test_the_best_id(isa: str) -> None:
    """The head's product and argmax, ties to the lowest id."""
    raw = random_tensor("Q8_0", (331, 64), np.random.default_rng(4))
    packed, twin = PackedMatrix(raw, isa), TwinMatrix(raw)
    for seed in range(8):
        x = noise(1, 64, seed=seed)
        logits, (value, bound) = packed.multiply(x)[0], twins.product(twin, x)
        best = sampled(isa, logits, SamplingParams(temperature=0.0))
        assert best == int(logits.argmax())
        assert value[0, best] >= (value - bound).max() - bound[0, best]
    tied = torch.zeros(331)
    tied[[300, 17, 250]] = 2.5
    assert sampled(isa, tied, SamplingParams(temperature=0.0)) == 17


def sampled(isa: str, logits: torch.Tensor, params: SamplingParams) -> int:
    state = SamplerState(params, 0, np.array([1, 2], dtype=np.int32), 16)
    plan, own = abi.SamplerPlan(), logits.numpy()[None].copy()
    sampling = NativeSampling(plan, StepRow(WANT_SAMPLE, 0, state), state, np.empty(0, np.int32), None, own.shape[1])
    abi.library(isa).imp_cpu_sample(ctypes.byref(plan), own.ctypes.data, own.shape[1])
    return int(sampling.result().tokens[0])


@pytest.mark.parametrize("spread", [1e-6, 1.0, 8.0, 1e4])
@pytest.mark.parametrize(
    "temperature, top_k, top_p, min_p",
    [(1.0, 0, 1.0, 0.0), (0.7, 40, 1.0, 0.0), (1.3, 0, 0.9, 0.0), (2.0, 50, 0.8, 0.05)],
)
def test_sampling(isa: str, spread: float, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """The draw is the best of log p and the position's noise, unless two are closer than float64 sums tell apart."""
    for seed in range(6):
        logits = noise(331, seed=seed, size=spread)
        params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
        drawn = sampled(isa, logits, params)
        draws = twins.drawable(logits, temperature, top_k, top_p, min_p) + torch.from_numpy(
            gumbel(seed, 0, 0, np.arange(331))
        )
        assert draws[drawn] >= draws.max() - 1e-9
