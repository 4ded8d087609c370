"""Which operations are a kernel's: none, all, those that proved themselves; and those that fail later."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from imp_server.backends.base import WANT_HIDDEN, Counting, DeviceLost, KvSpec, StepRow
from imp_server.backends.cuda.backend import CudaBackend
from imp_server.backends.cuda.card import Card, CardOpener
from imp_server.backends.cuda.device import CpuDevice
from imp_server.backends.cuda.hang_guard import HangGuard
from imp_server.backends.cuda.kernel_choice import KernelChoice, is_device_fault
from imp_server.backends.cuda.kernels import KERNELS
from imp_server.backends.cuda.launching import Argument, KernelFault, KernelSource
from imp_server.backends.cuda.proof.cases import OperationCall, RectangleShape, usual_rectangles
from imp_server.backends.cuda.proof.kept import KernelVerdict
from imp_server.backends.step_builder import StepBuilder
from imp_server.core import EXIT_DEVICE_LOST, ConfigError, EngineFaulted

from tests.backends.array_source import ArraySource, tiny
from tests.backends.cuda.test_engine import answers

OPENER = CardOpener("nowhere:nothing", 0)


class Silent:
    """A launcher whose kernels do nothing, but one that faults."""

    def __init__(self, broken: str = "") -> None:
        self.broken, self.n_launches = broken, 0

    def prepare(self, sources: Sequence[KernelSource]) -> None:
        return

    def load(self, source: KernelSource) -> None:
        return

    def launch(self, source: KernelSource, entry: str, grid: Any, n_threads: int, args: Sequence[Argument],
               shared_bytes: int = 0) -> None:  # fmt: skip
        self.n_launches += 1
        if entry == self.broken:
            raise KernelFault("an illegal memory access")


class Judge:
    """Proves what it was told to."""

    def __init__(self, verdict: KernelVerdict | None) -> None:
        self.verdict, self.asked = verdict, 0
        self.cases: Sequence[OperationCall] = ()

    def __call__(self, opener: CardOpener, cases: Sequence[OperationCall]) -> KernelVerdict | None:
        self.asked += 1
        self.cases = cases
        return self.verdict


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMP_HOME", str(tmp_path))


def made(use: Any, launcher: Silent | None, judge: Judge | None = None) -> CudaBackend:
    torch.set_num_threads(1)
    device = CpuDevice()
    card = Card(device, launcher, "card", 2, "" if launcher else "there is no CuPy")
    shapes = (RectangleShape(1, 1, 8), RectangleShape(1, 16, 8))
    choice = KernelChoice(card, OPENER, use, "tiny", prove=judge or Judge(None), rectangles=lambda n: shapes)
    backend = CudaBackend(ArraySource(tiny()), device, kernels=choice)
    backend.allocate(KvSpec((64,), "bf16"))
    return backend


def used(backend: CudaBackend) -> float:
    assert isinstance(backend, Counting)
    return backend.counters()["cuda_kernels_used"]


def test_none_and_all() -> None:
    judge = Judge(KernelVerdict(["norm"], {}))
    assert used(made("none", Silent(), judge)) == 0
    assert used(made("all", Silent(), judge)) == len(KERNELS) and not judge.asked
    assert "kernels: none" in made("none", None).info.detail


def test_what_is_proved_is_used_and_asked_for_once(caplog: pytest.LogCaptureFixture) -> None:
    judge = Judge(KernelVerdict(["norm", "add_norm"], {"project": "off by 1"}, 7))
    with caplog.at_level(logging.INFO):
        first = made("auto", Silent(), judge)
    again = made("auto", Silent(), judge)
    assert judge.asked == 1 and used(first) == used(again) == 2
    assert first.counters()['cuda_kernel_condemned{operation="project"}'] == 1
    assert first.info.arithmetic == again.info.arithmetic != made("none", None).info.arithmetic
    assert first.info.arithmetic.endswith(" plain norm add_norm") and "not project: off by 1" in first.info.detail
    assert "CUDA kernels: 2 of 18 (norm, add_norm); not project: off by 1" in caplog.text


def test_the_cases_are_those_of_the_model() -> None:
    judge = Judge(None)
    assert used(made("auto", Silent(), judge)) == 0
    operations = {case.operation for case in judge.cases}
    asked = {"embed", "add_norm", "project", "gated_project", "qkv_epilogue", "decode_attention", "prefill_attention"}
    assert operations == asked | {"head_logits", "head_argmax", "sample", "take_best", "copy_blocks"}
    n_layers = len([case for case in judge.cases if case.operation == "qkv_epilogue"])
    assert n_layers == 2, "one for each shape: layers that are alike are one case"
    forms = [case.arguments["kv"]["kv"]["dtype"] for case in judge.cases if case.operation == "decode_attention"]
    assert forms == ["bf16"]


def test_the_usual_shapes_cover_rows_drafts_chunks_and_the_longest_table() -> None:
    shapes = usual_rectangles(2048)
    assert {shape.n_rows for shape in shapes if shape.width == 1} == {1, 2, 4, 8, 16, 64}
    assert max(shape.width for shape in shapes) == 512 and max(shape.columns for shape in shapes) == 2048
    assert all(shape.n_rows * shape.width <= 2048 for shape in shapes)


def test_a_card_without_launcher_runs_the_plain_layer_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert used(made("auto", None)) == 0 and "there is no CuPy" in caplog.text
    with pytest.raises(ConfigError, match=r"cuda\.kernels=all: there is no CuPy"):
        made("all", None)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_fault_while_serving_ends_the_engine_and_the_next_one_does_without(overlap: bool) -> None:
    backend = made("all", Silent(broken="qkv_epilogue"))
    backend.allocate = lambda kv: None  # type: ignore[method-assign]  # it was
    with pytest.raises(DeviceLost, match="an illegal memory access"):
        answers(backend, overlap=overlap)
    after = made("all", Silent(broken="qkv_epilogue"))
    gone = {name.partition('"')[2][:-2] for name in after.counters() if "condemned" in name}
    assert gone == {"embed", "add_norm", "qkv_epilogue"}, "those launched in the step that failed"
    assert used(after) == len(KERNELS) - len(gone)
    judge = Judge(KernelVerdict(["norm"], {}))
    proved = made("auto", Silent(), judge)
    assert {case.operation for case in judge.cases}.isdisjoint(gone) and used(proved) == 1


def test_a_card_that_does_not_answer_ends_the_engine_and_condemns_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    backend = made("all", Silent())
    backend._guard = HangGuard(backend._give_up, limit_s=0.05)
    monkeypatch.setattr(backend._ready(), "collect", lambda flight: ended.wait(5))
    builder = StepBuilder(1)
    builder.add_alone(StepRow(WANT_HIDDEN), np.arange(3, dtype=np.int32), 0, [np.arange(4, dtype=np.int32)])
    pending = backend.launch(builder.finish())
    pending.collect()
    backend.close()
    assert codes == [EXIT_DEVICE_LOST]
    assert 'cuda_kernel_condemned{operation="qkv_epilogue"}' in made("all", Silent()).counters()


def test_who_answers_in_time_is_left_alone() -> None:
    called: list[int] = []
    guard = HangGuard(lambda: called.append(1), limit_s=0.04)
    with guard.waiting():
        pass
    time.sleep(0.1)
    guard.close()
    assert not called


def test_which_errors_leave_no_use_of_a_card() -> None:
    class CUDADriverError(RuntimeError):
        """As CuPy has it."""

    assert is_device_fault(KernelFault("x")) and is_device_fault(torch.AcceleratorError("x"))
    assert is_device_fault(CUDADriverError("x"))
    assert not is_device_fault(RuntimeError("x")) and not is_device_fault(EngineFaulted("x"))
