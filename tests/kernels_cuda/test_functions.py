"""The emulation's functions of device.h against torch, numpy and arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from imp_server.backends.cuda.launching import KernelSource

from analysis.device_table import AWKWARD as TABLED
from tests.kernels_cuda.emulated import Emulator
from tests.kernels_cuda.made_up import normal, nothing, seeded

SOURCE = KernelSource("functions.cu")
AWKWARD = (*TABLED, 65519.9, 1e-40)


def emulator(sums: str = "exact") -> Emulator:
    return Emulator(order="random", sums=sums)  # type: ignore[arg-type]


def same(ours: torch.Tensor, twin: torch.Tensor) -> bool:
    """With NaNs in the same places."""
    return torch.equal(ours.nan_to_num(123.0), twin.nan_to_num(123.0)) and torch.equal(ours.isnan(), twin.isnan())


def test_conversions() -> None:
    """To nearest, ties to even; e4m3 saturates, as cvt.rn.satfinite does."""
    random = torch.randint(-(2**31), 2**31, (3000,), generator=seeded(1)).int().view(torch.float32)
    near = torch.randint(0, 2**16, (3000,), generator=seeded(2)).short().view(torch.float16).float() * (1 + 2.0**-11)
    x = torch.cat([torch.tensor(AWKWARD), random, near, normal(seeded(3), 2000) * 100])
    n = len(x)
    b, h = torch.zeros(n, dtype=torch.bfloat16), torch.zeros(n, dtype=torch.float16)
    e, whole = torch.zeros(n, dtype=torch.float8_e4m3fn), torch.zeros(n, dtype=torch.int32)
    back = [nothing(n) for _ in range(3)]
    emulator().launch(SOURCE, "convert", (1, 1, 1), 64, [x, n, b, h, e, *back, whole])
    assert same(b.float(), x.bfloat16().float()) and same(back[0], b.float())
    assert same(h.float(), x.half().float()) and same(back[1], h.float())
    assert same(e.float(), x.clamp(-448, 448).to(torch.float8_e4m3fn).float()) and same(back[2], e.float())
    wide = np.nan_to_num(np.rint(x.double().numpy()), nan=0.0)
    assert whole.tolist() == np.clip(wide, -(2.0**31), 2.0**31 - 1).astype(np.int64).tolist()


def test_approximate_functions_are_off_by_what_the_manual_allows() -> None:
    x = torch.cat([normal(seeded(4), 4000) * 10, torch.tensor([0.0, 1.0, 2.0, -127.0, -140.0, 1e-40])])
    made = [nothing(len(x)) for _ in range(4)]
    emulator().launch(SOURCE, "approximate", (1, 1, 1), 64, [x, len(x), *made])
    wide = x.double()
    wide[-1] = 0.0  # too small: taken as zero
    exact = [torch.exp2(wide), torch.log2(wide.abs()), 1 / wide, 1 / wide.abs().sqrt()]
    for ours, twin, bound in zip(made, exact, (2.0**-21, 2.0**-21, 2.0**-22, 2.0**-21)):
        usual = torch.isfinite(twin) & (twin.abs() > 2.0**-125)
        error = (ours.double() - twin).abs()[usual] / twin.abs()[usual].clamp_min(1.0 if twin is exact[1] else 0.0)
        assert 0 < float(error.max()) < bound
        assert torch.equal(ours[~usual & (twin.abs() > 1)].double(), twin[~usual & (twin.abs() > 1)])
    assert made[0][-2] == 0.0


def test_bits() -> None:
    g = seeded(5)
    a, b = (torch.randint(-(2**31), 2**31, (32,), generator=g).int() for _ in range(2))
    made = [torch.zeros(32, dtype=torch.int32) for _ in range(5)]
    emulator().launch(SOURCE, "bits", (1, 1, 1), 32, [a, b, *made])
    left, right, bytes_, dots, unsigned_dots = (x.tolist() for x in made)
    for i in range(32):
        x, y = int(a[i]) & 0xFFFFFFFF, int(b[i]) & 0xFFFFFFFF
        assert left[i] & 0xFFFFFFFF == (x << (i + 10)) & 0xFFFFFFFF
        assert right[i] & 0xFFFFFFFF == x >> (i + 10)
        whole = (y << 32 | x).to_bytes(8, "little")
        picks = [(i * 0x1357) >> 4 * k & 15 for k in range(4)]
        out = [(255 if whole[p & 7] & 128 else 0) if p & 8 else whole[p & 7] for p in picks]
        assert (bytes_[i] & 0xFFFFFFFF).to_bytes(4, "little") == bytes(out)
        signed = np.array([x, y], dtype="<u4").view(np.int8).reshape(2, 4).astype(int)
        assert dots[i] == int((signed[0] * signed[1]).sum()) + i
        assert unsigned_dots[i] == int(((signed[0] & 255) * signed[1]).sum()) - i


def test_the_lesser_of_a_number_and_a_nan_is_the_number() -> None:
    nan = float("nan")
    a = torch.tensor([nan, 1.0, nan, 0.0, -0.0, 3.0, -float("inf"), 2.0] * 4)
    b = torch.tensor([1.0, nan, nan, -0.0, 0.0, 4.0, 1.0, 2.0] * 4)
    low, high = nothing(32), nothing(32)
    emulator().launch(SOURCE, "extremes", (1, 1, 1), 32, [a, b, low, high])
    assert str(low[:8].tolist()) == "[1.0, 1.0, nan, -0.0, -0.0, 3.0, -inf, 2.0]"
    assert str(high[:8].tolist()) == "[1.0, 1.0, nan, 0.0, 0.0, 4.0, 1.0, 2.0]"


@pytest.mark.parametrize("sums, bound", [("exact", 1e-7), ("truncated", 3e-6)])
def test_a_product_of_tensor_cores(sums: str, bound: float) -> None:
    """Fragments where the manual has them: through ldmatrix and by hand, of rows and of columns."""
    g = seeded(6)
    a, b, d = normal(g, 16, 16).bfloat16(), normal(g, 16, 8).bfloat16(), normal(g, 16, 8)
    exact = a.double() @ b.double() + d.double()
    again, before = nothing(16, 8), d.clone()
    emulator(sums).launch(SOURCE, "product", (1, 1, 1), 32, [a, b, b.T.contiguous(), d, again])
    for ours in (d, again):
        assert float((ours - exact).abs().max() / exact.abs().max()) < bound
    if sums == "exact":
        assert torch.equal(d, exact.float()) and torch.equal(again, d)
    assert not torch.equal(before, d)
