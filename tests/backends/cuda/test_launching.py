"""How kernels are launched on a card: what CuPy is handed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from imp_server.backends.cuda import cupy_launcher
from imp_server.backends.cuda.cupy_launcher import CupyLauncher, architecture_for
from imp_server.backends.cuda.launching import KernelSource, argument_bits, argument_value
from imp_server.core import DeviceError

SOURCE = KernelSource("norm.cu")


class FakeCupy:
    """As much of CuPy as is used, writing down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        runtime = SimpleNamespace(driverGetVersion=lambda: 13020)
        function = SimpleNamespace(Module=lambda: SimpleNamespace(load=self._load, get_function=self._function))
        device = SimpleNamespace(use=lambda: self.calls.append("use"))
        self.cuda = SimpleNamespace(
            Device=lambda index: device, function=function, runtime=runtime, ExternalStream=lambda at: f"stream {at}"
        )

    def _load(self, cubin: bytes) -> None:
        self.calls.append(("load", cubin))

    def _function(self, name: str) -> Any:
        self.calls.append(("get", name))
        return lambda grid, block, args, **more: self.calls.append((name, grid, block, args, more))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(cupy_launcher, "find_spec", lambda name: name)
    monkeypatch.setattr(cupy_launcher, "compile_cubin", lambda source, arch, folder: f"{source.file} {arch}".encode())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    return fake


def test_a_kernel_is_loaded_once_and_launched_on_torchs_stream(cupy: FakeCupy) -> None:
    launcher = CupyLauncher(0, (9, 0), None)
    x = torch.zeros(3)
    for _ in range(2):
        launcher.launch(SOURCE, "norm", (2, 1, 1), 64, [x, None, 5, 0.5, np.int64(1 << 40), 3], 128)
    launcher.load(SOURCE)
    other = KernelSource("embed.cu")
    launcher.prepare([other])
    assert cupy.calls[-1][0] == "norm", "only compiled"
    launcher.load(other)
    assert cupy.calls.pop() == ("load", b"embed.cu 90")
    assert cupy.calls[:3] == ["use", ("load", b"norm.cu 90"), ("get", "norm")]
    first, again = cupy.calls[3:]
    name, grid, block, args, more = first
    assert again == first and (name, grid, block) == ("norm", (2, 1, 1), (64, 1, 1))
    assert args == (x.data_ptr(), 0, 5, 0.5, 1 << 40, 3)
    assert [arg.nbytes for arg in args] == [8, 8, 4, 4, 8, 4], "as the kernel's parameters are"
    assert more == {"shared_mem": 128, "stream": "stream 7"} and launcher.driver == "13.2"


def test_arguments_have_the_bits_that_kernels_read() -> None:
    assert argument_bits(-1) == 0xFFFFFFFF and argument_bits(np.int64(-1)) == 0xFFFFFFFFFFFFFFFF
    assert argument_bits(1.0) == 0x3F800000 and argument_bits(None) == 0
    assert argument_value(2).dtype == np.int32 and argument_value(2.0).dtype == np.float32


@pytest.mark.parametrize("capability, arch", [((8, 0), 80), ((8, 7), 86), ((9, 0), 90), ((10, 3), 100), ((12, 1), 121)])
def test_machine_code_of_the_same_major_number_runs(capability: tuple[int, int], arch: int) -> None:
    assert architecture_for(capability) == arch


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability in ((7, 5), (11, 0)):
        with pytest.raises(DeviceError, match="made for sm_80 and newer"):
            architecture_for(capability)
    monkeypatch.setattr(cupy_launcher, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match="pip install"):
        CupyLauncher(0, (9, 0), None)
