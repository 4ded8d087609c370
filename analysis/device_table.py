"""Every function of kernels/cuda/device.h on given numbers: what the emulation makes of them, and what a card does.

.venv/bin/python -m analysis.device_table      writes the table (needs a C++ compiler); gpu_check.py compares
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from imp_server.backends.cuda.launching import Argument, KernelSource, Launcher

SOURCE = KernelSource("functions.cu")
TABLE = Path(__file__).resolve().parent / "results" / "device_table.npz"
AWKWARD: tuple[float, ...] = (
    0.0,
    -0.0,
    float("inf"),
    -float("inf"),
    float("nan"),
    448.0,
    464.0,
    463.9,
    479.9,
    -500.0,
    65504.0,
    65520.0,
)
AWKWARD += (2.0**-6, 2.0**-9, 2.0**-10, 2.0**-14, 2.0**-24, 2.0**-25, 3.4e38, 2147483648.0, -3e9, 0.5, 1.5, 2.5)
Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """`outputs`: by name, empty tensors that are written, and by how much they may differ relatively; 0 = not a bit."""

    entry: str
    n_threads: int
    inputs: tuple[Argument, ...]
    outputs: dict[str, tuple[Tensor, float]]


def calls() -> list[Call]:
    """The same each time."""
    rng = np.random.default_rng(5)

    def floats(n: int, times: float = 1.0) -> Tensor:
        return torch.from_numpy((times * rng.standard_normal(n)).astype(np.float32))

    def words(n: int) -> Tensor:
        return torch.from_numpy(rng.integers(-(2**31), 2**31, n, dtype=np.int64).astype(np.int32))

    def made(dtype: torch.dtype, *shape: int) -> tuple[Tensor, float]:
        return torch.zeros(shape, dtype=dtype), 0.0

    def near(bound: float, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, float]:
        return torch.zeros(n, dtype=dtype), bound

    mixed = torch.cat([torch.tensor(AWKWARD), words(500).view(torch.float32), floats(300, 100)])
    usual, n = torch.cat([floats(500, 10), torch.tensor([0.5, 1.0, 2.0, 7.0])]), len(mixed)
    a, b, d = floats(256).bfloat16().view(16, 16), floats(128).bfloat16().view(16, 8), floats(128).view(16, 8)
    nan = float("nan")
    left = torch.tensor([nan, 1.0, nan, 0.0, -0.0, 3.0, -float("inf"), 2.0] * 4)
    right = torch.tensor([1.0, nan, nan, -0.0, 0.0, 4.0, 1.0, 2.0] * 4)
    conversions = {"bf16": made(torch.int16, n), "f16": made(torch.int16, n), "e4m3": made(torch.uint8, n)}
    conversions |= {name: made(torch.float32, n) for name in ("of bf16", "of f16", "of e4m3")}
    found = [
        Call("convert", 64, (mixed, n), conversions | {"whole": made(torch.int32, n)}),
        Call(
            "approximate",
            64,
            (usual, len(usual)),
            {
                "exp2": near(2.0**-20, len(usual)),
                "log2": near(2.0**-19, len(usual)),
                "reciprocal": near(2.0**-21, len(usual)),
                "root": near(2.0**-20, len(usual)),
            },
        ),
        Call(
            "bits", 32, (words(32), words(32)), {x: made(torch.int32, 32) for x in ("shl", "shr", "prmt", "dp", "dpu")}
        ),
        Call("extremes", 32, (left, right), {"least": made(torch.float32, 32), "most": made(torch.float32, 32)}),
        Call("product", 32, (a, b, b.T.contiguous()), {"d": (d.clone(), 1e-5), "again": near(1e-5, 128)}),
    ]
    numbers = {"fused": made(torch.float32, 32), "quotient": made(torch.float32, 32), "sqrt": made(torch.float32, 32)}
    numbers |= {"erf": near(1e-6, 32), "round": made(torch.float32, 32), "pack": made(torch.int32, 32)}
    numbers |= {"log": near(1e-14, 32, torch.float64), "exp": near(1e-14, 32, torch.float64)}
    found.append(Call("numbers", 32, (floats(32), floats(32), floats(32)), numbers))
    names = ("shuffle", "shuffle_xor", "shuffle_up", "vote", "popc", "clz", "mulhi")
    lanes = {name: made(torch.int32, 32) for name in names}
    lanes |= {"warp_sum": made(torch.float32, 32), "warp_most": made(torch.float32, 32)}
    found.append(Call("warps", 32, (words(32), floats(32)), lanes))
    kept = {"cp.async": made(torch.int32, 128), "ld.stream": made(torch.int32, 128), "add": made(torch.int32, 4)}
    found.append(Call("memory", 32, (words(128),), kept | {"or": made(torch.int32, 4), "max": made(torch.int64, 4)}))
    return found


def results(launcher: Launcher, device: torch.device) -> dict[str, np.ndarray]:
    """By `entry/output`, what a launcher makes of the calls on its device."""
    found: dict[str, np.ndarray] = {}
    for call in calls():
        args: list[Argument] = [_moved(value, device) for value in call.inputs]
        outputs = {name: tensor.to(device) for name, (tensor, _) in call.outputs.items()}
        launcher.launch(SOURCE, call.entry, (1, 1, 1), call.n_threads, [*args, *outputs.values()])
        found |= {f"{call.entry}/{name}": tensor.cpu().numpy() for name, tensor in outputs.items()}
    return found


def _moved(value: Argument, device: torch.device) -> Argument:
    return value.to(device) if isinstance(value, Tensor) else value


def differences(table: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> list[str]:
    """One line for each output that differs by more than it may, with the first lane."""
    wrong = []
    for call in calls():
        for name, (_, bound) in call.outputs.items():
            key = f"{call.entry}/{name}"
            ours, theirs = table[key].reshape(-1), found[key].reshape(-1)
            bad = _other(ours, theirs, bound)
            if bad.any():
                at = int(np.argmax(bad))
                wrong.append(
                    f"{key}: {int(bad.sum())} of {len(bad)}, lane {at}: {theirs[at]!r} instead of {ours[at]!r}"
                )
    return wrong


def _other(ours: np.ndarray, theirs: np.ndarray, bound: float) -> np.ndarray:
    if not bound:
        is_nan = np.isnan(ours) & np.isnan(theirs) if ours.dtype.kind == "f" else np.zeros(len(ours), dtype=bool)
        differ: np.ndarray = (ours.view(f"u{ours.itemsize}") != theirs.view(f"u{theirs.itemsize}")) & ~is_nan
        return differ
    size = np.maximum(np.abs(ours), 1.0 if bound < 1e-12 else 2.0**-10)
    with np.errstate(invalid="ignore"):
        far: np.ndarray = ~((np.abs(ours - theirs) <= bound * size) | (ours == theirs))
    return far


def load(path: Path = TABLE) -> dict[str, np.ndarray]:
    with np.load(path) as table:
        return dict(table)


def main(_: Sequence[str] = ()) -> int:
    from tests.kernels_cuda.emulated import Emulator

    TABLE.parent.mkdir(exist_ok=True)
    np.savez_compressed(TABLE, **results(Emulator(order="lowest"), torch.device("cpu")))  # type: ignore[arg-type]
    print(f"{TABLE.name}: {TABLE.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
