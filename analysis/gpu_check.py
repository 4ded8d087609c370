"""One card, one command, at most eight minutes: does the cuda backend do on it what was proved on CPUs, and how fast?

    PYTHONPATH=imp:. python -m analysis.gpu_check [--out FILE] [--minutes 8] [--only SECTION ...] [--wheelhouse FOLDER]

Needs numpy, torch (2.11 or newer), msgspec and CuPy, Python 3.11 or newer, no network. Each section prints, and is
saved to FILE, as soon as it is done; what there is no time for is said to be left out. `--tiny --card MODULE:FUNCTION`
runs all of it on small shapes on another card, such as the emulated one of the tests.

    python -m analysis.gpu_check --make-wheelhouse FOLDER     the wheels of the served smoke, where there is a net
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imp_server.backends.base import WANT_LOGITS, KvSpec, StepRow
from imp_server.backends.cuda.backend import KV_DTYPES, CudaBackend
from imp_server.backends.cuda.card import Card, CardOpener, gpu_opener
from imp_server.backends.cuda.kernel_choice import KernelChoice
from imp_server.backends.cuda.proof.cases import RectangleShape, usual_rectangles
from imp_server.backends.reference.backend import ReferenceBackend
from imp_server.backends.step_builder import StepBuilder

from analysis import device_table
from analysis.gpu_models import (
    FORMATS,
    SHAPES,
    MadeUpWeights,
    NoSource,
    Rows,
    decode,
    decode_drafted,
    decode_masked,
    small,
)

ROOT = Path(__file__).resolve().parent.parent
GOALS = {"qwen3-0.6b bf16": 1300.0, "qwen3-4b bf16": 400.0, "qwen3-8b bf16": 222.0}
"""Tokens a second of one row, on an H200."""
MOST_EXPOSED_US, LEAST_CONSTRAINED = 50.0, 0.97
TINY_RECTANGLES = (RectangleShape(1, 1, 4),)
SERVED_WHEELS = ("torch", "cupy-cuda13x", "nvidia-cuda-nvrtc")


@dataclass
class Check:
    """The run. `report`: by section, what was found."""

    card: Card
    opener: CardOpener
    out: Path
    ends: float
    tiny: bool
    wheelhouse: Path | None
    report: dict[str, Any] = field(default_factory=dict)
    bandwidth: float = 0.0
    """Bytes a second that a large copy moves."""

    @property
    def left_s(self) -> float:
        return self.ends - time.monotonic()

    def save(self, section: str, found: Any) -> None:
        self.report[section] = found
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(self.report, indent=1, default=float) + "\n")
        print(f"== {section}\n{json.dumps(found, indent=1, default=float)}", flush=True)

    def synchronize(self) -> None:
        if self.card.device.torch_device.type == "cuda":
            torch.cuda.synchronize()


# -- What is loaded ----------------------------------------------------------------------------------------------------


@contextmanager
def loaded(check: Check, name: str, matrix_format: str, n_rows: int, capacity: int, *, use: Any = "auto",
           kv: str = "bf16") -> Iterator[CudaBackend]:  # fmt: skip
    """A model of that shape with random weights, and blocks for so many rows."""
    architecture = small() if check.tiny else SHAPES[name]
    device = check.card.device
    shapes = (lambda _: TINY_RECTANGLES) if check.tiny else usual_rectangles
    choice = KernelChoice(check.card, check.opener, use, f"{name} {matrix_format}", rectangles=shapes)
    weights = MadeUpWeights(architecture, FORMATS.get(matrix_format, matrix_format), device.torch_device)
    backend = CudaBackend(NoSource(architecture, name), device, kernels=choice, weights=weights)  # type: ignore[arg-type]
    blocks = n_rows * -(-capacity // 16)
    backend.allocate(KvSpec((blocks,) * len(architecture.cache_groups), kv))
    try:
        yield backend
    finally:
        backend.close()
        device.forget_graphs()
        del backend, weights
        if device.torch_device.type == "cuda":
            torch.cuda.empty_cache()


def seconds(check: Check, work: Callable[[], Any]) -> float:
    check.synchronize()
    begun = time.perf_counter()
    work()
    check.synchronize()
    return time.perf_counter() - begun


class Gaps:
    """How long the card had nothing to do between steps: events before and behind what each launch queues."""

    def __init__(self, check: Check, backend: CudaBackend) -> None:
        self._is_gpu, self._backend = check.card.device.torch_device.type == "cuda", backend
        self._events: list[Any] = []

    @contextmanager
    def counted(self) -> Iterator[None]:
        launch = self._backend.launch

        def noting(step: Any) -> Any:
            before = self._event()
            pending = launch(step)
            self._events.append((before, self._event()))
            return pending

        self._backend.launch = noting  # type: ignore[method-assign]
        try:
            yield
        finally:
            self._backend.launch = launch  # type: ignore[method-assign]

    def _event(self) -> Any:
        if not self._is_gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def mean_us(self) -> float | None:
        if not self._is_gpu or len(self._events) < 3:
            return None
        torch.cuda.synchronize()
        pairs = zip(self._events[1:], self._events[2:], strict=False)
        gaps = [1e3 * one[1].elapsed_time(other[0]) for one, other in pairs]
        return float(np.mean(gaps))


# -- Sections ----------------------------------------------------------------------------------------------------


def machine(check: Check) -> Any:
    found = {"card": check.card.name, "kernels": check.card.lacks or "can be launched", "torch": torch.__version__}
    return found | {"python": platform.python_version(), "free_gib": check.card.device.free_bytes() / 2**30}


def device_functions(check: Check) -> Any:
    """Every function of device.h, lane by lane, against the emulator's table."""
    if check.card.launcher is None:
        return {"left out": check.card.lacks}
    found = device_table.results(check.card.launcher, check.card.device.torch_device)
    return {"outputs": len(found), "differ": device_table.differences(device_table.load(), found)}


