"""Kernels on a card: compiled by compile.py, loaded and launched by CuPy on torch's current stream."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from imp_server.backends.cuda.compile import ARCHITECTURES, compile_cubin
from imp_server.backends.cuda.launching import Argument, KernelSource, argument_value
from imp_server.core import DeviceError

MEND = "pip install 'cupy-cuda13x>=14,<15' (or the CuPy of your CUDA)"


class CupyLauncher:
    """Implements `Launcher`. Owner of the loaded kernels; torch owns all memory and the stream."""

    def __init__(self, index: int, capability: tuple[int, int], folder: Path | None) -> None:
        """`folder`: where cubins are kept. Raises DeviceError without CuPy, or for a card that has no kernels."""
        if find_spec("cupy") is None:
            raise DeviceError(f"kernels can't be launched without CuPy: {MEND}")
        self._arch, self._folder = architecture_for(capability), folder
        self._cuda: Any = import_module("cupy").cuda
        self._cuda.Device(index).use()
        self._cubins: dict[KernelSource, bytes] = {}
        self._modules: dict[KernelSource, Any] = {}
        self._functions: dict[tuple[KernelSource, str], Any] = {}
        self._streams: dict[int, Any] = {}

    @property
    def driver(self) -> str:
        version = int(self._cuda.runtime.driverGetVersion())
        return f"{version // 1000}.{version % 1000 // 10}"

    def prepare(self, sources: Sequence[KernelSource]) -> None:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for source, cubin in zip(sources, pool.map(self._compiled_or_not, sources), strict=True):
                if cubin is not None:
                    self._cubins[source] = cubin

    def load(self, source: KernelSource) -> None:
        if source not in self._modules:
            module = self._cuda.function.Module()
            module.load(self._cubins.pop(source, None) or self._compiled(source))
            self._modules[source] = module

    def launch(
        self,
        source: KernelSource,
        entry: str,
        grid: tuple[int, int, int],
        n_threads: int,
        args: Sequence[Argument],
        shared_bytes: int = 0,
    ) -> None:
        function = self._functions.get((source, entry))
        if function is None:
            self.load(source)
            function = self._functions[source, entry] = self._modules[source].get_function(entry)
        # By value: CuPy would take None for no argument at all, and ints for 8 bytes.
        values = tuple(argument_value(argument) for argument in args)
        function(grid, (n_threads, 1, 1), values, shared_mem=shared_bytes, stream=self._stream())

    def _compiled(self, source: KernelSource) -> bytes:
        return compile_cubin(source, self._arch, folder=self._folder)

    def _compiled_or_not(self, source: KernelSource) -> bytes | None:
        try:
            return self._compiled(source)
        except DeviceError:
            return None

    def _stream(self) -> Any:
        """That of torch: another one while a graph is captured."""
        address = int(torch.cuda.current_stream().cuda_stream)
        if address not in self._streams:
            self._streams[address] = self._cuda.ExternalStream(address)
        return self._streams[address]


def architecture_for(capability: tuple[int, int]) -> int:
    """The one whose machine code runs on a card: of its own major number, the highest that isn't above it.

    Raises DeviceError if there is none.
    """
    own = 10 * capability[0] + capability[1]
    fitting = [arch for arch in ARCHITECTURES if arch // 10 == capability[0] and arch <= own]
    if not fitting:
        raise DeviceError(f"there are no kernels for sm_{own}: they are made for sm_80 and newer cards")
    return max(fitting)