def bandwidth(check: Check) -> Any:
    n = 1 << (20 if check.tiny else 31)
    on = check.card.device.torch_device
    source, target = torch.ones(n, dtype=torch.uint8, device=on), torch.empty(n, dtype=torch.uint8, device=on)
    target.copy_(source)
    best = min(seconds(check, lambda: target.copy_(source)) for _ in range(5))
    check.bandwidth = 2 * n / best
    return {"bytes_per_s": check.bandwidth}


def kernels(check: Check) -> Any:
    """Every kernel against its twin, in a process of its own, at the shapes of these models."""
    found = {}
    for name, matrix_format in (("qwen3-0.6b", "bf16"), ("qwen3-0.6b", "w4"), ("gpt-oss-20b", "bf16")):
        if check.left_s < 120 and not check.tiny:
            found[f"{name} {matrix_format}"] = "left out: no time"
            continue
        with loaded(check, name, matrix_format, 1, 4096 if not check.tiny else 64) as backend:
            found[f"{name} {matrix_format}"] = backend.info.detail
        if check.tiny:
            break
    return found


def golden(check: Check) -> Any:
    """Ids of the backend, plain and with kernels, against the reference backend's, made here."""
    from imp_server.models.source import RawTensor
    from imp_server.weights.ggml_types import BY_NAME

    class Source(NoSource):
        """Numbers drawn from a seed, in memory."""

        def __init__(self) -> None:
            super().__init__(small(), "golden")
            made = MadeUpWeights(self.architecture, "F32", torch.device("cpu"))
            self.tensors = {name: made.numbers(name).numpy() for name in made.shapes}
            for values in self.tensors.values():
                if values.ndim > 1:
                    values *= 30.0 * values.shape[-1] ** -0.5

        def __contains__(self, name: str) -> bool:
            return name in self.tensors

        def names(self) -> Any:
            return self.tensors.keys()

        def array(self, name: str) -> Any:
            return self.tensors[name]

        def raw(self, name: str) -> RawTensor:
            values = self.tensors[name]
            return RawTensor(BY_NAME["F32"], values.shape, values.view(np.uint8).reshape(-1))

    source: Any = Source()

    def ids(backend: Any) -> list[list[int]]:
        backend.allocate(KvSpec((32,) * len(backend.architecture.cache_groups), "f32"))
        rows = Rows(backend, 2, 128)
        rows.prefill(20)
        for _ in range(12):
            rows.take(backend.run(rows.next_step()))
        return [state.output.tolist() for state in rows.states]

    want = ids(ReferenceBackend(source))
    found: dict[str, Any] = {"ids": want}
    for use in ("none", "all") if check.card.launcher is not None else ("none",):
        choice = KernelChoice(check.card, check.opener, use, "golden", rounds=False)
        backend = CudaBackend(source, check.card.device, kernels=choice)
        found[f"kernels {use}"] = "the same" if (got := ids(backend)) == want else got
        check.card.device.forget_graphs()
    return found


def speed(check: Check, name: str, matrix_format: str, n_rows: int, *, prompt: int = 128, n_steps: int = 64) -> Any:
    """Decode and prefill of `n_rows` rows."""
    if check.tiny:
        prompt, n_steps = 20, 4
    capacity = prompt + 3 * n_steps + 16
    with loaded(check, name, matrix_format, n_rows, capacity) as backend:
        rows = Rows(backend, n_rows, capacity)
        rows.prefill(prompt)  # what is compiled or captured at first use
        filled = seconds(check, lambda: rows.prefill(prompt))
        decode(rows, n_steps // 2)
        gaps = Gaps(check, backend)
        with gaps.counted():
            took = seconds(check, lambda: decode(rows, n_steps)) / n_steps
        streamed = backend.weights.nbytes
        if not backend.architecture.tied_head:
            streamed -= backend.architecture.vocab_size * backend.architecture.width * 2
        return {
            "tokens_per_s": n_rows / took,
            "step_ms": 1e3 * took,
            "share_of_bandwidth": streamed / took / check.bandwidth if check.bandwidth else None,
            "us_a_layer_beyond_streaming": 1e6 * (took - streamed / check.bandwidth) / backend.architecture.n_layers
            if check.bandwidth
            else None,
            "exposed_us_a_step": gaps.mean_us(),
            "prefill_tokens_per_s": n_rows * prompt / filled,
            "kernels": backend.info.detail.partition("kernels: ")[2],
        } | {k: v for k, v in backend.counters().items() if k.startswith("cuda_graph")}


def one_row(check: Check) -> Any:
    wanted = [(name, form) for name in ("qwen3-0.6b", "qwen3-4b", "qwen3-8b") for form in ("bf16", "w4", "fp8", "w8")]
    wanted.sort(key=lambda each: ("bf16", "w4", "fp8", "w8").index(each[1]))
    found: dict[str, Any] = {}
    for name, form in [*wanted[:3], ("gpt-oss-20b", "bf16"), *wanted[3:]][: 1 if check.tiny else None]:
        key = f"{name} {form}"
        if check.left_s < 150 and not check.tiny:
            found[key] = "left out: no time"
            continue
        found[key] = speed(check, name, form, 1)
        if key in GOALS:
            found[key]["goal"] = GOALS[key]
        check.save("one row", found)
    return found


def many_rows(check: Check) -> Any:
    found: dict[str, Any] = {}
    for n in (8, 64, 256) if not check.tiny else (2,):
        found[f"{n} rows"] = (
            "left out: no time" if check.left_s < 90 else speed(check, "qwen3-0.6b", "bf16", n, n_steps=32)
        )
    return found


def prefix(check: Check) -> Any:
    """A prompt of which all but the end is in the cache, and one of which nothing is."""
    long, new = (2048, 64) if not check.tiny else (40, 8)
    with loaded(check, "qwen3-0.6b", "bf16", 1, long + new + 16) as backend:
        rows = Rows(backend, 1, long + new + 16)
        rows.prefill(long + new)
        miss = seconds(check, lambda: rows.prefill(long + new))
        hit = seconds(check, lambda: rows.prefill(long + new, n_known=long))
    return {"miss_ms": 1e3 * miss, "hit_ms": 1e3 * hit}


def constrained(check: Check) -> Any:
    """Masks that are there only once the step in front was read, against free decoding; and drafts of the host."""
    n_steps = 64 if not check.tiny else 3
    capacity = 64 + 8 * n_steps
    with loaded(check, "qwen3-4b", "bf16", 1, capacity) as backend:
        rows = Rows(backend, 1, capacity)
        rows.prefill(32)
        masks = np.random.default_rng(1).integers(
            0, 2**32, (1, -(-backend.architecture.vocab_size // 32)), dtype=np.uint32
        )
        for each in (
            partial(decode, rows, 3),
            partial(decode_masked, rows, 3, masks),
            partial(decode_drafted, rows, 3, 3),
        ):
            each()
        free = seconds(check, lambda: decode(rows, n_steps)) / n_steps
        bound = seconds(check, lambda: decode_masked(rows, n_steps, masks)) / n_steps
        drafted = seconds(check, lambda: decode_drafted(rows, n_steps, 3)) / n_steps
    return {
        "free_ms": 1e3 * free,
        "constrained_ms": 1e3 * bound,
        "constrained_share": free / bound,
        "goal": LEAST_CONSTRAINED,
        "n_gram_step_ms": 1e3 * drafted,
        "n_gram_pays_above_accepted": drafted / free - 1,
    }


def parity(check: Check) -> Any:
    """Logits with kernels against plain ones by types of weights and cache: the largest difference, relatively."""
    found: dict[str, Any] = {}
    formats = ("BF16", "FP8", "Q8_0", "Q4_K", "MXFP4") if not check.tiny else ("Q8_0",)
    for matrix_format in formats:
        for kv in KV_DTYPES if not check.tiny else ("bf16",):
            plain, ours = (_logits(check, matrix_format, kv, use) for use in ("none", "all"))
            found[f"{matrix_format} {kv}"] = float(np.abs(ours - plain).max() / np.abs(plain).max())
    return found


def _logits(check: Check, matrix_format: str, kv: str, use: Any) -> Any:
    choice = KernelChoice(check.card, check.opener, use if check.card.launcher else "none", "parity")
    architecture = small()
    weights = MadeUpWeights(architecture, matrix_format, check.card.device.torch_device)
    backend = CudaBackend(NoSource(architecture, "parity"), check.card.device, kernels=choice, weights=weights)  # type: ignore[arg-type]
    backend.allocate(KvSpec((8,), kv))
    builder = StepBuilder(1)
    ids = np.random.default_rng(2).integers(0, 97, 7).astype(np.int32)
    builder.add_alone(StepRow(WANT_LOGITS), ids, 0, [np.arange(4, dtype=np.int32)])
    (row,) = backend.run(builder.finish()).rows
    check.card.device.forget_graphs()
    return row.logits


def served(check: Check) -> Any:
    """A server from a wheelhouse answers streams, a constrained request and one that is given up."""
    if check.wheelhouse is None or not any(check.wheelhouse.glob("imp_server-*.whl")):
        return {"left out": "there is no wheelhouse (--make-wheelhouse makes one where there is a net)"}
    if check.left_s < 60:
        return {"left out": "no time"}
    from analysis.gpu_served import smoke

    return smoke(check.wheelhouse, check.left_s)


SECTIONS: dict[str, Callable[[Check], Any]] = {
    "machine": machine,
    "device functions": device_functions,
    "bandwidth": bandwidth,
    "golden": golden,
    "kernels": kernels,
    "parity": parity,
    "one row": one_row,
    "constrained": constrained,
    "prefix": prefix,
    "many rows": many_rows,
    "served": served,
}


def run(check: Check, only: list[str]) -> int:
    """How many sections failed. One that fails says so, and the next one begins."""
    failed = 0
    for name, section in SECTIONS.items():
        if only and name not in only:
            continue
        if check.left_s < 20 and not check.tiny:
            check.save(name, {"left out": "no time"})
            continue
        begun = time.monotonic()
        try:
            found = section(check)
        except Exception as error:
            failed += 1
            found = {"failed": f"{type(error).__name__}: {error}"[:2000]}
        check.save(name, found)
        check.save("seconds", check.report.get("seconds", {}) | {name: round(time.monotonic() - begun, 1)})
    return failed


def make_wheelhouse(folder: Path) -> int:
    """imp's own wheel and all that it needs, listed."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    own = next(folder.glob("imp_server-*.whl"))
    subprocess.run([*pip, "download", "--dest", str(folder), str(own), *SERVED_WHEELS], check=True)
    for wheel in sorted(folder.iterdir()):
        print(f"{wheel.name} {wheel.stat().st_size >> 10} KiB")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "analysis" / "results" / "gpu_check.json")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", action="append", default=[], choices=SECTIONS)
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script itself")
    parser.add_argument("--card", default="", metavar="MODULE:FUNCTION", help="another card than GPU 0")
    parser.add_argument("--wheelhouse", type=Path)
    parser.add_argument("--make-wheelhouse", type=Path, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    if asked.make_wheelhouse:
        return make_wheelhouse(asked.make_wheelhouse)
    ends = time.monotonic() + 60 * asked.minutes
    if not asked.card and not torch.cuda.is_available():
        print("torch finds no GPU here")
        return 2
    opener = CardOpener(asked.card, 0) if asked.card else gpu_opener(0)
    check = Check(opener.open("auto"), opener, asked.out, ends, asked.tiny, asked.wheelhouse)
    failed = run(check, asked.only)
    print(f"{failed} sections failed; saved in {asked.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
